"""Lease jobs for their deployment, and the loops of daemons.

A lease is a random token in a row, valid until a time. Another daemon may take an expired lease; the old token is
invalid then. Times are the database's (see :meth:`Database.now_expression`), so that daemons with different clocks
agree. A holder whose lease has expired may renew it if no other daemon has taken it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

from sqlalchemy import Double, Select, delete, insert, literal, select, update
from sqlalchemy.engine import Connection

from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store.database import Database
from ffdl_batch.store.errors import Conflict
from ffdl_batch.store.queries import chunks
from ffdl_batch.store.records import JOB_COLUMNS, JobReader, LeasedJob
from ffdl_batch.store.schema import JOBS, LEASES

_DEPLOYABLE = (JobState.PENDING.value, JobState.DEPLOYING.value)
TREE = "tree"
"""The name of a row that is not a lease: it has the tree of job directories that belongs to the database."""
LEFT_OUT = "left out"
"""The name of a row that is not a lease: it has the ids of executed jobs that a restore left out."""


def claim_deployable(
    database: Database, reader: JobReader, owner: str, limit: int, lease_s: float, elements: int = 0
) -> list[LeasedJob]:
    """Lease up to `limit` jobs that are due and not leased, oldest first, to `owner` under one token; return them.

    Up to `elements` further elements of the arrays among them are leased, too.
    """
    token = secrets.token_hex(16)
    now = database.now_expression()
    until = now + literal(lease_s, Double)
    due = (
        select(*JOB_COLUMNS, JOBS.c.array_id, JOBS.c.deploy_tries)
        .where(JOBS.c.state.in_(_DEPLOYABLE), JOBS.c.next_try_at <= now, JOBS.c.lease_until <= now)
        .order_by(JOBS.c.submitted_at, JOBS.c.id)
        .with_for_update(skip_locked=True)
    )

    def take(connection: Connection, query: Select[Any]) -> list[Any]:
        rows = connection.execute(query).all()
        for chunk in chunks([row[0] for row in rows]):
            taken = update(JOBS).where(JOBS.c.id.in_(chunk))
            connection.execute(taken.values(lease_owner=owner, lease_token=token, lease_until=until))
        return list(rows)

    with database.writing() as connection:
        rows = take(connection, due.limit(limit))
        arrays = {row[-2] for row in rows} - {""}
        if arrays and elements:
            rows += take(connection, due.where(JOBS.c.array_id.in_(arrays)).limit(elements))
    return [LeasedJob(reader.job(row), token, row[-1]) for row in rows]


def renew(database: Database, job_id: str, lease_token: str, lease_s: float) -> bool:
    """Extend the lease to `lease_s` from now; return whether it was still the caller's."""
    until = database.now_expression() + literal(lease_s, Double)
    with database.writing() as connection:
        query = update(JOBS).where(JOBS.c.id == job_id, JOBS.c.lease_token == lease_token, JOBS.c.lease_token != "")
        return connection.execute(query.values(lease_until=until)).rowcount == 1


def renew_many(database: Database, ids: Collection[str], lease_token: str, lease_s: float) -> frozenset[JobId]:
    """Renew the leases of `ids` like :func:`renew`; return the jobs whose lease was still the caller's."""
    until = database.now_expression() + literal(lease_s, Double)
    held: set[JobId] = set()
    with database.writing() as connection:
        for chunk in chunks(ids):
            own = (JOBS.c.id.in_(chunk), JOBS.c.lease_token == lease_token, JOBS.c.lease_token != "")
            connection.execute(update(JOBS).where(*own).values(lease_until=until))
            held.update(map(JobId, connection.execute(select(JOBS.c.id).where(*own)).scalars()))
    return frozenset(held)


def release(database: Database, ids: Collection[str], lease_token: str, next_try_at: float | None) -> None:
    """Release the leases of `ids`; with `next_try_at` their deployment is postponed and the try is counted."""
    values: dict[str, object] = {"lease_owner": "", "lease_token": "", "lease_until": 0.0}
    if next_try_at is not None:
        values |= {"next_try_at": next_try_at, "deploy_tries": JOBS.c.deploy_tries + 1}
    with database.writing() as connection:
        for chunk in chunks(ids):
            held = update(JOBS).where(JOBS.c.id.in_(chunk), JOBS.c.lease_token == lease_token, JOBS.c.lease_token != "")
            connection.execute(held.values(values))


