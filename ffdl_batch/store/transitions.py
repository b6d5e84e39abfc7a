"""Change jobs: a pure function decides what a change means, one transaction writes it.

Every change locks its rows and compares `revision` (and the lease's token); it is dropped if another process changed
the job first. Rows are locked in the order of ids, so that two transactions never wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.engine import Connection

from ffdl_batch.domain.job.job import Change, HistoryEntry, Job, JobId, attempt_token
from ffdl_batch.domain.job_state import DEPLOYED, Cause, JobState, RequestedAction, advance, is_legal
from ffdl_batch.domain.outcome.continuation import Spent
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.batched_writes import Step, Writes, add_entry
from ffdl_batch.store.database import Database
from ffdl_batch.store.queries import chunks
from ffdl_batch.store.records import (
    JOB_COLUMNS,
    JOB_FIELDS,
    JobReader,
    SizeState,
    attempt_end_columns,
    encode_resizes,
)
from ffdl_batch.store.schema import ATTEMPTS, ELASTIC_SIZES, HISTORY, JOBS

CHANGEABLE = frozenset(JOB_FIELDS) - {
    "id", "uid", "user", "spec", "state", "backend", "attempt", "revision", "submitted_at", "updated_at",
}  # fmt: skip
_FRESH: dict[str, object] = {
    "ended_at": None, "error_code": "000", "message": "", "exit_code": None, "exit_signal": None,
    "log_tail": (), "requested_action": RequestedAction.NONE, "spent": Spent(),
}  # fmt: skip
_UNLEASED: dict[str, Any] = {"lease_owner": "", "lease_token": "", "lease_until": 0.0}
_OF_AN_ATTEMPT = ("native_id", "network", "nodes")
_BETWEEN_ATTEMPTS: dict[str, Any] = {
    "native_id": "", "network": "", "nodes": "", "pending_reason": "", "uncertain_since": None,
}  # fmt: skip
"""The columns of a job between two attempts: the old native id must not be asked about."""
_CLAIMABLE: dict[str, Any] = _UNLEASED | {"next_try_at": 0.0, "deploy_tries": 0}


@dataclass(frozen=True, slots=True)
class LockedJob:
    """A job's row under lock, with the end of its history."""

    job: Job
    lease_token: str
    seq: int
    last_at: float


def apply_many(
    database: Database, reader: JobReader, pairs: Sequence[tuple[Job, Change]], lease_token: str | None = None
) -> list[Job]:
    """Apply all of `pairs` in one transaction; return the updated jobs, without those that others changed meanwhile.

    Raises IllegalTransition or ValueError (a column that is none) with nothing written at all.
    """
    with database.writing() as connection:
        return apply_within(database, connection, reader, pairs, lease_token)


def apply_within(
    database: Database,
    connection: Connection,
    reader: JobReader,
    pairs: Sequence[tuple[Job, Change]],
    lease_token: str | None = None,
) -> list[Job]:
    """Do the same as :func:`apply_many` in a transaction of the caller."""
    updated: list[Job] = []
    locked = _lock(connection, reader, [job.id for job, _ in pairs])
    now, writes = database.now(connection), Writes(connection)
    for job, change in pairs:
        current = locked.get(job.id)
        if current is None or not _is_guarded(current, job, lease_token):
            continue
        step = replace(decide(current, change, now), incidents=change.incidents, noticed_at=now)
        after = writes.add(current.job, step)
        locked[job.id] = _moved(current, after, step)
        updated.append(after)
    writes.flush()
    return updated


def begin_attempts(
    database: Database,
    reader: JobReader,
    jobs: Sequence[Job],
    lease_token: str,
    at: float,
    lease_s: float | None = None,
) -> dict[JobId, Job]:
    """Move jobs from PENDING to DEPLOYING with a new attempt and its token, in one transaction; return them.

    Jobs that another process changed or leased meanwhile are omitted. With `lease_s` the leases are extended to so long
    from now in the same write.
    """
    begun: dict[JobId, Job] = {}
    with database.writing() as connection:
        locked = _lock(connection, reader, [job.id for job in jobs])
        now, writes = database.now(connection), Writes(connection)
        for job in jobs:
            current = locked.get(job.id)
            if current is None or not _is_guarded(current, job, lease_token):
                continue
            step = _begin(current, at, now)
            if lease_s is not None:
                step = replace(step, beside={"lease_until": now + lease_s})
            begun[job.id] = writes.add(current.job, step)
        writes.flush()
    return begun


def set_requested_action(
    database: Database, reader: JobReader, job_id: str, requested_action: RequestedAction
) -> Job | None:
    """Record the owner's request and return the job; None if there is no such job.

    A job that has ended does not change, and a halt does not replace a cancel.
    """
    with database.writing() as connection:
        current = _lock(connection, reader, [job_id]).get(JobId(job_id))
        if current is None:
            return None
        job = current.job
        if job.spec.batch.elasticity is not None:
            withdraw(connection, job_id)
        if job.state.is_terminal or (
            job.requested_action is RequestedAction.CANCEL and requested_action is RequestedAction.HALT
        ):
            return job
        step = Step(
            replace(job, requested_action=requested_action, updated_at=max(job.updated_at, database.now(connection)))
        )
        writes = Writes(connection)
        after = writes.add(job, step)
        writes.flush()
        return after


