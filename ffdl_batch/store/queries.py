"""Read jobs, attempts and histories, and count them. Each function is one statement for up to CHUNK ids."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import BigInteger, and_, func, literal, or_, select
from sqlalchemy.engine import Connection
from sqlalchemy.sql import ColumnElement, FromClause

from ffdl_batch.domain.job.job import HistoryEntry, Job, JobId
from ffdl_batch.domain.job_state import LIVE, JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.records import (
    ATTEMPT_COLUMNS,
    HISTORY_COLUMNS,
    JOB_COLUMNS,
    Attempt,
    JobReader,
    attempt,
    history_entry,
)
from ffdl_batch.store.schema import ATTEMPTS, HISTORY, JOBS

# SQLite before 3.32 takes 999 variables in a statement (sqlite.org/limits.html), later ones 32766.
CHUNK = 30_000 if sqlite3.sqlite_version_info >= (3, 32) else 900
MAYBE_DEPLOYED = tuple(sorted(LIVE - {JobState.PENDING}))


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list: see :meth:`ffdl_batch.store.repository.Store.list_jobs`."""

    uid: int | None = None
    states: Collection[JobState] | None = None
    name: str | None = None
    since: float | None = None
    limit: int = 100
    after: str | None = None
    array: str | None = None
    ended_before: float | None = None
    text: str | None = None
    is_collapsed: bool = False


@dataclass(frozen=True, slots=True)
class AttemptSum:
    """The attempts of a backend that ended in the same way.

    `interruption` is "" if the training ended by itself, or the attempt has not ended; `simulated`: a drill caused it.
    `pending_uploads` of them have a pending upload.
    """

    backend: str
    interruption: str
    simulated: bool
    count: int
    gpu_seconds: float
    pending_uploads: int


def chunks(ids: Collection[str]) -> Iterator[Sequence[str]]:
    """Yield `ids` in order, without duplicates, in pieces that fit into one statement."""
    unique = list(dict.fromkeys(ids))
    for start in range(0, len(unique), CHUNK):
        yield unique[start : start + CHUNK]


def fetch_jobs(connection: Connection, reader: JobReader, ids: Collection[str]) -> dict[JobId, Job]:
    """Return the jobs of `ids` that exist."""
    found: dict[JobId, Job] = {}
    for chunk in chunks(ids):
        for row in connection.execute(select(*JOB_COLUMNS).where(JOBS.c.id.in_(chunk))):
            job = reader.job(row)
            found[job.id] = job
    return found


def list_jobs(connection: Connection, reader: JobReader, wanted: JobFilter) -> list[Job]:
    """Return the jobs that match and are not removed, newest first."""
    query = select(*JOB_COLUMNS).order_by(JOBS.c.submitted_at.desc(), JOBS.c.id.desc()).limit(wanted.limit)
    query = query.where(*_conditions(JOBS, wanted))
    if wanted.is_collapsed:
        others = JOBS.alias("others")
        of_array = and_(others.c.array_id == JOBS.c.array_id, *_conditions(others, wanted))
        first = select(func.min(others.c.array_index)).where(of_array).scalar_subquery()
        query = query.where(or_(JOBS.c.array_id == "", JOBS.c.array_index == first))
    if wanted.after is not None:
        last = JOBS.alias("last")
        at = select(last.c.submitted_at).where(last.c.id == wanted.after).scalar_subquery()
        older = and_(JOBS.c.submitted_at == at, JOBS.c.id < wanted.after)
        query = query.where(or_(JOBS.c.submitted_at < at, older))
    return [reader.job(row) for row in connection.execute(query)]


def _conditions(jobs: FromClause, wanted: JobFilter) -> list[ColumnElement[bool]]:
    """Return the conditions on a single job; `jobs` is the table or an alias of it."""
    columns = jobs.c
    conditions: list[ColumnElement[bool]] = [columns.removed_at.is_(None)]
    if wanted.uid is not None:
        conditions.append(columns.uid == wanted.uid)
    if wanted.states is not None:
        conditions.append(columns.state.in_(sorted(state.value for state in wanted.states)))
    if wanted.name is not None:
        of_array = and_(columns.array_id != "", columns.name.startswith(f"{wanted.name}[", autoescape=True))
        conditions.append(or_(columns.name == wanted.name, of_array))
    if wanted.array is not None:
        conditions.append(columns.array_id == wanted.array)
    if wanted.since is not None:
        conditions.append(columns.submitted_at >= wanted.since)
    if wanted.ended_before is not None:
        conditions.append(columns.ended_at < wanted.ended_before)
    if wanted.text is not None:
        begins = columns.id.startswith(wanted.text, autoescape=True)
        conditions.append(or_(columns.name.icontains(wanted.text, autoescape=True), begins))
    return conditions


