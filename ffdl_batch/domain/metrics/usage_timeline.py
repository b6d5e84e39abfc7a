"""How long a job held which resources: runs and waits from its history and its attempts. Pure.

A *run* is one stay of an attempt on its nodes: from the first of DOWNLOADING, PROCESSING, STORING to the next other
state. If the scheduler starts an attempt again under the same id, that is a second run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.domain.job_state import TERMINAL, Cause, JobState
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.error_codes import UNSTORED
from ffdl_batch.host.fast_dataclass import dataclass

RUNNING = (JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING)
_BESIDE = frozenset({Cause.RESTARTED.value, Cause.STORED.value, Cause.RESIZED.value})
"""Entries of a history that change no state."""
_STAGING_CPUS = 4.0
"""Maximum for an attempt that only brings data (``services.ahead``)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the attempts of a job get, all learners together."""

    learners: int = 1
    gpus_each: float = 0.0
    """Of each learner; of the one with the most GPUs, if roles differ."""
    gpus: float = 0.0
    cpus: float = 0.0
    stages_ahead: bool = False
    """Whether an attempt without GPUs brings the data first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One row of a history."""

    at: float
    state: JobState
    attempt: int
    cause: str = Cause.PROGRESS.value


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """What is known of an attempt beside the history."""

    number: int
    created_at: float
    native_id: str = ""
    ended_at: float | None = None
    outcome_code: str = ""
    interruption: str = ""
    gpu_seconds: float = 0.0
    """Of its last run, according to its controller or its scheduler; 0 = not reported."""
    saved_at: float | None = None
    """Time of its newest checkpoint."""
    gpus: float | None = None
    """GPUs that it holds, with shares as fractions of a GPU; None = the requested ones."""
    sizes: tuple[tuple[float, int], ...] = ()
    """Time and number of learners of each size, oldest first; the first time is its creation. () = unknown."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run. It holds `gpus` and `cpus` all the time; `gpus` is the mean of recorded values, if there are any."""

    attempt: int
    began: float
    ended: float
    gpus: float
    cpus: float
    phases: tuple[tuple[JobState, float, float], ...] = ()
    """State, beginning and end, in order."""
    end: JobState | None = None
    """State in which it ended; QUEUED = started again, None = it has not ended."""

    @property
    def length_s(self) -> float:
        """Its duration, up to now if it has not ended."""
        return self.ended - self.began

    def within(self, since: float, until: float) -> float:
        """Return the seconds of the run in a period."""
        return overlap(self.began, self.ended, since, until)

    def phase_within(self, state: JobState, since: float, until: float) -> float:
        """Return the seconds of one state in a period."""
        return sum(overlap(a, b, since, until) for which, a, b in self.phases if which is state)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The runs and waits of a job."""

    runs: tuple[Run, ...] = ()
    waits: tuple[tuple[int, float, float], ...] = ()
    """Attempt, beginning and end of each wait for the nodes that is over."""
    alive: tuple[tuple[float, float], ...] = ()
    """The periods in which the job had not ended."""


def in_parts(line: Timeline, part: float) -> Timeline:
    """Return the timeline of a job whose devices are each this fraction of a GPU."""
    return line if part == 1 else replace(line, runs=tuple(replace(run, gpus=run.gpus * part) for run in line.runs))


def overlap(began: float, ended: float, since: float, until: float) -> float:
    """Return the seconds that two periods share."""
    return max(0.0, min(ended, until) - max(began, since))


def timeline(steps: Sequence[Step], attempts: Mapping[int, AttemptRecord], asked: Asked, now: float) -> Timeline:
    """Return the timeline of one job. `steps` is its whole history in order; what has not ended is cut at `now`."""
    entries = [step for step in steps if step.cause not in _BESIDE]
    runs = _with_unseen(list(_runs(entries, now)), entries, attempts, asked)
    last = {run.attempt: number for number, run in enumerate(runs)}
    weighed = (_weigh(run, attempts, asked, is_last=last[run.attempt] == n) for n, run in enumerate(runs))
    return Timeline(tuple(weighed), tuple(_waits(entries)), tuple(_alive(entries, now)))


def _runs(entries: Sequence[Step], now: float) -> Iterable[Run]:
    phases: list[tuple[JobState, float, float]] = []
    for at, entry in enumerate(entries):
        after = entries[at + 1] if at + 1 < len(entries) else None
        if entry.state not in RUNNING:
            continue
        ended = max(entry.at, after.at if after is not None else now)
        phases.append((entry.state, entry.at, ended))
        if after is None or after.state not in RUNNING or after.attempt != entry.attempt:
            end = after.state if after is not None else None
            yield Run(entry.attempt, phases[0][1], ended, 0.0, 0.0, tuple(phases), end)
            phases = []


def _with_unseen(
    runs: list[Run], entries: Sequence[Step], attempts: Mapping[int, AttemptRecord], asked: Asked
) -> list[Run]:
    """Return the runs, and those of attempts that held GPUs and failed before they reported a phase."""
    seen = {run.attempt for run in runs}
    for record in attempts.values():
        gpus = asked.gpus if record.gpus is None else record.gpus
        if record.number in seen or not record.gpu_seconds or record.ended_at is None or not gpus:
            continue
        after = (e.state for e in entries if e.at >= record.created_at and e.state in TERMINAL)
        length = min(record.gpu_seconds / gpus, record.ended_at - record.created_at)
        end = next(after, JobState.QUEUED)
        runs.append(Run(record.number, record.ended_at - max(0.0, length), record.ended_at, 0.0, 0.0, (), end))
    return sorted(runs, key=lambda run: (run.began, run.attempt))


def _weigh(run: Run, attempts: Mapping[int, AttemptRecord], asked: Asked, *, is_last: bool) -> Run:
    """Return the run with its resources, and with the end of its attempt, which may be before that of its job."""
    record = attempts.get(run.attempt)
    if record is None:
        return replace(run, gpus=asked.gpus, cpus=asked.cpus)
    asked, gpus = _of_its_sizes(run, record, asked)
    if is_last and record.ended_at is not None and run.began <= record.ended_at < run.ended:
        run = _cut(run, record.ended_at)
    if _only_stages(record, attempts, asked):
        return replace(run, gpus=0.0, cpus=min(asked.cpus / max(1, asked.learners), _STAGING_CPUS))
    if is_last and record.ended_at is not None and record.gpu_seconds and run.length_s > 0:
        gpus = record.gpu_seconds / run.length_s
    return replace(run, gpus=gpus, cpus=asked.cpus)


def _of_its_sizes(run: Run, record: AttemptRecord, asked: Asked) -> tuple[Asked, float]:
    """Return the mean resources that the run of an attempt got, and the mean number of GPUs that it held."""
    gpus = asked.gpus if record.gpus is None else record.gpus
    if not record.sizes or run.length_s <= 0 or not asked.learners:
        return asked, gpus
    ends = [*(at for at, _ in record.sizes[1:]), run.ended]
    learner_s = sum(count * run.within(at, end) for (at, count), end in zip(record.sizes, ends, strict=True))
    mean = learner_s / run.length_s
    share = mean / asked.learners
    got = replace(asked, gpus=share * asked.gpus, cpus=share * asked.cpus)
    return got, got.gpus if record.gpus is None else record.gpus * mean / record.sizes[0][1]


def _only_stages(record: AttemptRecord, attempts: Mapping[int, AttemptRecord], asked: Asked) -> bool:
    if record.interruption == Interruption.STAGED.value:
        return True
    staged = any(one.interruption == Interruption.STAGED.value for one in attempts.values())
    return asked.stages_ahead and not staged and not record.gpu_seconds


def _cut(run: Run, at: float) -> Run:
    phases = tuple((state, began, min(ended, at)) for state, began, ended in run.phases if began <= at)
    return replace(run, ended=at, phases=phases)


def _waits(entries: Sequence[Step]) -> Iterable[tuple[int, float, float]]:
    """Yield waits: from the submission of the job or the end of the previous attempt to the first phase of an
    attempt."""
    since: float | None = None
    for entry in entries:
        if entry.state in RUNNING:
            if since is not None:
                yield entry.attempt, since, max(since, entry.at)
            since = None
        elif entry.state in TERMINAL:
            since = None
        elif since is None:
            since = entry.at


def _alive(entries: Sequence[Step], now: float) -> Iterable[tuple[float, float]]:
    began: float | None = None
    for entry in entries:
        if entry.state in TERMINAL:
            if began is not None:
                yield began, entry.at
            began = None
        elif began is None:
            began = entry.at
    if began is not None:
        yield began, now


@dataclass(frozen=True, slots=True)
class Loss:
    """Lost work of one run."""

    attempt: int
    began: float
    ended: float
    gpus: float
    end: JobState | None = None

    def within(self, since: float, until: float) -> float:
        """Return its GPU-seconds in a period."""
        return self.gpus * overlap(self.began, self.ended, since, until)


def losses(line: Timeline, attempts: Mapping[int, AttemptRecord]) -> list[Loss]:
    """Return what was processed after the last checkpoint of runs that did not end well. For a run that was followed by
    another of the same attempt, only a checkpoint within the run is known."""
    found = []
    last = {run.attempt: run for run in line.runs}
    for run in line.runs:
        record = attempts.get(run.attempt)
        worked = [(a, b) for state, a, b in run.phases if state is JobState.PROCESSING]
        if run.end is None or run.end is JobState.COMPLETED or not worked or _has_its_work(record):
            continue
        began, ended = worked[0][0], worked[-1][1]
        saved = record.saved_at if record is not None else None
        if saved is not None and began <= saved and (run is last[run.attempt] or saved <= run.ended):
            began = saved
        if ended > began:
            found.append(Loss(run.attempt, began, ended, run.gpus, run.end))
    return found


def _has_its_work(record: AttemptRecord | None) -> bool:
    """Return whether the work is not lost: the attempt brought data, which exist, or it was done and has a pending
    upload."""
    if record is None:
        return False
    return record.interruption == Interruption.STAGED.value or record.outcome_code == UNSTORED[0]
