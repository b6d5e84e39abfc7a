"""Store the state of scalers: the sizes of elastic jobs, recorded decisions, and paused pools.

A scaler writes only while it holds the lease of its pool. Each size is written in the same transaction as the change of
its job, so a crash cannot separate them.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import and_, delete, func, insert, or_, select, update
from sqlalchemy.engine import Connection

from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import LIVE, Cause, JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.database import Database
from ffdl_batch.store.queries import chunks, fetch_jobs
from ffdl_batch.store.records import JOB_COLUMNS, JobReader, JobSize, SizeState
from ffdl_batch.store.schema import ELASTIC_DECISIONS, ELASTIC_POOLS, ELASTIC_SIZES, HISTORY, JOBS, LEASES
from ffdl_batch.store.transitions import apply_within, withdraw

_LISTED = LIVE | {JobState.HALTED}
_LIVE = tuple(sorted(state.value for state in LIVE))
_STAYS = (Cause.RESTARTED.value, Cause.STORED.value, Cause.RESIZED.value)
"""Causes of entries of the history that change no state."""
KEPT, KEPT_BYTES = 200, 16 * 1024**2
"""Maximum number of decisions kept for each pool, and their maximum size, estimated from the size of the last one."""

LEAST_BETWEEN_S = 0.001
"""Difference between the times of two decisions about a pool."""


@dataclass(frozen=True, slots=True)
class NamedLease:
    """A lease that the caller holds."""

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A job, and the size that a scaler gave it; None if no scaler did."""

    job: Job
    size: JobSize | None


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision, as JSON."""

    pool: str
    at: float
    inputs: str
    targets: str


_SIZE_COLUMNS = tuple(ELASTIC_SIZES.c[part.name] for part in fields(JobSize))


class ElasticStore:
    """The stored state of scalers. Each method is one transaction, and raises the same errors as the store."""

    def __init__(self, database: Database, reader: JobReader) -> None:
        self._database, self._reader = database, reader

    def jobs(self) -> list[ElasticJob]:
        """Return all elastic jobs that have not ended, or are halted to be resized, oldest first. Only jobs that have
        changed since the last call are read in full."""
        is_halted = and_(JOBS.c.state == JobState.HALTED.value, ELASTIC_SIZES.c.state == SizeState.HALTING.value)
        query = (
            select(JOBS.c.id, JOBS.c.revision, *_SIZE_COLUMNS)
            .join_from(JOBS, ELASTIC_SIZES, JOBS.c.id == ELASTIC_SIZES.c.job_id, isouter=True)
            .where(or_(JOBS.c.state.in_(_LIVE), is_halted))
            .order_by(JOBS.c.submitted_at, JOBS.c.id)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            found = {row[0]: (self._reader.known(row[0], row[1]), _size(row[2:])) for row in rows}
            read = fetch_jobs(connection, self._reader, [job_id for job_id, (job, _) in found.items() if job is None])
        jobs = ((job or read.get(job_id), size) for job_id, (job, size) in found.items())
        return [
            ElasticJob(job, size)
            for job, size in jobs
            if job is not None and job.spec.batch.elasticity is not None and job.state in _LISTED
        ]

    def sizes(self, ids: Collection[str]) -> dict[JobId, JobSize]:
        """Return the sizes of the jobs in `ids`, for jobs that a scaler gave a size."""
        found: dict[JobId, JobSize] = {}
        with self._database.reading() as connection:
            for chunk in chunks(ids):
                for row in connection.execute(select(*_SIZE_COLUMNS).where(ELASTIC_SIZES.c.job_id.in_(chunk))):
                    if (size := _size(row)) is not None:
                        found[size.job_id] = size
        return found

    def continued(self, jobs: Collection[Job]) -> set[JobId]:
        """Return the ids of those of `jobs` that are HALTED because a scaler changes their size, and that it will
        continue. The jobs must have been read before."""
        halted = [one for one in jobs if one.state is JobState.HALTED and one.spec.batch.elasticity is not None]
        sizes = self.sizes([job.id for job in halted]) if halted else {}
        ids = {job.id: job.attempt for job in halted}
        return {
            job_id for job_id, size in sizes.items() if size.state is SizeState.HALTING or size.attempt > ids[job_id]
        }

    def is_over(self, job: Job) -> bool:
        """Return whether the job has ended, and no scaler will continue it."""
        return job.state.is_terminal and not self.continued([job])

    def running_since(self, ids: Collection[str]) -> dict[JobId, float]:
        """Return when the current attempt of each job in `ids` entered PROCESSING, for jobs in that state. If the
        scheduler started the attempt again, its last start counts."""
        is_now = and_(JOBS.c.id == HISTORY.c.job_id, JOBS.c.attempt == HISTORY.c.attempt)
        entered = HISTORY.c.cause.not_in(_STAYS)
        query = select(HISTORY.c.job_id, func.max(HISTORY.c.at)).join_from(HISTORY, JOBS, is_now)
        query = query.where(HISTORY.c.state == JobState.PROCESSING.value, JOBS.c.state == HISTORY.c.state, entered)
        found: dict[JobId, float] = {}
        with self._database.reading() as connection:
            for chunk in chunks(ids):
                rows = connection.execute(query.where(HISTORY.c.job_id.in_(chunk)).group_by(HISTORY.c.job_id))
                found |= {JobId(job_id): at for job_id, at in rows}
        return found

    def halted(self) -> list[Job]:
        """Return the jobs that are halted to be resized."""
        query = select(*JOB_COLUMNS).join_from(ELASTIC_SIZES, JOBS, JOBS.c.id == ELASTIC_SIZES.c.job_id)
        halting = ELASTIC_SIZES.c.state == SizeState.HALTING.value
        with self._database.reading() as connection:
            rows = connection.execute(query.where(halting, JOBS.c.state == JobState.HALTED.value)).all()
        return [self._reader.job(row) for row in rows]

    def has_sizes(self) -> bool:
        """Return whether a scaler gave a size to a job, and it was not deleted since."""
        with self._database.reading() as connection:
            return connection.execute(select(ELASTIC_SIZES.c.job_id).limit(1)).first() is not None

    def shrinking(self) -> list[ElasticJob]:
        """Return the running jobs whose current attempt is shrinking in place."""
        query = select(*JOB_COLUMNS, *_SIZE_COLUMNS).join_from(ELASTIC_SIZES, JOBS, JOBS.c.id == ELASTIC_SIZES.c.job_id)
        is_now = and_(ELASTIC_SIZES.c.attempt == JOBS.c.attempt, JOBS.c.state == JobState.PROCESSING.value)
        with self._database.reading() as connection:
            rows = connection.execute(query.where(ELASTIC_SIZES.c.state == SizeState.SHRINKING.value, is_now)).all()
        width = len(JOB_COLUMNS)
        return [ElasticJob(self._reader.job(row[:width]), _size(row[width:])) for row in rows]

    def forget_ended(self) -> int:
        """Delete the sizes of jobs that have ended. Return the number of deleted sizes."""
        ended = select(JOBS.c.id).where(JOBS.c.id == ELASTIC_SIZES.c.job_id, JOBS.c.state.not_in(_LIVE))
        halting = and_(ELASTIC_SIZES.c.state == SizeState.HALTING.value, JOBS.c.state == JobState.HALTED.value)
        gone = select(ELASTIC_SIZES.c.job_id).where(ended.where(~halting).exists())
        with self._database.reading() as connection:
            ids = list(connection.execute(gone).scalars())
        if not ids:
            return 0
        with self._database.writing() as connection:
            for chunk in chunks(ids):
                connection.execute(
                    delete(ELASTIC_SIZES).where(ELASTIC_SIZES.c.job_id.in_(chunk), ended.where(~halting).exists())
                )
        return len(ids)

    def change(
        self, lease: NamedLease | None, job: Job, change: Change, size: JobSize, instead_of: JobSize | None
    ) -> Job | None:
        """Change the job and its size together.

        Return None, and write nothing, if another scaler holds the lease, if the job has changed, or if its size is not
        at the stage of `instead_of`. `lease` None = do not check a lease.
        """
        with self._database.writing() as connection:
            if lease is not None and not _is_held(connection, lease):
                return None
            connection.execute(select(JOBS.c.id).where(JOBS.c.id == job.id).with_for_update())
            known = connection.execute(select(*_SIZE_COLUMNS).where(ELASTIC_SIZES.c.job_id == job.id).with_for_update())
            row = known.first()
            if _stage(None if row is None else _size(row)) != _stage(instead_of):
                return None
            updated = apply_within(self._database, connection, self._reader, [(job, change)])
            if updated:
                _write(connection, size, is_known=row is not None)
        return next(iter(updated), None)

    def withdraw(self, job_id: str) -> bool:
        """Withdraw a change of size whose next attempt has not begun, because the owner halts the job. Return whether
        there was such a change."""
        with self._database.writing() as connection:
            return withdraw(connection, job_id)

    def note_restart(self, job_id: str, restart_s: float) -> None:
        """Record how long the last change took."""
        with self._database.writing() as connection:
            row = update(ELASTIC_SIZES).where(ELASTIC_SIZES.c.job_id == job_id)
            connection.execute(row.values(restart_s=restart_s))

    def add_decision(self, lease: NamedLease, decision: StoredDecision) -> bool:
        """Record a decision, and delete the oldest ones of its pool beyond KEPT and KEPT_BYTES. Return False, and
        record nothing, if another scaler holds the lease. If the clock was set back, the decision is dated after the
        last one, so that their order stays."""
        table, inputs = ELASTIC_DECISIONS, _packed(decision.inputs)
        kept = max(1, min(KEPT, KEPT_BYTES // (len(inputs) + len(decision.targets))))
        own = table.c.pool == decision.pool
        with self._database.writing() as connection:
            if not _is_held(connection, lease):
                return False
            last = connection.execute(select(func.max(table.c.at)).where(own)).scalar()
            at = decision.at if last is None else max(decision.at, last + LEAST_BETWEEN_S)
            values = {"pool": decision.pool, "at": at, "inputs": inputs, "targets": decision.targets}
            connection.execute(insert(table).values(values))
            oldest = select(table.c.at).where(own).order_by(table.c.at.desc()).offset(kept).limit(1)
            if (oldest_at := connection.execute(oldest).scalar()) is not None:
                connection.execute(delete(table).where(own, table.c.at <= oldest_at))
        return True

    def decisions(self, pool: str, limit: int = KEPT) -> Iterator[StoredDecision]:
        """Yield the last decisions about a pool, oldest first. Runs one query per decision, because each can be
        large."""
        table = ELASTIC_DECISIONS
        times = select(table.c.at).where(table.c.pool == pool).order_by(table.c.at.desc()).limit(limit)
        with self._database.reading() as connection:
            found = connection.execute(times).scalars().all()
        for at in reversed(found):
            query = select(table.c.inputs, table.c.targets).where(table.c.pool == pool, table.c.at == at)
            with self._database.reading() as connection:
                row = connection.execute(query).first()
            if row is not None:  # it may have been deleted in the meantime
                yield StoredDecision(pool, at, _unpacked(row[0]), row[1])

    def paused(self) -> dict[str, float]:
        """Return the paused pools, and when each was paused."""
        with self._database.reading() as connection:
            rows = connection.execute(select(ELASTIC_POOLS.c.name, ELASTIC_POOLS.c.paused_at)).all()
        return {row[0]: row[1] for row in rows}

    def pause(self, pool: str, at: float) -> None:
        """Pause a pool. If it is already paused, do nothing."""
        with self._database.writing() as connection:
            known = select(ELASTIC_POOLS.c.name).where(ELASTIC_POOLS.c.name == pool)
            if connection.execute(known).first() is None:
                connection.execute(insert(ELASTIC_POOLS).values(name=pool, paused_at=at))

    def resume(self, pool: str) -> None:
        """End the pause of a pool."""
        with self._database.writing() as connection:
            connection.execute(delete(ELASTIC_POOLS).where(ELASTIC_POOLS.c.name == pool))


def _packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode("ascii")


def _unpacked(text: str) -> str:
    """Return the text; "" if it is damaged."""
    try:
        return zlib.decompress(base64.b64decode(text)).decode()
    except (ValueError, zlib.error):
        return ""


def _is_held(connection: Connection, lease: NamedLease) -> bool:
    held = select(LEASES.c.name).where(LEASES.c.name == lease.name, LEASES.c.token == lease.token)
    return connection.execute(held.with_for_update()).first() is not None


def _stage(size: JobSize | None) -> tuple[SizeState, int] | None:
    return None if size is None else (size.state, size.attempt)


def _write(connection: Connection, size: JobSize, *, is_known: bool) -> None:
    values = {part.name: getattr(size, part.name) for part in fields(size)} | {"state": size.state.value}
    if is_known:
        del values["restart_s"]
        connection.execute(update(ELASTIC_SIZES).where(ELASTIC_SIZES.c.job_id == size.job_id).values(values))
    else:
        connection.execute(insert(ELASTIC_SIZES).values(values))


def _size(row: Sequence[Any]) -> JobSize | None:
    if row[0] is None:
        return None
    job_id, state, *rest = row
    return JobSize(JobId(job_id), SizeState(state), *rest)