def elements_of(connection: Connection, reader: JobReader, array_id: str, index: int | None) -> list[Job]:
    """Return the elements of an array, by index, also removed ones; all of them, or one."""
    query = select(*JOB_COLUMNS).where(JOBS.c.array_id == array_id, JOBS.c.array_id != "")
    if index is not None:
        query = query.where(JOBS.c.array_index == index)
    return [reader.job(row) for row in connection.execute(query.order_by(JOBS.c.array_index))]


def count_elements(
    connection: Connection, ids: Collection[str], *, with_removed: bool
) -> dict[str, dict[JobState, int]]:
    """Return how many elements each array has in each state; arrays without any are omitted."""
    found: dict[str, dict[JobState, int]] = {}
    for chunk in chunks([array_id for array_id in ids if array_id]):
        query = select(JOBS.c.array_id, JOBS.c.state, func.count()).where(JOBS.c.array_id.in_(chunk))
        query = query if with_removed else query.where(JOBS.c.removed_at.is_(None))
        for array_id, state, count in connection.execute(query.group_by(JOBS.c.array_id, JOBS.c.state)):
            found.setdefault(array_id, {})[JobState(state)] = count
    return found


def arrays_to_keep(connection: Connection, ids: Collection[str]) -> frozenset[str]:
    """Return those of these arrays that have an element that is not removed."""
    found: set[str] = set()
    for chunk in chunks([array_id for array_id in ids if array_id]):
        query = select(JOBS.c.array_id).where(JOBS.c.array_id.in_(chunk), JOBS.c.removed_at.is_(None)).distinct()
        found.update(connection.execute(query).scalars())
    return frozenset(found)


def count_handed_over(
    connection: Connection, ids: Collection[str], now: ColumnElement[float], besides: str
) -> dict[str, int]:
    """Return how many live elements of each array a scheduler has, may have, or is about to get from the holder of a
    lease other than `besides`; arrays without any are omitted."""
    is_being_submitted = and_(JOBS.c.lease_until > now, JOBS.c.lease_token != besides)
    found: dict[str, int] = {}
    for chunk in chunks([array_id for array_id in ids if array_id]):
        query = select(JOBS.c.array_id, func.count()).where(
            JOBS.c.array_id.in_(chunk),
            JOBS.c.state.in_(MAYBE_DEPLOYED),
            or_(JOBS.c.native_id != "", JOBS.c.uncertain_since.is_not(None), is_being_submitted),
        )
        found.update((row[0], int(row[1])) for row in connection.execute(query.group_by(JOBS.c.array_id)))
    return found


def job_ids(connection: Connection) -> frozenset[str]:
    """Return the ids of all jobs."""
    return frozenset(connection.execute(select(JOBS.c.id)).scalars())


def find_ids(connection: Connection, beginning: str, uid: int | None, limit: int) -> list[JobId]:
    """Return the ids of `uid`'s jobs (None = any user's) that start with `beginning` and are not removed, newest
    first."""
    query = select(JOBS.c.id).where(JOBS.c.id.startswith(beginning, autoescape=True), JOBS.c.removed_at.is_(None))
    if uid is not None:
        query = query.where(JOBS.c.uid == uid)
    ordered = query.order_by(JOBS.c.submitted_at.desc(), JOBS.c.id).limit(limit)
    return [JobId(job_id) for job_id in connection.execute(ordered).scalars()]


def find_native(connection: Connection, reader: JobReader, native_id: str, uid: int | None, limit: int) -> list[Job]:
    """Return the jobs of `uid` (None = any user) with an attempt of this native id, or a task of it, newest first."""
    tasks = ATTEMPTS.c.native_id.startswith(f"{native_id}_", autoescape=True)
    attempts = select(ATTEMPTS.c.job_id).where(or_(ATTEMPTS.c.native_id == native_id, tasks))
    query = select(*JOB_COLUMNS).where(JOBS.c.id.in_(attempts), JOBS.c.removed_at.is_(None))
    if uid is not None:
        query = query.where(JOBS.c.uid == uid)
    ordered = query.order_by(JOBS.c.submitted_at.desc(), JOBS.c.id).limit(limit)
    return [reader.job(row) for row in connection.execute(ordered)]


def live_deployed(connection: Connection, reader: JobReader, backend: str) -> list[Job]:
    """Return the live jobs of `backend` that have a native id, oldest first."""
    query = (
        select(JOBS.c.id, JOBS.c.revision)
        .where(JOBS.c.state.in_(MAYBE_DEPLOYED), JOBS.c.backend == backend, JOBS.c.native_id != "")
        .order_by(JOBS.c.submitted_at, JOBS.c.id)
    )
    rows = connection.execute(query).all()
    known = {job_id: reader.known(job_id, revision) for job_id, revision in rows}
    read = fetch_jobs(connection, reader, [job_id for job_id, job in known.items() if job is None])
    jobs = (job or read.get(job_id) for job_id, job in known.items())
    return [job for job in jobs if job is not None and not job.state.is_terminal]  # it may have ended in between