def withdraw(connection: Connection, job_id: str) -> bool:
    """End a scaler's change of size that has not begun the next attempt, because the owner ends the job. Return whether
    there was one."""
    halting = (ELASTIC_SIZES.c.job_id == job_id, ELASTIC_SIZES.c.state == SizeState.HALTING.value)
    ended = update(ELASTIC_SIZES).where(*halting).values(state=SizeState.WITHDRAWN.value)
    return connection.execute(ended).rowcount == 1


def note_uploaded(database: Database, reader: JobReader, job_id: str, number: int, at: float) -> bool:
    """Record that the pending upload of an attempt finished at `at`; return whether it was pending.

    This does not change the job's revision. The history gets an entry, unless the attempt's end waits for the upload.
    """
    with database.writing() as connection:
        current = _lock(connection, reader, [job_id]).get(JobId(job_id))
        row = (ATTEMPTS.c.job_id == job_id, ATTEMPTS.c.number == number, ATTEMPTS.c.upload_pending != 0)
        if current is None or connection.execute(update(ATTEMPTS).where(*row).values(upload_pending=0)).rowcount == 0:
            return False
        job, when = current.job, max(current.last_at, at)
        if job.state.is_terminal or job.attempt != number:
            said = f"what attempt {number} could not store is stored now"
            add_entry(connection, HistoryEntry(job.id, current.seq + 1, when, job.state, number, Cause.STORED, said))
        return True


def decide(current: LockedJob, change: Change, now: float) -> Step:
    """Return the effect of `change` on a job. Pure.

    Reaching an end sets `ended_at`, `error_code` and `message` and clears the request; resuming clears what the
    end had set, and the used retry budget; `change.columns` wins over both. Message and error code belong to the
    last step's entry, and so does the cause; steps before it are progress where they can be.

    An attempt that ends while the job lives takes the scheduler's id, nodes and network with it: they stay in the
    attempt's row, `change.columns` of that name included, and the job can be claimed for its deployment at once. So it
    can after an attempt that was none, whose row goes.

    The size of a job may change only in place, or if the job is PENDING afterwards. In any other state, the head
    controller may start the next attempt, with the present size.
    """
    unknown = change.columns.keys() - CHANGEABLE
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: no column of a job that a change may write")
    job, cause = current.job, Cause(change.cause)
    entries = _entries(current, change, cause)
    state = entries[-1].state if entries else job.state
    if change.succeeded:
        _check_succession(job, entries, cause)
    if change.unsent:
        return _unsent(job, change, entries, now)
    columns: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    if entries and state.is_terminal:
        columns = {"ended_at": entries[-1].at, "error_code": change.error_code, "message": change.message}
        columns["requested_action"] = RequestedAction.NONE
    elif entries and cause is Cause.RESUMED:
        columns = dict(_FRESH)
    if job.state not in DEPLOYED and (state in DEPLOYED or state.is_terminal):
        beside |= _UNLEASED  # the deployment has ended, and so has the lease
    columns |= change.columns
    after = replace(job, **columns, state=state, updated_at=max(job.updated_at, now))
    if after.overrides.size != job.overrides.size and state is not JobState.PENDING and not change.resizes:
        raise ValueError(f"{job.id}: its size can only change between two attempts, or in place")
    attempt_columns = _attempt_columns(job, after, entries, change, now)
    if entries and (change.succeeded or state is JobState.PENDING):
        after = replace(after, **_BETWEEN_ATTEMPTS)
        beside |= _CLAIMABLE
    if not change.succeeded:
        return Step(after, entries, beside, attempt_columns)
    after = replace(after, attempt=job.attempt + 1)
    entries = (*entries[:-1], replace(entries[-1], attempt=after.attempt))
    return Step(after, entries, beside, attempt_columns, _attempt_row(after, entries[-1].at))


def _unsent(job: Job, change: Change, entries: Sequence[HistoryEntry], now: float) -> Step:
    states = [entry.state for entry in entries]
    if job.state is not JobState.DEPLOYING or job.native_id or states != [JobState.PENDING]:
        raise ValueError(f"{job.id}: an attempt that was none goes from {JobState.DEPLOYING} to {JobState.PENDING}")
    before = job.attempt - 1
    columns = _BETWEEN_ATTEMPTS | change.columns | {"attempt": before, "state": JobState.PENDING}
    after = replace(job, **columns, updated_at=max(job.updated_at, now))
    return Step(after, (replace(entries[0], attempt=before),), dict(_CLAIMABLE), drops_attempt=True)


def _check_succession(job: Job, entries: Sequence[HistoryEntry], cause: Cause) -> None:
    if job.attempt == 0 or cause is not Cause.REQUEUED or not entries or entries[-1].state is not JobState.DEPLOYING:
        raise ValueError(f"{job.id}: a next attempt follows one before, by {Cause.REQUEUED}, in {JobState.DEPLOYING}")


