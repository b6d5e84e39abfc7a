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
from ffdl_batch.domain.number_text import counted
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
class KnownJob:
    """All that is known about a job of a pool."""

    job: Job
    size: JobSize | None
    attempts: Sequence[Attempt]
    """All of its attempts, in order."""
    history: LearnerHistory
    running_since: float | None = None
    """When its current attempt entered PROCESSING; None = unknown, or the attempt has not."""

    @property
    def attempt(self) -> Attempt | None:
        """The current attempt; None if none has begun."""
        return self.attempts[-1] if self.attempts else None

    @property
    def runs(self) -> bool:
        """Whether the job trains, so that a change of its size would be a restart."""
        return self.job.state is JobState.PROCESSING and bool(self.attempts)

    @property
    def gpus(self) -> int:
        """GPUs of its present size."""
        resources = self.job.effective_spec.resources
        return workers_of(resources.learners, resources.gpus)

    def has_size_for_s(self, now: float) -> float:
        """Return for how many seconds the current attempt has trained with its present size. Time in the scheduler's
        queue does not count."""
        assert self.attempt is not None
        began = self.attempt.created_at if self.running_since is None else self.running_since
        return now - max([began, *(one.at for one in self.attempt.resizes)])


@dataclass(frozen=True, slots=True)
class Described:
    """A job as input of the policy, and why it keeps its size ("" = it may change)."""

    job: PoolJob
    hold: str
    limit: str = ""
    """Why it has fewer sizes than its manifest permits; "" = it has all of them."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A size with which the job could run."""

    learners: int
    gpus: int
    batch: int


@dataclass(frozen=True, slots=True)
class _Predicted:
    """The predicted remaining seconds of a job."""

    remaining: np.ndarray
    """For each number of GPUs, with the best batch; infinity = not permitted."""
    batches: np.ndarray
    """The best batch for each number of GPUs."""
    present_s: float
    """With its present size."""


def describe(
    known: KnownJob, pool: ElasticPool, now: float, *, restart_s: float = RESTART_S, possible: Collection[int]
) -> Described | None:
    """Return the job as input of the policy; None if no permitted size fits into the pool.

    `restart_s` is the cost of a change if none of this job was measured. `possible` has the numbers of learners with
    which the job can be planned.
    """
    elastic, learners = known.job.spec.batch.elasticity, known.job.effective_spec.resources.learners
    assert elastic is not None  # it belongs to a pool
    permitted = [one for one in _permitted(known, elastic) if one in possible]
    choices = _choices(known, elastic, permitted, pool.gpus)
    if not choices:
        return None
    predicted, batch = _predict(known, elastic, choices, now), known.job.global_batch or 0
    hold = _hold(known.history, known.attempts, _left_s(known, pool, now)) if known.runs else ""
    if hold:
        predicted.remaining[known.gpus], predicted.batches[known.gpus] = predicted.present_s, batch
    restart_s = _restart_s(known, restart_s)
    is_comparable = known.runs and (hold or learners in permitted)
    job = PoolJob(
        known.job.id,
        predicted.remaining,
        predicted.batches,
        restart_s,
        gpus=known.gpus if known.runs else 0,
        present_batch=batch if known.runs else 0,
        present_remaining_s=predicted.present_s if is_comparable else math.inf,
        restarting_s=_restarting_s(known, restart_s, now),
        weight=elastic.weight,
        tenant=known.job.user,
        held=bool(hold),
    )
    return Described(job, hold, _limit_of(known, elastic))


def _choices(known: KnownJob, elastic: Elastic, permitted: Collection[int], most_gpus: int) -> list[_Choice]:
    """Return the sizes to compare: each permitted number of learners that fits, with its batches."""
    per, batch = known.job.effective_spec.resources.gpus, known.job.global_batch or 0
    return [
        _Choice(learners, gpus, one)
        for learners in permitted
        if (gpus := workers_of(learners, per)) <= most_gpus
        for one in _batches(elastic, gpus, batch, known.history)
    ]