def live_backends(connection: Connection) -> list[str]:
    """Return the backends for which :func:`live_deployed` returns jobs, sorted."""
    query = select(JOBS.c.backend).where(JOBS.c.state.in_(MAYBE_DEPLOYED), JOBS.c.native_id != "").distinct()
    return sorted(connection.execute(query).scalars())


def live_digests(connection: Connection) -> frozenset[str]:
    """Return the digests of the model archives of jobs that have not ended."""
    query = select(JOBS.c.model_digest).where(JOBS.c.state.in_(sorted(LIVE))).distinct()
    return frozenset(connection.execute(query).scalars())


def count_live(connection: Connection) -> int:
    """Return how many jobs have not ended."""
    query = select(func.count()).select_from(JOBS).where(JOBS.c.state.in_(sorted(LIVE)))
    return int(connection.execute(query).scalar_one())


def histories(connection: Connection, ids: Collection[str], after_seq: int = 0) -> dict[JobId, list[HistoryEntry]]:
    """Return the history of each of `ids`, in order; an id without entries has an empty list."""
    found: dict[JobId, list[HistoryEntry]] = {JobId(job_id): [] for job_id in ids}
    for chunk in chunks(ids):
        query = (
            select(*HISTORY_COLUMNS)
            .where(HISTORY.c.job_id.in_(chunk), HISTORY.c.seq > literal(after_seq, BigInteger))
            .order_by(HISTORY.c.job_id, HISTORY.c.seq)
        )
        for row in connection.execute(query):
            entry = history_entry(row)
            found[entry.job_id].append(entry)
    return found


def attempts(connection: Connection, ids: Collection[str]) -> dict[JobId, list[Attempt]]:
    """Return the attempts of each of `ids`, in order; an id without attempts has an empty list."""
    found: dict[JobId, list[Attempt]] = {JobId(job_id): [] for job_id in ids}
    for chunk in chunks(ids):
        query = select(*ATTEMPT_COLUMNS).where(ATTEMPTS.c.job_id.in_(chunk))
        for row in connection.execute(query.order_by(ATTEMPTS.c.job_id, ATTEMPTS.c.number)):
            read = attempt(row)
            found[read.job_id].append(read)
    return found


def pending_uploads(connection: Connection, limit: int) -> list[Attempt]:
    """Return attempts with a pending upload, oldest first."""
    query = select(*ATTEMPT_COLUMNS).where(ATTEMPTS.c.upload_pending == 1)
    ordered = query.order_by(ATTEMPTS.c.created_at, ATTEMPTS.c.token).limit(limit)
    return [attempt(row) for row in connection.execute(ordered)]


def count_states(connection: Connection, uid: int, *, with_removed: bool) -> dict[tuple[str, JobState], int]:
    """Return how many jobs are in each state, by backend ("" before one was chosen)."""
    query = select(JOBS.c.backend, JOBS.c.state, func.count()).where(JOBS.c.uid == uid)
    query = query if with_removed else query.where(JOBS.c.removed_at.is_(None))
    rows = connection.execute(query.group_by(JOBS.c.backend, JOBS.c.state))
    return {(backend, JobState(state)): int(count) for backend, state, count in rows}


def sum_attempts(connection: Connection, uid: int) -> list[AttemptSum]:
    """Return all attempts, grouped by how they ended."""
    kinds = (ATTEMPTS.c.backend, ATTEMPTS.c.interruption, ATTEMPTS.c.simulated)
    sums = (func.count(), func.sum(ATTEMPTS.c.gpu_seconds), func.sum(ATTEMPTS.c.upload_pending))
    query = select(*kinds, *sums).join(JOBS, JOBS.c.id == ATTEMPTS.c.job_id).where(JOBS.c.uid == uid)
    rows = connection.execute(query.group_by(*kinds).order_by(*kinds))
    return [AttemptSum(row[0], row[1], bool(row[2]), int(row[3]), float(row[4] or 0), int(row[5] or 0)) for row in rows]


def changed_since(connection: Connection, uid: int, at: float) -> dict[JobId, tuple[str, float]]:
    """Return backend and time of the latest change of each job that changed at or after `at`."""
    query = select(JOBS.c.id, JOBS.c.backend, JOBS.c.updated_at).where(JOBS.c.uid == uid, JOBS.c.updated_at >= at)
    return {JobId(job_id): (backend, float(changed)) for job_id, backend, changed in connection.execute(query)}