def _attempt_row(job: Job, at: float) -> dict[str, Any]:
    """Return the row of the attempt that the job begins."""
    return {
        "job_id": job.id,
        "number": job.attempt,
        "token": attempt_token(job.id, job.attempt),
        "backend": job.backend,
        "native_id": "",
        "created_at": at,
        "outcome_code": "",
        "network": "",
        "nodes": "",
        "learners": job.effective_spec.resources.learners,
        "global_batch": job.global_batch,
    }


def _entries(current: LockedJob, change: Change, cause: Cause) -> tuple[HistoryEntry, ...]:
    job = current.job
    state, at = job.state, current.last_at
    entries: list[HistoryEntry] = []
    restarts = list(change.restarts)

    def add(by: Cause, message: str = "", error_code: str = "000") -> None:
        seq = current.seq + 1 + len(entries)
        entries.append(HistoryEntry(job.id, seq, at, state, job.attempt, by.value, message, error_code))

    def add_restarts(before: float) -> None:
        nonlocal at
        while restarts and restarts[0][0] < before and is_legal(state, state, Cause.RESTARTED):
            when, message = restarts.pop(0)
            at = max(at, when)
            add(Cause.RESTARTED, message)

    for number, (target, when) in enumerate(change.steps, start=1):
        is_last = number == len(change.steps)
        leaves = is_last and (target.is_terminal or cause is not Cause.PROGRESS)
        add_restarts(math.inf if leaves else when)
        by = cause if is_last or not is_legal(state, target) else Cause.PROGRESS
        state, at = advance(state, target, by), max(at, when)
        add(by, *((change.message, change.error_code) if is_last else ()))
    add_restarts(math.inf)
    return tuple(entries)


def _attempt_columns(
    job: Job, after: Job, entries: Sequence[HistoryEntry], change: Change, now: float
) -> dict[str, Any]:
    """Return what changes in the row of the current attempt; a job in PENDING has none.

    The attempt ends with the job, when the job goes back to PENDING, when the next attempt has begun, or before its job
    if there is an `attempt_end`.
    """
    if job.attempt == 0 or job.state.is_terminal or job.state is JobState.PENDING:
        return {}
    columns: dict[str, Any] = {
        name: getattr(after, name) for name in _OF_AN_ATTEMPT if getattr(after, name) != getattr(job, name)
    }
    if change.resizes:
        columns["resizes"] = encode_resizes(change.resizes)
    if after.native_id and not job.native_id:
        columns["submitted_at"] = next((entry.at for entry in entries if entry.state is JobState.QUEUED), now)
    if change.attempt_gpus is not None:
        columns["gpus"] = change.attempt_gpus
    with_job = bool(entries) and (after.state.is_terminal or after.state is JobState.PENDING or change.succeeded)
    if with_job:
        columns |= {"ended_at": entries[-1].at, "outcome_code": change.error_code}
    if change.attempt_end is None:
        return columns
    if change.attempt_end.at is not None or not with_job:
        columns["ended_at"] = change.attempt_end.at
    return columns | attempt_end_columns(change.attempt_end)


def _begin(current: LockedJob, at: float, now: float) -> Step:
    job = current.job
    after = replace(
        job,
        state=advance(job.state, JobState.DEPLOYING),
        attempt=job.attempt + 1,
        native_id="",
        nodes="",
        network="",
        pending_reason="",
        uncertain_since=None,
        updated_at=max(job.updated_at, now),
    )
    entry = HistoryEntry(job.id, current.seq + 1, max(at, current.last_at), after.state, after.attempt)
    return Step(after, (entry,), next_attempt=_attempt_row(after, entry.at))


def _is_guarded(current: LockedJob, seen: Job, lease_token: str | None) -> bool:
    """Return whether the row is unchanged since the caller read it and, with a token, whether the lease is its own."""
    if current.job.revision != seen.revision:
        return False
    return lease_token is None or (lease_token != "" and current.lease_token == lease_token)


def _lock(connection: Connection, reader: JobReader, ids: Collection[str]) -> dict[JobId, LockedJob]:
    """Return the rows of `ids`, locked until the transaction ends (on SQLite the transaction locks everything)."""
    locked: dict[JobId, LockedJob] = {}
    for chunk in chunks(sorted(ids)):
        query = select(*JOB_COLUMNS, JOBS.c.lease_token).where(JOBS.c.id.in_(chunk)).order_by(JOBS.c.id)
        rows = connection.execute(query.with_for_update()).all()
        ends = select(HISTORY.c.job_id, func.max(HISTORY.c.seq), func.max(HISTORY.c.at))
        grouped = connection.execute(ends.where(HISTORY.c.job_id.in_(chunk)).group_by(HISTORY.c.job_id))
        last = {job_id: (seq, at) for job_id, seq, at in grouped}
        for row in rows:
            job = reader.job(row)
            locked[job.id] = LockedJob(job, row[-1], *last[job.id])
    return locked


def _moved(current: LockedJob, after: Job, step: Step) -> LockedJob:
    if not step.entries:
        return replace(current, job=after)
    return replace(current, job=after, seq=step.entries[-1].seq, last_at=step.entries[-1].at)
