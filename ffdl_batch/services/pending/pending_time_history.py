"""Computes how long the user's own jobs of the same shape waited in the queue, from the history of jobs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ffdl_batch.domain.job.job import HistoryEntry
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.pending.explanation import WaitHistory
from ffdl_batch.services.job_storage import JobStorage

DAYS = 90
_LOOKED_AT = 500
FEWEST = 3
"""Fewer waits give no statistics."""
_WITHIN = 2.0
"""Time limits within this factor are alike."""
_BEGUN = frozenset({JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING})


def wait_history(storage: JobStorage, uid: int, spec: JobSpec, backend: str) -> WaitHistory | None:
    """Return the waits of `uid`'s jobs of the last DAYS; None if there are too few. Two queries."""
    since = storage.clock.now() - DAYS * 86400
    jobs = storage.store.list_jobs(uid=uid, since=since, limit=_LOOKED_AT)
    alike = [
        job
        for job in jobs
        if job.backend == backend and waits_for_capacity(job.effective_spec) and are_alike(job.effective_spec, spec)
    ]
    histories = storage.store.histories([job.id for job in alike])
    waits = [wait for job in alike for wait in waits_of(histories.get(job.id, ()))]
    return summarise(waits, shape_of(spec))


def waits_for_capacity(spec: JobSpec) -> bool:
    """Whether the job waits in the queue only for capacity."""
    return not (spec.batch.begin or spec.batch.hold or spec.batch.dependency)


def are_alike(one: JobSpec, other: JobSpec) -> bool:
    """Whether two requests have the same GPUs, type, partition and nearly the same time limit."""
    if _size(one) != _size(other):
        return False
    first, second = one.batch.time_s, other.batch.time_s
    if first is None or second is None:
        return first == second
    return max(first, second) <= _WITHIN * min(first, second)


def _size(spec: JobSpec) -> tuple[object, ...]:
    each = spec.resources
    return each.gpus * each.learners, each.gpu_type.lower(), spec.batch.partition, spec.batch.qos


def shape_of(spec: JobSpec) -> str:
    """Describe the shape of a job."""
    each = spec.resources
    kind = f" of type {each.gpu_type}" if each.gpu_type else ""
    where = f" in partition {spec.batch.partition}" if spec.batch.partition else ""
    gpus = each.gpus * each.learners
    return f"{gpus:g} {'GPU' if gpus == 1 else 'GPUs'}{kind}{where} and a like time limit"


def waits_of(history: Iterable[HistoryEntry]) -> list[float]:
    """Return the seconds from each QUEUED to the start of the run. Waits that ended without a run do not count."""
    found, since = [], None
    for entry in history:
        if entry.state is JobState.QUEUED:
            since = entry.at if since is None else since
        elif entry.state in _BEGUN and since is not None:
            found.append(max(0.0, entry.at - since))
            since = None
        elif entry.state not in _BEGUN:
            since = None
    return found


def summarise(waits: Sequence[float], shape: str) -> WaitHistory | None:
    """Return the median, the ninth decile and the maximum of at least FEWEST waits; None for fewer."""
    if len(waits) < FEWEST:
        return None
    deciles = statistics.quantiles(waits, n=10, method="inclusive")
    return WaitHistory(shape, len(waits), statistics.median(waits), deciles[8], max(waits))
