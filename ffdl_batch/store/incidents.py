"""Store incidents, and the notices about them. An incident is written with the change of state that it belongs to;
reports read them. A notice says which incident is still to be sent to which address."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.engine import Connection

from ffdl_batch.domain.incidents.incident import LINE_CHARS, LINES, Evidence, Incident, Origin
from ffdl_batch.domain.incidents.site_settings import Channel, Notice
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.database import Database
from ffdl_batch.store.queries import chunks
from ffdl_batch.store.schema import INCIDENTS, JOBS, NOTICES

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


_NOTICE_KEY = (NOTICES.c.job_id, NOTICES.c.attempt, NOTICES.c.episode, NOTICES.c.channel, NOTICES.c.address)
_OPEN = NOTICES.c.sent_at.is_(None)


class Notices:
    """The notices of one database. Each method is a transaction, and raises the same errors as the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, wanted: Sequence[Notice]) -> int:
        """Add those of `wanted` that do not exist yet, due now; return how many. The caller holds their lease."""
        ids = {notice.job_id for notice in wanted}
        if not ids:
            return 0
        with self._database.writing() as connection:
            known = {
                tuple(row)
                for chunk in chunks(ids)
                for row in connection.execute(select(*_NOTICE_KEY).where(NOTICES.c.job_id.in_(chunk)))
            }
            fresh = {_notice_key(notice): notice for notice in wanted if _notice_key(notice) not in known}
            if fresh:
                now = self._database.now(connection)
                connection.execute(insert(NOTICES), [_notice_row(notice, now) for notice in fresh.values()])
        return len(fresh)

    def due(self, limit: int) -> list[Notice]:
        """Return the notices whose next try is due, oldest first."""
        columns = (NOTICES.c.id, *_NOTICE_KEY, NOTICES.c.tries)
        with self._database.reading() as connection:
            now = self._database.now(connection)
            query = select(*columns).where(_OPEN, NOTICES.c.next_try_at <= now)
            rows = connection.execute(query.order_by(NOTICES.c.created_at, NOTICES.c.id).limit(limit)).all()
            return [Notice(row[0], *row[1:4], Channel(row.channel), row.address, row.tries) for row in rows]

    def next_due(self) -> float | None:
        """Return when the next try is due, in seconds since the epoch; None if no notice is open."""
        with self._database.reading() as connection:
            at = connection.execute(select(func.min(NOTICES.c.next_try_at)).where(_OPEN)).scalar_one()
        return None if at is None else float(at)

    def settle(self, notice: Notice, at: float, failure: str = "") -> None:
        """Record that the notice was sent, or with `failure` that it is abandoned."""
        self._update(notice, sent_at=at, failure=failure)

    def put_off(self, notice: Notice, until: float, failure: str) -> None:
        """Record that a try failed; the next one is at `until`."""
        self._update(notice, next_try_at=until, failure=failure)

    def _update(self, notice: Notice, **values: object) -> None:
        query = update(NOTICES).where(NOTICES.c.id == notice.id).values(values | {"tries": notice.tries + 1})
        with self._database.writing() as connection:
            connection.execute(query)


def _notice_key(notice: Notice) -> tuple[str, int, str, str, str]:
    return notice.job_id, notice.attempt, notice.episode, notice.channel.value, notice.address


def _notice_row(notice: Notice, now: float) -> dict[str, object]:
    job_id, attempt, episode, channel, address = _notice_key(notice)
    return {
        "id": notice.id,
        "job_id": job_id,
        "attempt": attempt,
        "episode": episode,
        "channel": channel,
        "address": address,
        "created_at": now,
        "next_try_at": now,
        "tries": 0,
        "failure": "",
    }
