"""How long before a time limit learners are warned, and the retry budget of a job."""

from __future__ import annotations

from collections.abc import Iterable

from ffdl_batch.domain.job.spec import JobSpec, Retry
from ffdl_batch.domain.launch.limits import Lead, LeadFrom, Limits, needed_lead_s
from ffdl_batch.domain.outcome.continuation import Budget, Checkpoint

MAX_LEAD_S = 65535
"""The largest time that sbatch's --signal takes (sbatch(1), Slurm 20.11 to 26.05)."""


def lead_of(spec: JobSpec, checkpoints: Iterable[Checkpoint], store_s: int = Limits.store_s) -> Lead:
    """Return the lead in whole seconds before the time limit, or none if we do not warn.

    The manifest decides first (0 = no warning), then what earlier attempts of this job measured, then its grace period.
    Learners that did not react are not counted: they were ended, and would make the lead grow each time. The lead is at
    most half of a known time limit. With ``batch.signal`` the manifest itself decides about warnings.
    """
    asked = spec.batch.checkpoint
    if spec.batch.signal or asked.lead_s == 0:
        return Lead()
    slowest = max((c.took_s for c in checkpoints if c.took_s is not None and (c.confirmed or c.answered)), default=None)
    if asked.lead_s is not None:
        lead_s, origin = asked.lead_s, LeadFrom.MANIFEST
    elif slowest is not None:
        lead_s, origin = needed_lead_s(slowest, store_s), LeadFrom.MEASURED
    else:
        lead_s, origin = asked.grace_s + store_s, LeadFrom.DEFAULT
    if spec.batch.limit_s is not None and lead_s > spec.batch.limit_s // 2:
        lead_s, origin = spec.batch.limit_s // 2, LeadFrom.TIME_LIMIT
    return Lead(max(1, min(lead_s, MAX_LEAD_S)), origin)


def budget_of(retry: Retry) -> Budget:
    """Return the retry budget that the manifest sets.

    By default, a job is continued after a time limit only from a confirmed checkpoint. With `retry.timeouts` the
    manifest says that the training can also continue from files that it saved without a request.
    """
    usual = Budget()
    return Budget(
        timeouts=usual.timeouts if retry.timeouts is None else retry.timeouts,
        preemptions=usual.preemptions if retry.preemptions is None else retry.preemptions,
        node_failures=usual.node_failures if retry.node_failures is None else retry.node_failures,
        failures=usual.failures if retry.failures is None else retry.failures,
        gpu_seconds=None if retry.gpu_hours is None else retry.gpu_hours * 3600,
        saved_is_enough=retry.timeouts is not None,
    )
