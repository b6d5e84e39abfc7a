"""What is wrong in a world: promises, records of learners, stores and rows, held against each other. Pure.

Every judgement has a sentence; the same fault is found at every look, so findings are sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from itertools import pairwise

from ffdl_batch.domain.job.job import HistoryEntry
from ffdl_batch.domain.job_state import DEPLOYED, TERMINAL, Cause, JobState, is_legal
from ffdl_batch.host.fast_dataclass import dataclass
from tests.crash.fuzz.diary import Promises
from tests.crash.fuzz.heads import Fate

EXPECTED_CODES: Mapping[str, str] = {Fate.FAILS: "C201"}
RAN = frozenset({"timeout", "preemption", "node_failure", "failure"})
"""Interruptions of attempts whose learners ran."""

CHARGED: Mapping[str, str] = {
    "timeouts": "timeout", "preemptions": "preemption", "node_failures": "node_failure", "failures": "failure",
}  # fmt: skip
"""What each interruption is charged to."""


@dataclass(frozen=True, slots=True)
class Row:
    """A job's row, as far as it is judged. `name` begins with the job's :class:`~tests.crash.fuzz.heads.Fate`, `array`
    is the id of its array, and `spent` what it used up of its budgets."""

    id: str
    name: str
    state: JobState
    requested_action: str
    attempt: int
    revision: int
    error_code: str
    message: str
    lease_owner: str
    lease_token: str
    lease_until: float
    array: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def fate(self) -> str:
        """The name without an element's index."""
        return self.name.partition("[")[0]


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt's row, as far as it is judged. `is_owing`: what its learners left is still to be stored."""

    number: int
    interruption: str
    error_code: str
    is_simulated: bool = False
    is_owing: bool = False
    ended: bool = False


Executions = Mapping[int, Counter[int]]
"""By attempt: how often each run of it was executed, by what the learners wrote."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """All that is known of one job. `row` is None where the database has none; `unstored` are results of its learners
    that are not in their store, by attempt."""

    id: str
    row: Row | None
    history: Sequence[HistoryEntry] = ()
    attempts: Sequence[AttemptRow] = ()
    executions: Executions = field(default_factory=dict)
    unstored: Mapping[int, Sequence[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """Sentences, by what they are about.

    `lost`: an acknowledged job is unknown, has not ended, ended in a way that nobody asked for, or counts as completed
    without having run; a request that was granted is not there; some jobs of an array are unknown; what a
    learner left is not stored although no upload is pending. `sent_again`: the scheduler was asked for an attempt that
    it already had. `unacknowledged`: executed, but not acknowledged to the user. `left_behind`: half-made files and
    directories. `wrong_answers`: wrong replies to a client.
    """

    lost: set[str] = field(default_factory=set)
    executed_twice: set[str] = field(default_factory=set)
    sent_again: set[str] = field(default_factory=set)
    unacknowledged: set[str] = field(default_factory=set)
    history_faults: set[str] = field(default_factory=set)
    lease_faults: set[str] = field(default_factory=set)
    left_behind: set[str] = field(default_factory=set)
    wrong_answers: set[str] = field(default_factory=set)

    def add(self, other: Findings) -> None:
        """Take over what another look found."""
        for one in fields(self):
            getattr(self, one.name).update(getattr(other, one.name))

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {one.name: len(getattr(self, one.name)) for one in fields(self)}

    def sentences(self) -> list[str]:
        """All of them, with what they are about."""
        return [f"{one.name}: {text}" for one in fields(self) for text in sorted(getattr(self, one.name))]

    @property
    def is_clean(self) -> bool:
        """Whether there are none."""
        return not any(self.counts().values())


def judge_job(facts: JobFacts, granted: int, found: Findings) -> None:
    """What must hold of a job at every moment. `granted` are the resumes that were granted before it was read."""
    for number, runs in facts.executions.items():
        for restart, count in runs.items():
            if count > 1:
                found.executed_twice.add(f"{facts.id}: run {restart} of attempt {number} was executed {count} times")
    row = facts.row
    if row is None:
        if facts.executions:
            found.unacknowledged.add(f"{facts.id}: executed, and the database has no such job")
        return
    fault = fault_in_history(row.state, row.attempt, facts.history, [one.number for one in facts.attempts])
    fault = fault or fault_in_spending(row, facts.history, facts.attempts)
    if fault:
        found.history_faults.add(f"{row.id}: {fault}")
    for attempt in facts.attempts:
        unstored = facts.unstored.get(attempt.number)
        if unstored and attempt.ended and not attempt.is_owing:
            what = ", ".join(unstored)
            found.lost.add(f"{row.id}: attempt {attempt.number} has no pending upload, and {what} is not stored")
    resumed = sum(entry.cause == Cause.RESUMED for entry in facts.history)
    if resumed < granted:
        found.lost.add(f"{row.id}: a granted resume is not in its history")


def judge_request(row: Row, before: str | None, after: str | None, found: Findings) -> None:
    """A granted request is in the row until it has come true. `before` and `after` are the diary's word
    before the row was read and after that: what changed in between says nothing."""
    if before is None or before != after or row.state in TERMINAL or row.requested_action in (before, "cancel"):
        return
    found.lost.add(
        f"{row.id}: the granted request to {before} is not in its row ({row.state}, {row.requested_action} requested)"
    )


def judge_array(array: str, rows: int, jobs: int, found: Findings) -> None:
    """An array is there as a whole or not at all."""
    if rows != jobs:
        found.lost.add(f"{array}: {rows} of its {jobs} jobs are in the database")


def judge_lease(row: Row, owner: str, now: float, earlier: frozenset[str], found: Findings) -> None:
    """A lease is the living daemon's, or over. Its name ends with `owner`; `earlier` are tokens of dead daemons."""
    if row.lease_token and row.lease_until > now:
        if row.state in DEPLOYED or row.state in TERMINAL:
            found.lease_faults.add(f"{row.id}: {row.state}, and leased until {row.lease_until:.1f}")
        if not row.lease_owner.endswith(owner):
            found.lease_faults.add(f"{row.id}: leased to {row.lease_owner}, which is no daemon of this world")
        if row.lease_token in earlier:
            found.lease_faults.add(f"{row.id}: leased to a daemon that is dead")


