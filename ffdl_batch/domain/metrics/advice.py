"""Advise on the resources of a job: measurements of earlier jobs like it, and the rules that need no model. Pure.

Memory is per learner. Batches are samples per step on all GPUs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import format_size
from ffdl_batch.host.fast_dataclass import dataclass

LONGEST_S = 10 * 365 * 86400.0
"""An end that is further away than this is not predicted."""
SAFETY = 1.2
"""Advised memory and time limits, as a multiple of the measured values."""
PERCENTILE = 0.95
MEMORY_STEP, LIMIT_STEP_S = 100 * 1000**2, 300
"""Memory and time limits are rounded up to multiples of these."""
AFTER_KILL = 1.5
"""Advised memory after a job ran out of memory, as a multiple of what it had."""
TOLERATED_COST = 1.25
"""Maximum cost of the recommended choice, as a multiple of the cheapest one."""
MOST_EXCHANGE, LEAST_USE = 0.3, 0.6
BUSY_CPUS = 0.9


@dataclass(frozen=True, slots=True)
class Form:
    """A size of a job."""

    learners: int
    gpus: float
    """Of each learner."""
    batch: int | None = None
    """None = the job is not elastic."""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """Measurements of one attempt. None = not measured."""

    form: Form
    workers: int
    """Number of GPUs that share the batch."""
    run_s: float
    """Time on its nodes."""
    processing_s: float
    """Time in which its learners ran."""
    nodes: int = 1
    samples_per_s: float | None = None
    remaining: float | None = None
    """The largest number of samples that it reported as remaining."""
    memory_bytes: int | None = None
    """The highest memory of a learner in any usage sample."""
    gpu_use: float | None = None
    """Fraction of the time in which its GPUs were busy."""
    cpu_use: float | None = None
    """Fraction of its CPUs that were busy."""
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class LikeJob:
    """An earlier job that is like the one to advise on."""

    id: str
    completed: bool
    attempts: tuple[PastAttempt, ...]
    """Those that ran, oldest first."""
    killed_at_bytes: int | None = None
    """Its memory limit, if a learner was killed because it ran out of memory."""
    stragglers: int = 0

    @property
    def run_s(self) -> float:
        """Its time on nodes."""
        return math.fsum(one.run_s for one in self.attempts)

    @property
    def samples(self) -> float | None:
        """The number of samples that the whole job processes; None = unknown."""
        if self.completed and self.attempts and all(one.samples_per_s is not None for one in self.attempts):
            return math.fsum((one.samples_per_s or 0.0) * one.processing_s for one in self.attempts)
        return max((one.remaining for one in self.attempts if one.remaining is not None), default=None)

    @property
    def form(self) -> Form | None:
        """Its size; None if it changed, or if the job never ran."""
        forms = {one.form for one in self.attempts}
        return forms.pop() if len(forms) == 1 else None


@dataclass(frozen=True, slots=True)
class Choice:
    """A size that the job could have. None = unknown."""

    form: Form
    workers: int
    samples_per_s: float | None = None
    relative_std: float | None = None
    """The standard deviation of the predicted speed, as a fraction; None = the time was measured."""
    extrapolates: bool = False
    """Whether the size is outside the measured range."""
    exchange: float | None = None
    """Fraction of a step in which GPUs wait for the gradient exchange, according to the model."""
    time_s: float | None = None
    gpu_hours: float | None = None
    cpu_hours: float | None = None
    cost: float | None = None
    """None = unknown, or the site has set no prices."""
    time_limit_s: int | None = None
    recommended: bool = False


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """Memory of each learner, and the measurements on which it is based."""

    advised_bytes: int
    peak_bytes: int | None
    """The highest measured memory of a learner; None = not measured."""
    attempts: int
    """Number of measured attempts."""


@dataclass(frozen=True, slots=True)
class CheckpointAdvice:
    """How often to save a checkpoint (Young 1974, Daly 2006), and the measurements on which this is based."""

    interval_s: float
    checkpoint_s: float
    """Median of the measured checkpoint times."""
    checkpoints: int
    preemptions: int
    ran_s: float
    """Total time for which the user's jobs ran in this partition."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for a manifest."""

    name: str
    framework: str
    backend: str
    jobs: tuple[str, ...]
    """Earlier jobs on which it is based, newest first."""
    choices: tuple[Choice, ...] = ()
    memory: MemoryAdvice | None = None
    checkpoint: CheckpointAdvice | None = None
    notes: tuple[str, ...] = ()
    profile: tuple[Form, ...] = ()
    """Sizes of short runs that would measure the throughput."""
    currency: str = ""
    has_costs: bool = False


def time_limit(run_times_s: Sequence[float]) -> int:
    """Return the time limit to advise: SAFETY times the PERCENTILE of these run times."""
    ordered = sorted(run_times_s)
    usual = ordered[math.ceil(PERCENTILE * len(ordered)) - 1]
    return LIMIT_STEP_S * math.ceil(usual * SAFETY / LIMIT_STEP_S)