def make_due(database: Database, ids: Collection[str]) -> None:
    """End the pause of those of `ids` that are PENDING."""
    with database.writing() as connection:
        for chunk in chunks(ids):
            waiting = update(JOBS).where(JOBS.c.id.in_(chunk), JOBS.c.state == JobState.PENDING.value)
            connection.execute(waiting.values(next_try_at=0.0))


def make_elements_due(database: Database) -> None:
    """End the pause of all elements of arrays that are PENDING."""
    with database.writing() as connection:
        waiting = update(JOBS).where(JOBS.c.array_id != "", JOBS.c.state == JobState.PENDING.value)
        connection.execute(waiting.where(JOBS.c.next_try_at > 0.0).values(next_try_at=0.0))


def acquire_lease(database: Database, name: str, owner: str, lease_s: float) -> str | None:
    """Return a token of the lease `name`; None while another daemon or an earlier process of `owner` holds it."""
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
    except Conflict:  # another daemon inserted the row at the same moment: the lease is its own
        return None


def renew_lease(database: Database, name: str, token: str, lease_s: float) -> bool:
    """Extend the lease to `lease_s` from now; return whether it was still the caller's."""
    until = database.now_expression() + literal(lease_s, Double)
    with database.writing() as connection:
        query = update(LEASES).where(LEASES.c.name == name, LEASES.c.token == token)
        return connection.execute(query.values(until=until)).rowcount == 1


def release_lease(database: Database, name: str, token: str) -> None:
    """Release the lease if the token is valid."""
    with database.writing() as connection:
        connection.execute(delete(LEASES).where(LEASES.c.name == name, LEASES.c.token == token))


def bind_tree(database: Database, tree: str, instead_of: str | None) -> str:
    """Return the tree of job directories of the database; it becomes `tree` if it had none, or had `instead_of`.

    It is stored as the owner of a lease that no daemon acquires.
    """
    row = LEASES.c.name == TREE
    try:
        with database.writing() as connection:
            if instead_of is not None:
                connection.execute(update(LEASES).where(row, LEASES.c.owner == instead_of).values(owner=tree))
            bound = connection.execute(select(LEASES.c.owner).where(row)).scalar_one_or_none()
            if bound is None:
                connection.execute(insert(LEASES).values(name=TREE, owner=tree, token="", until=0.0))
    except Conflict:  # another daemon was faster
        return bind_tree(database, tree, instead_of)
    return tree if bound is None else str(bound)


def left_out(connection: Connection) -> frozenset[str]:
    """Return the ids of executed jobs that a restore left out."""
    found = connection.execute(select(LEASES.c.owner).where(LEASES.c.name == LEFT_OUT)).scalar_one_or_none()
    return frozenset(str(found or "").split())


def leave_out(connection: Connection, ids: Collection[str]) -> None:
    """Replace the ids of :func:`left_out`. They are stored among the leases, which all schema revisions have."""
    connection.execute(delete(LEASES).where(LEASES.c.name == LEFT_OUT))
    if ids:
        connection.execute(insert(LEASES).values(name=LEFT_OUT, owner=" ".join(sorted(ids)), token="", until=0.0))


def is_leased_by_others(database: Database, owner: str) -> bool:
    """Return whether another daemon than `owner` holds a named lease; a working daemon nearly always does."""
    held = (LEASES.c.owner != owner, LEASES.c.until > database.now_expression())
    with database.reading() as connection:
        return connection.execute(select(LEASES.c.name).where(*held)).first() is not None


def end_claims_of(database: Database, owner: str, besides: Collection[str] = ()) -> None:
    """End the leases of jobs that `owner` holds, except those with tokens `besides`; their tokens become invalid."""
    with database.writing() as connection:
        _end_claims(connection, owner, besides)


def end_leases_of(database: Database, owner: str) -> None:
    """End every lease of `owner`, whose earlier process has provably ended; its tokens become invalid.

    All pauses end, too: the clock may have been set since they began.
    """
    with database.writing() as connection:
        _end_claims(connection, owner)
        paused = update(JOBS).where(JOBS.c.state.in_(_DEPLOYABLE), JOBS.c.next_try_at > 0.0)
        connection.execute(paused.values(next_try_at=0.0))
        connection.execute(delete(LEASES).where(LEASES.c.owner == owner))


def _end_claims(connection: Connection, owner: str, besides: Collection[str] = ()) -> None:
    held = update(JOBS).where(JOBS.c.lease_owner == owner, JOBS.c.lease_token.not_in(besides))
    connection.execute(held.values(lease_owner="", lease_token="", lease_until=0.0))
