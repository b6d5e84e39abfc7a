"""Define the rules for the rows of a job, and return each violation as a sentence. Pure.

The rules use only columns that every schema revision has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job_state import DEPLOYED, TERMINAL, Cause, JobState, RequestedAction, is_legal
from ffdl_batch.host.fast_dataclass import dataclass

LONGEST_LEASE_S = 3600.0
"""Leases last for minutes: a longer one comes from a wrong clock."""
_STATES = frozenset(state.value for state in JobState)
_REQUESTED_ACTIONS = frozenset(request.value for request in RequestedAction)
_CAUSES = frozenset(cause.value for cause in Cause)


@dataclass(frozen=True, slots=True)
class JobRow:
    """Columns of ``jobs``, by their names, as they are stored."""

    id: str
    state: str
    requested_action: str
    attempt: int
    native_id: str
    ended_at: float | None
    lease_owner: str
    lease_token: str
    lease_until: float


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """Columns of ``history``."""

    job_id: str
    seq: int
    at: float
    state: str
    attempt: int
    cause: str


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """Columns of ``attempts``."""

    job_id: str
    number: int
    token: str
    native_id: str
    ended_at: float | None


def faults_of(job: JobRow, history: Sequence[HistoryRow], attempts: Sequence[AttemptRow], now: float) -> list[str]:
    """Return the faults of a job. `history` and `attempts` are in order."""
    unknown = list(_unknown_values(job, history))
    if unknown:
        return unknown
    return [*_in_history(job, history), *_in_attempts(job, history, attempts), *_in_lease(job, now)]


def _unknown_values(job: JobRow, history: Sequence[HistoryRow]) -> Iterator[str]:
    if job.state not in _STATES:
        yield f"its state {job.state!r} is unknown"
    if job.requested_action not in _REQUESTED_ACTIONS:
        yield f"its request {job.requested_action!r} is unknown"
    for entry in history:
        if entry.state not in _STATES or entry.cause not in _CAUSES:
            yield f"entry {entry.seq} of its history, {entry.state!r} because of {entry.cause!r}, is unknown"


def _in_history(job: JobRow, history: Sequence[HistoryRow]) -> Iterator[str]:
    numbers = [entry.seq for entry in history]
    if numbers != list(range(1, len(history) + 1)) or not history:
        yield f"its history has a gap: it has the entries {numbers}" if history else "it has no history"
        return
    if history[0].state != JobState.PENDING:
        yield f"its history begins with {history[0].state}"
    if history[-1].state != job.state:
        yield f"its history ends with {history[-1].state}, but it is {job.state}"
    for before, after in pairwise(history):
        if not is_legal(JobState(before.state), JobState(after.state), Cause(after.cause)):
            yield f"entry {after.seq} of its history goes from {before.state} to {after.state} because of {after.cause}"
        if after.at < before.at:
            yield f"entry {after.seq} of its history is earlier than the one before"
    for before, after in pairwise(entry for entry in history if entry.cause != Cause.STORED):
        if after.attempt - before.attempt not in (0, 1):
            yield f"entry {after.seq} of its history is of attempt {after.attempt}, the one before of {before.attempt}"
    if (job.ended_at is not None) != (job.state in TERMINAL):
        yield f"it is {job.state} and has {'an' if job.ended_at is not None else 'no'} end"


def _in_attempts(job: JobRow, history: Sequence[HistoryRow], attempts: Sequence[AttemptRow]) -> Iterator[str]:
    numbers = [one.number for one in attempts]
    if numbers != list(range(1, job.attempt + 1)):
        yield f"it is in attempt {job.attempt} and has the attempts {numbers}"
        return
    for one in attempts:
        if one.token != attempt_token(JobId(job.id), one.number):
            yield f"attempt {one.number} has the token {one.token!r}"
        if one.ended_at is None and one.number < job.attempt:
            yield f"attempt {one.number} has no end, and a later one has begun"
    alive = [entry.state for entry in history if entry.state not in TERMINAL]
    if not alive:
        return
    has_current = bool(attempts) and alive[-1] != JobState.PENDING
    expected = attempts[-1].native_id if has_current else ""
    if job.native_id != expected:
        yield f"its scheduler's id is {job.native_id!r}, that of its attempt {expected!r}"


def _in_lease(job: JobRow, now: float) -> Iterator[str]:
    if bool(job.lease_token) != bool(job.lease_owner):
        yield f"its lease has the owner {job.lease_owner!r} and the token {job.lease_token!r}"
    if not job.lease_token or job.lease_until <= now:
        return
    if job.state in DEPLOYED or job.state in TERMINAL:
        yield f"it is {job.state}, and leased by {job.lease_owner} for its deployment"
    if job.lease_until - now > LONGEST_LEASE_S:
        yield f"it is leased for {job.lease_until - now:.0f} s more: a clock was wrong"
