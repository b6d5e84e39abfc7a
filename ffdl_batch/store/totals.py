"""Sums over one user's jobs, for whoever watches the daemon."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store.schema import ATTEMPTS, JOBS


@dataclass(frozen=True, slots=True)
class AttemptSum:
    """Attempts of a backend that ended alike. `interruption` "" = nothing ended them before the training did, or they
    have not ended; `played`: by a drill. `owed` of them are still to be stored."""

    backend: str
    interruption: str
    played: bool
    count: int
    gpu_seconds: float
    owed: int


def count_states(connection: Connection, uid: int) -> dict[tuple[str, JobState], int]:
    """How many jobs are in each state, by backend ("" before one was chosen)."""
    query = select(JOBS.c.backend, JOBS.c.state, func.count()).where(JOBS.c.uid == uid)
    rows = connection.execute(query.group_by(JOBS.c.backend, JOBS.c.state))
    return {(backend, JobState(state)): int(count) for backend, state, count in rows}


def sum_attempts(connection: Connection, uid: int) -> list[AttemptSum]:
    """All attempts, by how they ended."""
    kinds = (ATTEMPTS.c.backend, ATTEMPTS.c.interruption, ATTEMPTS.c.played)
    sums = (func.count(), func.sum(ATTEMPTS.c.gpu_seconds), func.sum(ATTEMPTS.c.owed))
    query = select(*kinds, *sums).join(JOBS, JOBS.c.id == ATTEMPTS.c.job_id).where(JOBS.c.uid == uid)
    rows = connection.execute(query.group_by(*kinds).order_by(*kinds))
    return [AttemptSum(row[0], row[1], bool(row[2]), int(row[3]), float(row[4] or 0), int(row[5] or 0)) for row in rows]


def changed_since(connection: Connection, uid: int, at: float) -> dict[JobId, tuple[str, float]]:
    """Backend and time of the latest change of each job that was changed at or after `at`."""
    query = select(JOBS.c.id, JOBS.c.backend, JOBS.c.updated_at).where(JOBS.c.uid == uid, JOBS.c.updated_at >= at)
    return {JobId(job_id): (backend, float(changed)) for job_id, backend, changed in connection.execute(query)}
