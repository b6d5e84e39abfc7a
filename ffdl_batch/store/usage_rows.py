"""Read the rows for usage reports, one page of jobs at a time, with three statements for each page.

A page is read as a whole and the connection is released: SQLite has only one, and a server ends transactions of slow
readers. Only some keys of the specs are read, which takes an eighth of the time for a whole spec.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.engine import Connection

from ffdl_batch.domain.job.spec import Staging
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.usage_timeline import Asked, AttemptRecord, Step
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.database import Database
from ffdl_batch.store.records import decode_resizes
from ffdl_batch.store.schema import ATTEMPTS, HISTORY, JOBS

PAGE = 2000 if sqlite3.sqlite_version_info >= (3, 32) else 900
"""Jobs of one page, which is also the number of variables of the other statements."""
_STATES = {state.value: state for state in JobState}
_AHEAD = Staging.AHEAD.value
_JOBS = tuple(
    JOBS.c[name]
    for name in (
        "id", "uid", "user", "name", "spec", "state", "backend", "submitted_at", "ended_at", "error_code", "overrides",
        "array_id",
    )
)  # fmt: skip
_ATTEMPTS = tuple(
    ATTEMPTS.c[name]
    for name in (
        "job_id", "number", "created_at", "native_id", "ended_at", "outcome_code", "interruption", "gpu_seconds",
        "checkpoint", "token", "backend", "gpus", "learners", "resizes",
    )
)  # fmt: skip
_HISTORY = tuple(HISTORY.c[name] for name in ("job_id", "at", "state", "attempt", "cause"))


@dataclass(frozen=True, slots=True)
class UsedJob:
    """A job with the recorded times of its states and attempts. `account` "" = it has none."""

    id: str
    uid: int
    user: str
    name: str
    array: str
    state: JobState
    backend: str
    submitted_at: float
    ended_at: float | None
    error_code: str
    framework: str
    version: str
    account: str
    gpu_type: str
    asked: Asked
    attempts: Mapping[int, AttemptRecord]
    tokens: Mapping[int, str]
    backends: Mapping[int, str]
    steps: tuple[Step, ...]


def used_jobs(database: Database, uid: int | None, since: float, until: float) -> Iterator[list[UsedJob]]:
    """Yield pages of the jobs that were submitted before `until` and had not ended at `since`, in the order of
    submission; `uid` None = of all users. No connection is held between two pages."""
    after = (0.0, "")
    while True:
        with database.reading() as connection:
            rows = _jobs(connection, uid, since, until, after)
            if not rows:
                return
            ids = [row[0] for row in rows]
            attempts = connection.execute(select(*_ATTEMPTS).where(ATTEMPTS.c.job_id.in_(ids))).all()
            steps = connection.execute(
                select(*_HISTORY).where(HISTORY.c.job_id.in_(ids)).order_by(HISTORY.c.job_id, HISTORY.c.seq)
            ).all()
            made = _made(rows, attempts, steps)
        yield made
        after = rows[-1].submitted_at, ids[-1]


def _jobs(
    connection: Connection, uid: int | None, since: float, until: float, after: tuple[float, str]
) -> Sequence[Any]:
    """Return the next page by the index of submissions. By ids, every page would sort all jobs of a user."""
    at, job_id = after
    lives = or_(JOBS.c.ended_at.is_(None), JOBS.c.ended_at >= since)
    is_next = and_(JOBS.c.submitted_at >= at, or_(JOBS.c.submitted_at > at, JOBS.c.id > job_id))
    query = select(*_JOBS).where(is_next, JOBS.c.submitted_at < until, lives)
    if uid is not None:
        query = query.where(JOBS.c.uid == uid)
    return connection.execute(query.order_by(JOBS.c.submitted_at, JOBS.c.id).limit(PAGE)).all()


def _made(jobs: Sequence[Any], attempts: Sequence[Any], steps: Sequence[Any]) -> list[UsedJob]:
    records: dict[str, dict[int, AttemptRecord]] = {}
    tokens: dict[str, dict[int, str]] = {}
    backends: dict[str, dict[int, str]] = {}
    for row in attempts:
        job_id, number, created, native, ended, code, why, gpu_seconds, checkpoint, token, backend = row[:11]
        gpus, learners, resizes = row[11:]
        changed = ((one.at, one.learners) for one in decode_resizes(resizes))
        sizes = ((created, learners), *changed) if learners else ()
        saved = None if checkpoint == "{}" else json.loads(checkpoint).get("saved_at")
        record = AttemptRecord(number, created, native, ended, code, why, gpu_seconds, saved, gpus, sizes)
        records.setdefault(job_id, {})[number] = record
        tokens.setdefault(job_id, {})[number] = token
        backends.setdefault(job_id, {})[number] = backend
    history: dict[str, list[Step]] = {}
    for job_id, at, state, attempt, cause in steps:
        history.setdefault(job_id, []).append(Step(at, _STATES[state], attempt, cause))
    return [
        _job(row, records.get(row[0], {}), tokens.get(row[0], {}), backends.get(row[0], {}), history.get(row[0], []))
        for row in jobs
    ]


def _job(
    row: Any,
    attempts: Mapping[int, AttemptRecord],
    tokens: Mapping[int, str],
    backends: Mapping[int, str],
    steps: Sequence[Step],
) -> UsedJob:
    job_id, uid, user, name, text, state, backend, submitted_at, ended_at, error_code, overrides, array = row
    spec: dict[str, Any] = json.loads(text)
    framework, batch = spec["framework"], spec.get("batch", {})
    altered = {} if overrides == "{}" else json.loads(overrides)
    return UsedJob(
        job_id, uid, user, name, array, _STATES[state], backend, submitted_at, ended_at, error_code,
        framework=framework["name"],
        version=framework.get("version", ""),
        account=batch.get("account", ""),
        gpu_type=spec.get("resources", {}).get("gpu_type", ""),
        asked=_asked({**spec.get("resources", {}), **_size(altered)}, batch, is_element=bool(array)),
        attempts=attempts,
        tokens=tokens,
        backends=backends,
        steps=tuple(steps),
    )  # fmt: skip


def _size(altered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources that a resume has changed."""
    return {key: altered[key] for key in ("gpus", "learners") if altered.get(key) is not None}


def _asked(wanted: Mapping[str, Any], batch: Mapping[str, Any], *, is_element: bool) -> Asked:
    """Return the requested resources like :func:`ffdl_batch.domain.job.learner_layout.parts_of`."""
    each = float(wanted.get("gpus", 0.0))
    cpus, learners = float(wanted.get("cpus", 0.0)), int(wanted.get("learners", 1))
    ahead = batch.get("staging") == _AHEAD and not is_element
    roles = batch.get("roles") or {}
    if not roles:
        return Asked(learners, each, each * learners, cpus * learners, ahead)
    parts = [(role.get("learners", 1), role.get("gpus"), role.get("cpus")) for role in roles.values()]
    devices = [(count, each if own is None else float(own)) for count, own, _ in parts]
    processors = sum(count * (cpus if own is None else float(own)) for count, _, own in parts)
    most = max(own for _, own in devices)
    return Asked(learners, most, sum(count * own for count, own in devices), processors, ahead)
