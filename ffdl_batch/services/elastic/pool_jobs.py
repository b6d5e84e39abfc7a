"""Describe an elastic job to the policy: its predicted time at each size, and the cost of a change. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ffdl_batch.config.settings import ElasticPool
from ffdl_batch.domain.job.elastic import Elastic, workers_of
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.learner_reports import HOLD
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.elastic.policy import HORIZON_S, PoolJob
from ffdl_batch.elastic.schedulers import GROWTH
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.elastic.learner_history import LearnerHistory
from ffdl_batch.store import Attempt, JobSize

RESTART_S = 60.0
"""Cost of a change before one has been measured."""
REMAINING_S = 3600.0
"""How long a job runs that neither reports its remaining work nor has a time limit."""
LEAST_REMAINING_S = 1.0
"""A job that reports less work left is about to end. It still needs GPUs to do that."""


@dataclass(frozen=True, slots=True)
class Described:
    """A job as input of the policy, and why it keeps its size ("" = it may change)."""

    job: PoolJob
    hold: str


def describe(  # noqa: PLR0913 - everything that is known about a job
    job: Job,
    size: JobSize | None,
    attempts: Sequence[Attempt],
    history: LearnerHistory,
    pool: ElasticPool,
    now: float,
    *,
    restart_s: float = RESTART_S,
    possible: Collection[int],
) -> Described | None:
    """Return the job as input of the policy; None if no permitted size fits into the pool.

    `attempts` are all of its attempts in order. `restart_s` is the cost of a change if none of this job was measured.
    `possible` has the numbers of learners with which the job can be planned.
    """
    elastic, resources = job.spec.batch.elasticity, job.effective_spec.resources
    assert elastic is not None  # it belongs to a pool
    attempt = attempts[-1] if attempts else None
    runs = job.state is JobState.PROCESSING and attempt is not None
    per, present = resources.gpus, workers_of(resources.learners, resources.gpus)
    batch = job.global_batch or 0
    if size is not None and size.restart_s is not None:
        restart_s = size.restart_s
    restart_s = min(
        restart_s, HORIZON_S / 2
    )  # it includes the time in the scheduler's queue, and must not rule out all changes
    permitted = [one for one in _permitted(elastic, history, job.spec.resources.learners, per) if one in possible]
    choices = [
        (learners, gpus, one)
        for learners in permitted
        if (gpus := workers_of(learners, per)) <= pool.gpus
        for one in _batches(elastic, gpus, batch, history)
    ]
    if not choices:
        return None
    submitted = job.spec.resources.learners
    first = workers_of(submitted, per)
    # The submitted and the present size come first. They need not be permitted.
    others = [(submitted, first, max(elastic.start, first)), (resources.learners, present, max(batch, present))]
    submitted_s, now_s, *per_sample = _per_sample_s(history, [*others, *choices])
    samples = _remaining_samples(job, attempt if runs else None, history, submitted_s, now)
    width = max(present, *(gpus for _, gpus, _ in choices)) + 1
    remaining, batches = np.full(width, math.inf), np.zeros(width, dtype=np.int64)
    for (_, gpus, one), seconds in zip(choices, per_sample, strict=True):
        if samples * seconds < remaining[gpus]:
            remaining[gpus], batches[gpus] = samples * seconds, one
    began = now if attempt is None else attempt.resizes[-1].at if attempt.resizes else attempt.created_at
    restarts = attempt is not None and not attempt.resizes and (attempt.number, 0) not in history.first_at
    left_s = began + pool.min_between_s - now
    if left_s > 2 * pool.min_between_s:  # the clock was set back
        left_s = 0.0
    hold = _hold(history, attempts, left_s) if runs else ""
    present_s = samples * now_s
    if hold:
        remaining[present], batches[present] = present_s, batch
    return Described(
        PoolJob(
            job.id,
            remaining,
            batches,
            restart_s,
            gpus=present if runs else 0,
            present_batch=batch if runs else 0,
            present_remaining_s=present_s if runs and (hold or resources.learners in permitted) else math.inf,
            restarting_s=min(restart_s, max(0.0, restart_s - (now - began))) if runs and restarts else 0.0,
            weight=elastic.weight,
            tenant=job.user,
            held=bool(hold),
        ),
        hold,
    )


def _hold(history: LearnerHistory, attempts: Sequence[Attempt], left_s: float) -> str:
    """Return why a running job keeps its size; "" if it may change."""
    if history.hint == HOLD:
        return "the job printed ffdl-scale: hold"
    if history.loses_checkpoints:
        return "a halt would delete its checkpoints with its pods; set a claim, or a data store for results"
    halts = [one for one in attempts if one.interruption == Interruption.HALT.value]
    if halts and halts[-1].checkpoint.asked and not halts[-1].checkpoint.confirmed:
        return "its last halt left no checkpoint"
    if left_s > 0:
        return f"no change for another {math.ceil(left_s)} s (min_between_s)"
    return ""


def _permitted(elastic: Elastic, history: LearnerHistory, learners: int, gpus: float) -> Iterator[int]:
    """Yield the permitted numbers of learners."""
    least, most = elastic.min_learners, elastic.max_learners
    if history.hint:
        most = max(least, min(most, history.hint_learners + history.hint))
    measured = history.times.most_gpus
    known = GROWTH * measured if measured else workers_of(learners, gpus)
    for number in range(least, most + 1):
        if number == least or workers_of(number, gpus) <= known:
            yield number


def _batches(elastic: Elastic, gpus: int, present: int, history: LearnerHistory) -> list[int]:
    """Return the global batches to compare: powers of two on each GPU, the smallest, the largest and the present batch.
    Before a speed is known, return only the requested batch."""
    permitted = elastic.batches_per_gpu(gpus)
    if not permitted:
        return []
    if not history.times.most_gpus:
        return [elastic.batch_on(gpus) or 0]
    powers = {2**exponent for exponent in range(permitted[-1].bit_length())}
    return [one * gpus for one in sorted({permitted[0], permitted[-1], *powers, present // gpus}) if one in permitted]


def _per_sample_s(history: LearnerHistory, choices: Sequence[tuple[int, int, int]]) -> list[float]:
    """Return the seconds per sample for each choice of learners, GPUs and batch. Each learner counts as a node, as in
    the measurements."""
    learners, gpus, batch = np.array(choices).T
    return [float(one) for one in history.times.predict(learners, gpus, batch // gpus).step_s / batch]


def _remaining_samples(
    job: Job, attempt: Attempt | None, history: LearnerHistory, per_sample_s: float, now: float
) -> float:
    """Return the remaining samples. If unknown, return those that the submitted size can process until the time
    limit."""
    if history.remaining is not None:
        return max(history.remaining, LEAST_REMAINING_S / per_sample_s)
    limit_s = job.effective_spec.batch.limit_s
    left_s = REMAINING_S if limit_s is None else float(limit_s)
    if limit_s is not None and attempt is not None:
        left_s = max(1.0, left_s - (now - attempt.created_at))
    return left_s / per_sample_s