def advise_memory(jobs: Iterable[LikeJob]) -> MemoryAdvice | None:
    """Return the memory to advise; None if none of these jobs was measured or ran out of memory."""
    jobs = list(jobs)
    peaks = [one.memory_bytes for job in jobs for one in job.attempts if one.memory_bytes]
    killed = [job.killed_at_bytes for job in jobs if job.killed_at_bytes]
    least = max([SAFETY * peak for peak in peaks] + [AFTER_KILL * had for had in killed], default=0.0)
    if not least:
        return None
    return MemoryAdvice(MEMORY_STEP * math.ceil(least / MEMORY_STEP), max(peaks, default=None), len(peaks))


def advise_checkpoints(times_s: Sequence[float], preemptions: int, ran_s: float) -> CheckpointAdvice | None:
    """Return sqrt(2 t M) for checkpoints of t seconds and one preemption in M seconds; None if either is unknown."""
    if not times_s or not preemptions:
        return None
    usual = statistics.median(times_s)
    interval = math.sqrt(2 * usual * ran_s / preemptions)
    return CheckpointAdvice(interval, usual, len(times_s), preemptions, ran_s)


def measured_choices(jobs: Iterable[LikeJob]) -> list[Choice]:
    """Return the sizes at which jobs completed, with the median of their times."""
    times: dict[tuple[Form, int], list[float]] = {}
    for job in jobs:
        if job.completed and job.form is not None:
            times.setdefault((job.form, job.attempts[0].workers), []).append(job.run_s)
    return [
        Choice(form, workers, time_s=statistics.median(runs), time_limit_s=time_limit(runs))
        for (form, workers), runs in times.items()
    ]


def recommend(choices: Sequence[Choice], is_usual: Callable[[Form], bool]) -> list[Choice]:
    """Return the choices in order of size, with the fastest of the cheap ones marked.

    Extrapolated choices are not recommended. Neither are choices with an unusual batch: a larger batch may need more
    samples, and speed measurements do not show that.
    """
    candidates = {
        number: duration
        for number, choice in enumerate(choices)
        if (duration := _duration(choice)) is not None and not choice.extrapolates and is_usual(choice.form)
    }
    price = {number: choices[number].workers * duration for number, duration in candidates.items()}
    cheap = [number for number in candidates if price[number] <= TOLERATED_COST * min(price.values())]
    best = min(cheap, key=lambda number: (candidates[number], price[number]), default=None)
    marked = [replace(choice, recommended=number == best) for number, choice in enumerate(choices)]
    return sorted(marked, key=lambda one: (one.workers, one.form.batch or 0))


def _duration(choice: Choice) -> float | None:
    """Return the time of the job, or of one sample if the number of samples is unknown."""
    if choice.time_s is not None or choice.samples_per_s is None:
        return choice.time_s
    return 1 / choice.samples_per_s


def find_bottleneck(attempt: PastAttempt, exchange: float | None) -> str:
    """Return what limits the speed of an attempt, and what to do about it; "" if no limit is known."""
    exchange = 0.0 if attempt.workers == 1 else exchange
    if exchange is None:
        return ""
    if exchange >= MOST_EXCHANGE:
        kind = "GPU" if attempt.form.gpus else "learner"
        return (
            f"sync-bound: on {counted(attempt.workers, kind)}, the gradient exchange takes {exchange:.0%} of a step, "
            f"according to the model; use fewer {kind}s, or a larger batch"
        )
    if attempt.gpu_use is None or attempt.gpu_use + exchange >= LEAST_USE:
        return ""
    has_busy_cpus = attempt.cpu_use is not None and attempt.cpu_use >= BUSY_CPUS
    cure = "its CPUs are busy: request more CPUs" if has_busy_cpus else "read data with more workers, or cache the data"
    return (
        f"input-bound: its GPUs were busy {attempt.gpu_use:.0%} of the time, and the gradient exchange explains at "
        f"most {exchange:.0%}; {cure}"
    )


def history_notes(jobs: Sequence[LikeJob]) -> list[str]:
    """Return notes on time limits, memory and slow learners of these jobs."""
    notes = []
    if timed_out := sum(one.timed_out for job in jobs for one in job.attempts):
        notes.append(f"{counted(timed_out, 'attempt')} reached the time limit")
    if killed := [job for job in jobs if job.killed_at_bytes]:
        most = format_size(max(job.killed_at_bytes or 0 for job in killed))
        notes.append(f"{counted(len(killed), 'job')} ran out of memory, with at most {most} for each learner")
    if slow := [job.id for job in jobs if job.stragglers]:
        notes.append(f"slow learners made the others wait in {', '.join(slow)}; see: ffdl show {slow[0]}")
    return notes


def expected_end(reports: Sequence[tuple[float, float, float]]) -> float | None:
    """Predict when all samples will be processed, from reports in order: time, samples per second, remaining samples.

    The speed is the median of the reports. Return None if there is no report, or if the end is further away than
    LONGEST_S.
    """
    if not reports:
        return None
    at, _, remaining = reports[-1]
    left_s = remaining / statistics.median(speed for _, speed, _ in reports)
    return at + left_s if left_s <= LONGEST_S else None
