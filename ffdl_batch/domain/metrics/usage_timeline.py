"""For how long a job held what: runs and waits out of its history and its attempts. Pure.

A *run* is one stay of an attempt on its nodes: from the first of DOWNLOADING, PROCESSING, STORING to what follows them.
A scheduler that starts an attempt anew under the same id makes a second run of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ffdl_batch.domain.job_state import TERMINAL, Cause, JobState
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.error_codes import UNSTORED

RUNNING = (JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING)
_BESIDE = frozenset({Cause.RESTARTED.value, Cause.STORED.value})
"""Entries of a history that change no state."""
_STAGING_CPUS = 4.0
"""What an attempt that only brings data gets at most (``services.ahead``)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a job's attempts are given, all learners together; `gpus_each` is that of each learner (of the hungriest,
    where roles differ). `stages_ahead`: an attempt without GPUs brings the data before."""

    learners: int = 1
    gpus_each: float = 0.0
    gpus: float = 0.0
    cpus: float = 0.0
    stages_ahead: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One row of a history."""

    at: float
    state: JobState
    attempt: int
    cause: str = Cause.PROGRESS.value


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """What is known of an attempt beside the history. `gpu_seconds` are those of its last run, by its controller or its
    scheduler (0 = nobody said). `saved_at` is the time of its newest checkpoint."""

    number: int
    created_at: float
    native_id: str = ""
    ended_at: float | None = None
    outcome_code: str = ""
    interruption: str = ""
    gpu_seconds: float = 0.0
    saved_at: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `phases` are state, beginning and end, in order. `gpus` and `cpus` are held all the time; the first is
    the mean of what was recorded, where something was. `end` is the state that it ended in: QUEUED = started anew,
    None = it has not ended."""

    attempt: int
    began: float
    ended: float
    gpus: float
    cpus: float
    phases: tuple[tuple[JobState, float, float], ...] = ()
    end: JobState | None = None

    @property
    def length_s(self) -> float:
        """How long it took, up to now where it goes on."""
        return self.ended - self.began

    def within(self, since: float, until: float) -> float:
        """The seconds of it that lie in a period."""
        return overlap(self.began, self.ended, since, until)

    def phase_within(self, state: JobState, since: float, until: float) -> float:
        """Of one state."""
        return sum(overlap(a, b, since, until) for which, a, b in self.phases if which is state)


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a history comes to. `waits` are attempt, beginning and end of each wait for the nodes that is over. `alive`
    are the times in which the job had not ended."""

    runs: tuple[Run, ...] = ()
    waits: tuple[tuple[int, float, float], ...] = ()
    alive: tuple[tuple[float, float], ...] = ()


def overlap(began: float, ended: float, since: float, until: float) -> float:
    """The seconds that two stretches of time share."""
    return max(0.0, min(ended, until) - max(began, since))


def timeline(steps: Sequence[Step], attempts: Mapping[int, AttemptRecord], asked: Asked, now: float) -> Timeline:
    """Of one job; `steps` are all of its history in order, `now` is where what goes on is cut."""
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
    """And the runs of attempts of which no phase was seen, though they held GPUs: they failed before they said one."""
    seen = {run.attempt for run in runs}
    for record in attempts.values():
        if record.number in seen or not record.gpu_seconds or record.ended_at is None or not asked.gpus:
            continue
        after = (e.state for e in entries if e.at >= record.created_at and e.state in TERMINAL)
        length = min(record.gpu_seconds / asked.gpus, record.ended_at - record.created_at)
        end = next(after, JobState.QUEUED)
        runs.append(Run(record.number, record.ended_at - max(0.0, length), record.ended_at, 0.0, 0.0, (), end))
    return sorted(runs, key=lambda run: (run.began, run.attempt))


def _weigh(run: Run, attempts: Mapping[int, AttemptRecord], asked: Asked, *, is_last: bool) -> Run:
    """With what it held, and with the end of its attempt, which may lie before that of its job."""
    record = attempts.get(run.attempt)
    if record is None:
        return replace(run, gpus=asked.gpus, cpus=asked.cpus)
    if is_last and record.ended_at is not None and run.began <= record.ended_at < run.ended:
        run = _cut(run, record.ended_at)
    if _only_stages(record, attempts, asked):
        return replace(run, gpus=0.0, cpus=min(asked.cpus / max(1, asked.learners), _STAGING_CPUS))
    gpus = asked.gpus
    if is_last and record.ended_at is not None and record.gpu_seconds and run.length_s > 0:
        gpus = record.gpu_seconds / run.length_s
    return replace(run, gpus=gpus, cpus=asked.cpus)


def _only_stages(record: AttemptRecord, attempts: Mapping[int, AttemptRecord], asked: Asked) -> bool:
    if record.interruption == Interruption.STAGED.value:
        return True
    staged = any(one.interruption == Interruption.STAGED.value for one in attempts.values())
    return asked.stages_ahead and not staged and not record.gpu_seconds


def _cut(run: Run, at: float) -> Run:
    phases = tuple((state, began, min(ended, at)) for state, began, ended in run.phases if began <= at)
    return replace(run, ended=at, phases=phases)


def _waits(entries: Sequence[Step]) -> Iterable[tuple[int, float, float]]:
    """From when an attempt could wait (its job was submitted, or what was before it had ended) to its first phase."""
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
    """Work of one run that nobody has: of `attempt`, between two times, by `gpus`."""

    attempt: int
    began: float
    ended: float
    gpus: float
    end: JobState | None = None

    def within(self, since: float, until: float) -> float:
        """GPU-seconds of it in a period."""
        return self.gpus * overlap(self.began, self.ended, since, until)


def losses(line: Timeline, attempts: Mapping[int, AttemptRecord]) -> list[Loss]:
    """What was processed after the last checkpoint of runs that did not end well. Of a run that was started anew no
    checkpoint is known but one that lies in it."""
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
    """It brought the data, which are there; or it was done, and what it left is stored later."""
    if record is None:
        return False
    return record.interruption == Interruption.STAGED.value or record.outcome_code == UNSTORED[0]