def judge_end(facts: JobFacts, promises: Promises, acknowledged: frozenset[str], found: Findings) -> None:
    """What must hold of a job when all work is over."""
    row = facts.row
    if facts.id not in acknowledged:
        if facts.executions:
            found.unacknowledged.add(f"{facts.id}: executed, and nobody was told of it")
        return
    if row is None:
        return  # it is lost, and counted so
    why = _wrong_end(row, promises.asked.get(row.id, set())) or _wrong_executions(facts, row)
    if why:
        found.lost.add(f"{row.id} ({row.name}): {why}")


def _wrong_end(row: Row, asked: set[str]) -> str:
    """Why a job must not have ended as it has; "" = it may."""
    if row.state not in TERMINAL:
        return f"it has not ended: {row.state} in attempt {row.attempt}"
    if row.state is JobState.CANCELLED:
        return "" if "cancel" in asked else f"it was cancelled, and nobody asked for that: {row.message}"
    if row.state is JobState.HALTED:
        return "" if asked & {"halt", "cancel"} else f"it was halted, and nobody asked for that: {row.message}"
    expected = EXPECTED_CODES.get(row.fate, "000")
    if row.error_code != expected:
        return f"it ended {row.state} with {row.error_code}, not {expected}: {row.message}"
    return ""


def _wrong_executions(facts: JobFacts, row: Row) -> str:
    """Which attempt's learners did not run although they must have; "" = none."""
    for attempt in facts.attempts:
        if facts.executions.get(attempt.number):
            continue
        if attempt.interruption in RAN:
            return f"attempt {attempt.number} ended by {attempt.interruption} without having run"
        if attempt.number == row.attempt and row.state is JobState.COMPLETED:
            return "it counts as completed without having run"
    return ""


def fault_in_history(state: JobState, attempt: int, history: Sequence[HistoryEntry], attempts: Sequence[int]) -> str:
    """What is wrong with a job's history, "" where it is whole: no gap, no time that goes back, each change legal, each
    attempt after the one before."""
    if [entry.seq for entry in history] != list(range(1, len(history) + 1)) or not history:
        return f"its history has gaps: {[entry.seq for entry in history]}"
    if history[0].state != JobState.PENDING or history[-1].state != state:
        return f"its history begins {history[0].state} and ends {history[-1].state}, the row says {state}"
    times = [entry.at for entry in history]
    if times != sorted(times):
        return f"time goes back in its history: {times}"
    for before, after in pairwise(history):
        if not is_legal(before.state, after.state, Cause(after.cause)):
            return f"entry {after.seq} goes from {before.state} to {after.state} by {after.cause}"
    for before, after in pairwise(entry for entry in history if entry.cause != Cause.STORED):
        untaken = (before.state, after.state) == (JobState.DEPLOYING, JobState.PENDING)  # the scheduler had no room
        if after.attempt - before.attempt not in ((-1, 0) if untaken else (0, 1)):
            return f"entry {after.seq} is of attempt {after.attempt}, the one before of {before.attempt}"
    if list(attempts) != list(range(1, attempt + 1)) or history[-1].attempt > attempt:
        return f"it has attempts {list(attempts)}, the row says {attempt}"
    return ""


def fault_in_spending(row: Row, history: Sequence[HistoryEntry], attempts: Sequence[AttemptRow]) -> str:
    """Return the budget that is charged for more than real interruptions, "" = none. A drill is not charged. A resume
    resets the budgets, so that less may be spent."""
    requeues = sum(entry.cause == Cause.REQUEUED and entry.state is JobState.QUEUED for entry in history)
    for counter, why in CHARGED.items():
        earnest = requeues + sum(one.interruption == why and not one.is_simulated for one in attempts)
        if row.spent.get(counter, 0) > earnest:
            return f"{row.spent[counter]:g} {counter} are charged, and {earnest} came in earnest"
    return ""