def _predict(known: KnownJob, elastic: Elastic, choices: Sequence[_Choice], now: float) -> _Predicted:
    resources, submitted = known.job.effective_spec.resources, known.job.spec.resources.learners
    first, present = workers_of(submitted, resources.gpus), known.gpus
    # The submitted and the present size come first. They need not be permitted.
    others = [
        _Choice(submitted, first, max(elastic.start, first)),
        _Choice(resources.learners, present, max(known.job.global_batch or 0, present)),
    ]
    submitted_s, now_s, *per_sample = _per_sample_s(known.history, [*others, *choices])
    samples = _remaining_samples(known, submitted_s, now)
    width = max(present, *(one.gpus for one in choices)) + 1
    remaining, batches = np.full(width, math.inf), np.zeros(width, dtype=np.int64)
    for one, seconds in zip(choices, per_sample, strict=True):
        if samples * seconds < remaining[one.gpus]:
            remaining[one.gpus], batches[one.gpus] = samples * seconds, one.batch
    return _Predicted(remaining, batches, samples * now_s)


def _restart_s(known: KnownJob, others_s: float) -> float:
    """Return the cost of a change. It includes the time in the scheduler's queue, and must not rule out all changes."""
    measured = None if known.size is None else known.size.restart_s
    return min(others_s if measured is None else measured, HORIZON_S / 2)


def _restarting_s(known: KnownJob, restart_s: float, now: float) -> float:
    """Return how long the present restart of a running job still takes. It began with the attempt."""
    attempt = known.attempt
    if not known.runs or attempt is None or attempt.resizes or (attempt.number, 0) in known.history.first_at:
        return 0.0
    return min(restart_s, max(0.0, restart_s - (now - attempt.created_at)))


def _left_s(known: KnownJob, pool: ElasticPool, now: float) -> float:
    """Return for how long a running job must still keep its size."""
    left_s = pool.min_between_s - known.has_size_for_s(now)
    return 0.0 if left_s > 2 * pool.min_between_s else left_s  # else the clock was set back


def hinted_most(known: KnownJob, elastic: Elastic) -> int:
    """Return the maximum number of learners, which a hint of the job can lower."""
    hint = known.history.hint
    if not hint:
        return elastic.max_learners
    return max(elastic.min_learners, min(elastic.max_learners, known.history.hint_learners + hint))


def _limit_of(known: KnownJob, elastic: Elastic) -> str:
    most, history = hinted_most(known, elastic), known.history
    if history.hint in (None, HOLD) or most >= elastic.max_learners:
        return ""
    printed = f"the job printed ffdl-scale: {history.hint:+d} with {counted(history.hint_learners, 'learner')}"
    return f"at most {counted(most, 'learner')}, because {printed}"


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


def _permitted(known: KnownJob, elastic: Elastic) -> Iterator[int]:
    """Yield the permitted numbers of learners."""
    least, history, gpus = elastic.min_learners, known.history, known.job.effective_spec.resources.gpus
    measured = history.times.most_gpus
    most_gpus = GROWTH * measured if measured else workers_of(known.job.spec.resources.learners, gpus)
    for number in range(least, hinted_most(known, elastic) + 1):
        if number == least or workers_of(number, gpus) <= most_gpus:
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


def _per_sample_s(history: LearnerHistory, choices: Sequence[_Choice]) -> list[float]:
    """Return the seconds per sample for each choice of learners, GPUs and batch. Each learner counts as a node, as in
    the measurements."""
    learners, gpus, batch = np.array([(one.learners, one.gpus, one.batch) for one in choices]).T
    return [float(one) for one in history.times.predict(learners, gpus, batch // gpus).step_s / batch]


def _remaining_samples(known: KnownJob, per_sample_s: float, now: float) -> float:
    """Return the remaining samples. If unknown, return those that the submitted size can process until the time
    limit."""
    if known.history.remaining is not None:
        return max(known.history.remaining, LEAST_REMAINING_S / per_sample_s)
    limit_s = known.job.effective_spec.batch.limit_s
    left_s = REMAINING_S if limit_s is None else float(limit_s)
    if limit_s is not None and known.runs and known.attempt is not None:
        began = known.attempt.created_at if known.running_since is None else known.running_since
        left_s = max(1.0, left_s - (now - began))
    return left_s / per_sample_s
