"""Add jobs; a repeated request creates no second job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection

from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.store.database import Database
from ffdl_batch.store.errors import Conflict, DuplicateId, StoreUnavailable
from ffdl_batch.store.queries import chunks, fetch_jobs
from ffdl_batch.store.records import JOB_COLUMNS, NOTHING, JobReader, NewJob, encode_lines, encode_spec
from ffdl_batch.store.schema import HISTORY, JOBS

_TRIES = 5
Key = tuple[int, str]


def add_jobs(database: Database, reader: JobReader, new_jobs: Sequence[NewJob]) -> list[Job]:
    """Add each of `new_jobs` in one transaction, and return their jobs in order; durable on return.

    If another transaction adds the same key at the same moment, this one starts again and finds its job.
    """
    refusal: Conflict | None = None
    for _ in range(_TRIES):
        try:
            with database.writing() as connection:
                jobs = _add(connection, reader, new_jobs)
        except Conflict as error:
            refusal = error
            with database.reading() as connection:
                _refuse_taken_ids(connection, reader, new_jobs)
        else:
            for job in jobs:  # only now, because a duplicate id may show only at the commit
                reader.keep(job)
            return jobs
    raise StoreUnavailable(f"jobs could not be added because others were added meanwhile; try again ({refusal})")


def _add(connection: Connection, reader: JobReader, new_jobs: Sequence[NewJob]) -> list[Job]:
    known = _existing(connection, reader, new_jobs)
    fresh: dict[JobId, NewJob] = {}
    taken: dict[Key, JobId] = {key: job.id for key, job in known.items()}
    ids: list[JobId] = []
    for new in new_jobs:
        key = (new.uid, new.submit_key)
        if new.submit_key and key in taken:
            ids.append(taken[key])
            continue
        if new.id in fresh:
            raise DuplicateId(f"the id {new.id} occurs twice in one request: draw another")
        taken[key] = new.id
        fresh[new.id] = new
        ids.append(new.id)
    if fresh:
        # In the order of keys: two transactions with the same keys wait for each other in one direction only.
        rows = sorted(fresh.values(), key=lambda new: (new.uid, new.submit_key, new.id))
        connection.execute(insert(JOBS), [_job_row(new) for new in rows])
        connection.execute(insert(HISTORY), [_history_row(new) for new in rows])
    jobs = {job.id: job for job in known.values()} | {new.id: _job(new) for new in fresh.values()}
    return [jobs[job_id] for job_id in ids]


def _existing(connection: Connection, reader: JobReader, new_jobs: Sequence[NewJob]) -> dict[Key, Job]:
    """Return the jobs that an earlier request with one of these keys created."""
    found: dict[Key, Job] = {}
    for uid in sorted({new.uid for new in new_jobs}):
        keys = [new.submit_key for new in new_jobs if new.uid == uid and new.submit_key]
        for chunk in chunks(keys):
            query = select(*JOB_COLUMNS, JOBS.c.submit_key).where(JOBS.c.uid == uid, JOBS.c.submit_key.in_(chunk))
            for row in connection.execute(query):
                found[(uid, row[-1])] = reader.job(row)
    return found


def _refuse_taken_ids(connection: Connection, reader: JobReader, new_jobs: Sequence[NewJob]) -> None:
    """Raise DuplicateId if an id belongs to a job that has no key of this request."""
    own = {job.id for job in _existing(connection, reader, new_jobs).values()}
    taken = fetch_jobs(connection, reader, [new.id for new in new_jobs]).keys() - own
    if taken:
        raise DuplicateId(f"the id {', '.join(sorted(taken))} belongs to another job: draw another")


def _job(new: NewJob) -> Job:
    """Return the job that is read from :func:`_job_row`."""
    return Job(
        id=new.id,
        uid=new.uid,
        user=new.user,
        spec=new.spec,
        state=JobState.PENDING,
        requested_action=RequestedAction.NONE,
        backend=new.backend,
        attempt=0,
        native_id="",
        revision=1,
        submitted_at=new.submitted_at,
        updated_at=new.submitted_at,
        model_digest=new.model_digest,
        warnings=new.warnings,
    )


def _job_row(new: NewJob) -> dict[str, Any]:
    element = new.spec.element
    return {
        "id": new.id,
        "uid": new.uid,
        "user": new.user,
        "name": new.spec.name,
        "spec": encode_spec(new.spec),
        "state": JobState.PENDING.value,
        "requested_action": RequestedAction.NONE.value,
        "backend": new.backend,
        "attempt": 0,
        "native_id": "",
        "revision": 1,
        "submitted_at": new.submitted_at,
        "updated_at": new.submitted_at,
        "error_code": "000",
        "message": "",
        "pending_reason": "",
        "nodes": "",
        "network": "",
        "results": "",
        "model_digest": new.model_digest,
        "warnings": encode_lines(new.warnings),
        "log_tail": encode_lines(()),
        "overrides": NOTHING,
        "spent": NOTHING,
        "submit_key": new.submit_key or None,
        "array_id": element.array if element is not None else "",
        "array_index": element.index if element is not None else 0,
        "lease_owner": "",
        "lease_token": "",
        "lease_until": 0.0,
        "next_try_at": 0.0,
        "deploy_tries": 0,
    }


def _history_row(new: NewJob) -> dict[str, Any]:
    return {
        "job_id": new.id,
        "seq": 1,
        "at": new.submitted_at,
        "state": JobState.PENDING.value,
        "attempt": 0,
        "cause": "progress",
        "message": "",
        "error_code": "000",
    }
