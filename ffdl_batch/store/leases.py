"""Leases: who may deploy a job, and which daemon runs a loop.

A lease is a random token in a row until a moment. Whoever finds it run out may take it, and then the old token
opens nothing any more. Times are the database's (see :meth:`Database.now_expression`), so that two daemons
with different clocks agree. A holder whose time has run out but whom nobody replaced may go on.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

from sqlalchemy import Double, delete, insert, literal, select, update

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store.database import Database
from ffdl_batch.store.errors import Conflict
from ffdl_batch.store.queries import chunks
from ffdl_batch.store.records import JOB_COLUMNS, JobReader, LeasedJob
from ffdl_batch.store.schema import JOBS, LEASES

_DEPLOYABLE = (JobState.PENDING.value, JobState.DEPLOYING.value)


def claim_deployable(database: Database, reader: JobReader, owner: str, limit: int, lease_s: float) -> list[LeasedJob]:
    """Up to `limit` jobs whose deployment is due and nobody's, oldest first, leased to `owner`
    under one token."""
    token = secrets.token_hex(16)
    now = database.now_expression()
    with database.writing() as connection:
        query = (
            select(*JOB_COLUMNS, JOBS.c.deploy_tries)
            .where(JOBS.c.state.in_(_DEPLOYABLE), JOBS.c.next_try_at <= now, JOBS.c.lease_until <= now)
            .order_by(JOBS.c.submitted_at, JOBS.c.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        rows = connection.execute(query).all()
        if rows:
            taken = update(JOBS).where(JOBS.c.id.in_([row[0] for row in rows]))
            until = now + literal(lease_s, Double)
            connection.execute(taken.values(lease_owner=owner, lease_token=token, lease_until=until))
    return [LeasedJob(reader.job(row), token, row[-1]) for row in rows]


def renew(database: Database, job_id: str, lease_token: str, lease_s: float) -> bool:
    """Whether the lease was still the caller's, and lasts `lease_s` from now."""
    until = database.now_expression() + literal(lease_s, Double)
    with database.writing() as connection:
        query = update(JOBS).where(JOBS.c.id == job_id, JOBS.c.lease_token == lease_token, JOBS.c.lease_token != "")
        return connection.execute(query.values(lease_until=until)).rowcount == 1


def release(database: Database, job_id: str, lease_token: str, next_try_at: float | None) -> None:
    """Give the lease back; with `next_try_at` the deployment is put off until then and the try is counted."""
    values: dict[str, object] = {"lease_owner": "", "lease_token": "", "lease_until": 0.0}
    if next_try_at is not None:
        values |= {"next_try_at": next_try_at, "deploy_tries": JOBS.c.deploy_tries + 1}
    with database.writing() as connection:
        query = update(JOBS).where(JOBS.c.id == job_id, JOBS.c.lease_token == lease_token, JOBS.c.lease_token != "")
        connection.execute(query.values(values))


def put_off(database: Database, ids: Collection[str], lease_token: str, next_try_at: float) -> None:
    """As :func:`release` for those of `ids` that the lease is held of: one durable write for all of them."""
    values = {"lease_owner": "", "lease_token": "", "lease_until": 0.0, "next_try_at": next_try_at}
    with database.writing() as connection:
        for chunk in chunks(ids):
            held = update(JOBS).where(JOBS.c.id.in_(chunk), JOBS.c.lease_token == lease_token, JOBS.c.lease_token != "")
            connection.execute(held.values(values | {"deploy_tries": JOBS.c.deploy_tries + 1}))


def make_due(database: Database, ids: Collection[str]) -> None:
    """End the pause of those of `ids` that are PENDING."""
    with database.writing() as connection:
        for chunk in chunks(ids):
            waiting = update(JOBS).where(JOBS.c.id.in_(chunk), JOBS.c.state == JobState.PENDING.value)
            connection.execute(waiting.values(next_try_at=0.0))


def acquire_lease(database: Database, name: str, owner: str, lease_s: float) -> str | None:
    """The token of the lease `name`, or None while another holds it (also an earlier life of `owner`)."""
    token = secrets.token_hex(16)
    now = database.now_expression()
    until = now + literal(lease_s, Double)
    try:
        with database.writing() as connection:
            free = update(LEASES).where(LEASES.c.name == name, LEASES.c.until <= now)
            if connection.execute(free.values(owner=owner, token=token, until=until)).rowcount == 1:
                return token
            if connection.execute(select(LEASES.c.name).where(LEASES.c.name == name)).first() is not None:
                return None
            connection.execute(insert(LEASES).values(name=name, owner=owner, token=token, until=until))
            return token
    except Conflict:  # somebody else inserted the row at the same moment: the lease is theirs
        return None


def renew_lease(database: Database, name: str, token: str, lease_s: float) -> bool:
    """Whether the lease was still the caller's, and lasts `lease_s` from now."""
    until = database.now_expression() + literal(lease_s, Double)
    with database.writing() as connection:
        query = update(LEASES).where(LEASES.c.name == name, LEASES.c.token == token)
        return connection.execute(query.values(until=until)).rowcount == 1


def release_lease(database: Database, name: str, token: str) -> None:
    """Give the lease back; a token that is not its own changes nothing."""
    with database.writing() as connection:
        connection.execute(delete(LEASES).where(LEASES.c.name == name, LEASES.c.token == token))


def end_leases_of(database: Database, owner: str) -> None:
    """End every lease of `owner`, whose earlier life is proven over; its tokens open nothing any more."""
    with database.writing() as connection:
        held = update(JOBS).where(JOBS.c.lease_owner == owner)
        connection.execute(held.values(lease_owner="", lease_token="", lease_until=0.0))
        connection.execute(delete(LEASES).where(LEASES.c.owner == owner))
