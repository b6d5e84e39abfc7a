"""Advice on the resources of a job: what is known of earlier jobs like it, and the rules that need no model. Pure.

Memory is that of one learner. Batches are samples of one step on all GPUs.
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
"""Ends that are further away are not predicted."""
SAFETY = 1.2
"""Memory and time limits are this many times what was measured."""
PERCENTILE = 0.95
MEMORY_STEP, LIMIT_STEP_S = 100 * 1000**2, 300
"""Memory and time limits are rounded up to multiples of these."""
AFTER_KILL = 1.5
"""The memory that is advised after a job ran out of memory, in units of what it had."""
TOLERATED_COST = 1.25
"""The recommended choice costs at most this many times the cheapest one."""
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
    """What was measured of one attempt. None = it was not."""

    form: Form
    workers: int
    """GPUs among which the batch is divided."""
    run_s: float
    """Time on its nodes."""
    processing_s: float
    """Time in which its learners ran."""
    nodes: int = 1
    samples_per_s: float | None = None
    remaining: float | None = None
    """The most samples that it reported as remaining."""
    memory_bytes: int | None = None
    """The most that a learner had in a sample."""
    gpu_use: float | None = None
    """Share of the time in which its GPUs were busy."""
    cpu_use: float | None = None
    """Share of its CPUs that were busy."""
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class LikeJob:
    """An earlier job like the one that advice is given for."""

    id: str
    completed: bool
    attempts: tuple[PastAttempt, ...]
    """Those that ran, oldest first."""
    killed_at_bytes: int | None = None
    """Its memory, if a learner was killed because that was used up."""
    stragglers: int = 0

    @property
    def run_s(self) -> float:
        """Its time on nodes."""
        return math.fsum(one.run_s for one in self.attempts)

    @property
    def samples(self) -> float | None:
        """The samples that the whole job processes; None = not known."""
        if self.completed and self.attempts and all(one.samples_per_s is not None for one in self.attempts):
            return math.fsum((one.samples_per_s or 0.0) * one.processing_s for one in self.attempts)
        return max((one.remaining for one in self.attempts if one.remaining is not None), default=None)

    @property
    def form(self) -> Form | None:
        """Its size; None if that changed, or if it never ran."""
        forms = {one.form for one in self.attempts}
        return forms.pop() if len(forms) == 1 else None


@dataclass(frozen=True, slots=True)
class Choice:
    """A size that the job could have. None = not known."""

    form: Form
    workers: int
    samples_per_s: float | None = None
    relative_std: float | None = None
    """The standard deviation of the predicted speed, as a fraction; None = the time was measured."""
    extrapolates: bool = False
    """Whether the size is outside what was measured."""
    exchange: float | None = None
    """Share of a step in which GPUs wait for the exchange of gradients, according to the model."""
    time_s: float | None = None
    gpu_hours: float | None = None
    cpu_hours: float | None = None
    cost: float | None = None
    """None = the site has set no prices, too."""
    time_limit_s: int | None = None
    recommended: bool = False


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """Memory of each learner, and what it rests on."""

    advised_bytes: int
    peak_bytes: int | None
    """The most that a learner had; None = it was not measured."""
    attempts: int
    """How many attempts were measured."""


@dataclass(frozen=True, slots=True)
class CheckpointAdvice:
    """How often to save a checkpoint (Young 1974, Daly 2006), and what it rests on."""

    interval_s: float
    checkpoint_s: float
    """Median of the measured times of a checkpoint."""
    checkpoints: int
    preemptions: int
    ran_s: float
    """How long the user's jobs ran there, in all."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for a manifest."""

    name: str
    framework: str
    backend: str
    jobs: tuple[str, ...]
    """Earlier jobs that it rests on, newest first."""
    choices: tuple[Choice, ...] = ()
    memory: MemoryAdvice | None = None
    checkpoint: CheckpointAdvice | None = None
    notes: tuple[str, ...] = ()
    profile: tuple[Form, ...] = ()
    """Sizes of short runs that would measure the throughput."""
    currency: str = ""
    has_costs: bool = False


def time_limit(run_times_s: Sequence[float]) -> int:
    """Return the time limit after these runs: SAFETY times the PERCENTILE of them."""
    ordered = sorted(run_times_s)
    usual = ordered[math.ceil(PERCENTILE * len(ordered)) - 1]
    return LIMIT_STEP_S * math.ceil(usual * SAFETY / LIMIT_STEP_S)


def advise_memory(jobs: Iterable[LikeJob]) -> MemoryAdvice | None:
    """Return the memory after these jobs; None if none of them was measured or ran out of memory."""
    jobs = list(jobs)
    peaks = [one.memory_bytes for job in jobs for one in job.attempts if one.memory_bytes]
    killed = [job.killed_at_bytes for job in jobs if job.killed_at_bytes]
    least = max([SAFETY * peak for peak in peaks] + [AFTER_KILL * had for had in killed], default=0.0)
    if not least:
        return None
    return MemoryAdvice(MEMORY_STEP * math.ceil(least / MEMORY_STEP), max(peaks, default=None), len(peaks))


def advise_checkpoints(times_s: Sequence[float], preemptions: int, ran_s: float) -> CheckpointAdvice | None:
    """Return sqrt(2 t M) for checkpoints of t seconds and one preemption in M seconds; None if either is not known."""
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
    """Return the choices by size, with the fastest of the cheap ones marked.

    Choices that extrapolate are not recommended, nor those with a batch that is not usual: a larger batch may need more
    samples, which no measurement of speed shows.
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
    """Return the time, or that of one sample if the number of samples is not known."""
    if choice.time_s is not None or choice.samples_per_s is None:
        return choice.time_s
    return 1 / choice.samples_per_s


def find_bottleneck(attempt: PastAttempt, exchange: float | None) -> str:
    """Return what limits the speed of an attempt, and what to do; "" if nothing is known to limit it."""
    exchange = 0.0 if attempt.workers == 1 else exchange
    if exchange is None:
        return ""
    if exchange >= MOST_EXCHANGE:
        workers = counted(attempt.workers, "GPU" if attempt.form.gpus else "learner")
        return (
            f"sync-bound: on {workers}, {exchange:.0%} of a step is exchange of gradients, "
            "according to the model; use fewer of them, or a larger batch"
        )
    if attempt.gpu_use is None or attempt.gpu_use + exchange >= LEAST_USE:
        return ""
    has_busy_cpus = attempt.cpu_use is not None and attempt.cpu_use >= BUSY_CPUS
    cure = "its CPUs are busy: request more CPUs" if has_busy_cpus else "read data with more workers, or cache them"
    return (
        f"input-bound: its GPUs were busy {attempt.gpu_use:.0%} of the time, and the exchange of gradients explains "
        f"at most {exchange:.0%}; {cure}"
    )


def history_notes(jobs: Sequence[LikeJob]) -> list[str]:
    """Return what the user should know about these jobs."""
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
    """Return when all samples will be processed, from reports in order: time, samples per second, remaining samples.

    The speed is the median of the reports. None if there is none, or if that would take longer than LONGEST_S.
    """
    if not reports:
        return None
    at, _, remaining = reports[-1]
    left_s = remaining / statistics.median(speed for _, speed, _ in reports)
    return at + left_s if left_s <= LONGEST_S else None
