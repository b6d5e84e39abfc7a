"""Store incidents. Each is written with the change of state that it belongs to; reports read them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection

from ffdl_batch.domain.incidents.incident import LINE_CHARS, LINES, Evidence, Incident, Origin
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.store.queries import chunks
from ffdl_batch.store.schema import INCIDENTS, JOBS

Row = dict[str, Any]
Key = tuple[str, int, str]
_KEY = (INCIDENTS.c.job_id, INCIDENTS.c.attempt, INCIDENTS.c.episode)
_COLUMNS = tuple(INCIDENTS.c)


@dataclass(frozen=True, slots=True)
class Noticed:
    """An incident, and when its row was written, in seconds since the epoch by the database's clock."""

    incident: Incident
    noticed_at: float


def incident_row(incident: Incident, noticed_at: float) -> Row:
    """Return the row of an incident; evidence is cut to the allowed size."""
    evidence = [[one.source, one.text[:LINE_CHARS], one.at] for one in incident.evidence[:LINES]]
    return {
        "job_id": incident.job_id,
        "attempt": incident.attempt,
        "episode": incident.episode,
        "kind": incident.kind,
        "at": incident.at,
        "noticed_at": noticed_at,
        "code": incident.code,
        "message": incident.message,
        "nodes": " ".join(incident.nodes),
        "learner": incident.learner,
        "evidence": json.dumps(evidence, separators=(",", ":")),
        "lost_gpu_s": incident.lost_gpu_s,
    }


def add_incidents(connection: Connection, rows: Sequence[Row]) -> None:
    """Add those of `rows` that do not exist yet. The caller has locked the rows of their jobs."""
    known = _keys(connection, [row["job_id"] for row in rows])
    fresh: dict[Key, Row] = {}
    for row in rows:
        key = (row["job_id"], row["attempt"], row["episode"])
        if key not in known:
            fresh.setdefault(key, row)
    if fresh:
        connection.execute(insert(INCIDENTS), list(fresh.values()))


def noticed_between(
    connection: Connection, after: float, until: float = math.inf, uid: int | None = None, origin: Origin | None = None
) -> list[Noticed]:
    """Return incidents whose rows were written after `after` and not after `until`, in that order; with `uid` only
    those of one user, with `origin` only those of this origin."""
    query = select(*_COLUMNS).where(INCIDENTS.c.noticed_at > after)
    if until != math.inf:
        query = query.where(INCIDENTS.c.noticed_at <= until)
    if uid is not None:
        query = query.join(JOBS, JOBS.c.id == INCIDENTS.c.job_id).where(JOBS.c.uid == uid)
    if origin is not None:
        query = query.where(INCIDENTS.c.kind.startswith(f"{origin.value}.", autoescape=True))
    return [_noticed(row) for row in connection.execute(query.order_by(INCIDENTS.c.noticed_at, *_KEY))]


def of_jobs(connection: Connection, ids: Collection[str]) -> dict[JobId, list[Noticed]]:
    """Return the incidents of the jobs `ids`, in the order in which they happened."""
    found: dict[JobId, list[Noticed]] = {}
    for chunk in chunks(ids):
        query = select(*_COLUMNS).where(INCIDENTS.c.job_id.in_(chunk)).order_by(INCIDENTS.c.at, *_KEY)
        for row in connection.execute(query):
            found.setdefault(JobId(row.job_id), []).append(_noticed(row))
    return found


def _keys(connection: Connection, ids: Collection[str]) -> set[Key]:
    found: set[Key] = set()
    for chunk in chunks(ids):
        rows = connection.execute(select(*_KEY).where(INCIDENTS.c.job_id.in_(chunk)))
        found |= {(job_id, attempt, episode) for job_id, attempt, episode in rows}
    return found


def _noticed(row: Any) -> Noticed:
    evidence = tuple(Evidence(source, text, at) for source, text, at in json.loads(row.evidence))
    incident = Incident(
        row.job_id,
        row.attempt,
        row.episode,
        row.kind,
        float(row.at),
        row.code,
        row.message,
        tuple(row.nodes.split()),
        row.learner,
        evidence,
        float(row.lost_gpu_s),
    )
    return Noticed(incident, float(row.noticed_at))
