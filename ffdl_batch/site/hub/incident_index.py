"""Stores the incidents that daemons report, for reports about the whole site.

The peer uid of the connection decides whose incidents they are. A user can make a daemon report anything, so each
user's share of the index is bounded, incidents are dated by the hub's clock, and a node has a score only if it
failed jobs of several users.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from sqlalchemy import delete, func, insert, select
from sqlalchemy.engine import Connection

from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.incidents.incident import LINE_CHARS, LINES, MOST_IN_REQUEST, Incident, IncidentRow, Origin
from ffdl_batch.domain.incidents.kinds import kind_of
from ffdl_batch.domain.incidents.node_score import LOOK_BACK_S, NodesReport, score_nodes
from ffdl_batch.domain.incidents.report import FaultsReport, Scope, make_report
from ffdl_batch.services.refusals import Refused, wrong_usage
from ffdl_batch.site.hub.schema import INCIDENTS
from ffdl_batch.site.hub.tokens.token_index import account_name
from ffdl_batch.store.database import Database

MOST_OF_USER = 5_000
"""Incidents of one user. With more, the oldest ones are removed."""
FEWEST_USERS = 2
"""Users whose jobs a node must have failed to get a score."""
_MESSAGE_CHARS, _NAME_CHARS, _MOST_NODES = 2000, 255, 64
_FARTHEST, _MOST_LOST = 1e11, 1e6
"""Bounds of times, in seconds since the epoch, and of the lost GPU-hours of one incident."""
_C = INCIDENTS.c


class IncidentIndex:
    """The incidents of all users. Safe in every thread. Methods raise StoreError."""

    def __init__(self, database: Database, account: Callable[[int], str] = account_name) -> None:
        """`database` has the hub's tables. `account` names the account of a uid."""
        self._database, self._account = database, account

    def newest(self, uid: int) -> float:
        """Return when this user's daemon noticed the newest incident that is stored, in seconds since the epoch; 0 if
        there is none."""
        with self._database.reading() as connection:
            query = select(func.max(_C.noticed_at)).where(_C.uid == uid)
            return float(connection.execute(query).scalar() or 0.0)

    def add(self, uid: int, rows: Iterable[IncidentRow]) -> None:
        """Store the incidents of a user that are not stored yet. Old ones are removed."""
        user = self._account(uid) or str(uid)
        with self._database.writing() as connection:
            now = self._database.now(connection)
            by_key = {row.key: row for row in rows}
            known = connection.execute(select(_C.key).where(_C.uid == uid, _C.key.in_(list(by_key)))).scalars()
            for key in list(known):
                del by_key[key]
            if by_key:
                connection.execute(insert(INCIDENTS), [_stored(uid, user, row, now) for row in by_key.values()])
            connection.execute(delete(INCIDENTS).where(_C.received_at < now - LOOK_BACK_S))
            self._remove_oldest(connection, uid)

    def faults(self, since: float, until: float | None, rows_after: float | None) -> FaultsReport:
        """Return the report of a period; see :class:`ffdl_batch.services.reports.incident_report.FaultsAsked`. An
        incident counts in the period in which the hub received it. Raises Refused for an empty period."""
        with self._database.reading() as connection:
            now = self._database.now(connection)
            end = now if until is None else min(until, now)
            if not since < end:
                raise empty_period()
            scope = Scope(since, end, now, since if rows_after is None else rows_after)
            query = select(_C.row).where(_C.received_at > scope.first, _C.received_at <= end)
            rows = list(_read(connection.execute(query.order_by(_C.received_at, _C.uid, _C.key)).scalars()))
        return make_report(rows, scope)

    def lost_gpu_hours(self, since: float, until: float) -> dict[str, float]:
        """Return the GPU-hours that incidents of each user lost, by name, of the incidents received in a period."""
        with self._database.reading() as connection:
            query = select(_C.uid, func.sum(_C.lost_gpu_hours)).where(_C.received_at > since, _C.received_at <= until)
            return {self._account(uid) or str(uid): hours for uid, hours in connection.execute(query.group_by(_C.uid))}

    def nodes(self) -> NodesReport:
        """Return the scores of the nodes that failed jobs of several users."""
        with self._database.reading() as connection:
            now = self._database.now(connection)
            query = select(_C.uid, _C.row).where(_C.origin == Origin.NODE.value, _C.at > now - LOOK_BACK_S)
            found = connection.execute(query).all()
        users: defaultdict[str, set[int]] = defaultdict(set)
        incidents = []
        for uid, text in found:
            (row,) = _read([text])
            for node in row.nodes:
                users[node].add(uid)
            incidents.append(
                Incident(row.job, row.attempt, row.episode, row.kind, min(row.at, now), row.code, nodes=row.nodes)
            )
        scores = [one for one in score_nodes(incidents, now) if len(users[one.node]) >= FEWEST_USERS]
        return NodesReport(now, tuple(scores))

    @staticmethod
    def _remove_oldest(connection: Connection, uid: int) -> None:
        last = select(_C.received_at).where(_C.uid == uid).order_by(_C.received_at.desc()).offset(MOST_OF_USER).limit(1)
        if (at := connection.execute(last).scalar()) is not None:
            connection.execute(delete(INCIDENTS).where(_C.uid == uid, _C.received_at <= at))


def empty_period() -> Refused:
    """Return the error for a report about an empty period."""
    return wrong_usage("the period is empty: it must begin before its end, and before now")


def read_incidents(plain: object) -> list[IncidentRow]:
    """Read the body of a daemon's request. Texts are cut to the lengths that daemons keep to. Raises ValueError."""
    rows = plain.get("incidents") if isinstance(plain, dict) else None
    if not isinstance(rows, list) or len(rows) > MOST_IN_REQUEST:
        raise ValueError(f"incidents must be a list of at most {MOST_IN_REQUEST} incidents")
    return [_checked(from_plain(IncidentRow, row)) for row in rows]


def _checked(row: IncidentRow) -> IncidentRow:
    moments = [row.at, row.noticed_at, *(one.at for one in row.evidence if one.at is not None)]
    if not all(0 <= at < _FARTHEST for at in moments) or not 0 <= row.lost_gpu_hours <= _MOST_LOST:
        raise ValueError(f"incident {row.key[:_NAME_CHARS]}: a time or the lost GPU-hours are out of range")
    if max(map(len, (row.job, row.episode, row.kind))) > _NAME_CHARS:
        raise ValueError(f"job, episode and kind must have at most {_NAME_CHARS} characters")
    kind = kind_of(row.kind)
    return replace(
        row,
        origin=Incident(row.job, row.attempt, row.episode, row.kind, row.at).origin.value,
        title=kind.title,
        cure=kind.cure,
        code=row.code[:_NAME_CHARS],
        message=row.message[:_MESSAGE_CHARS],
        name=row.name[:_NAME_CHARS],
        nodes=tuple(node[:_NAME_CHARS] for node in row.nodes[:_MOST_NODES]),
        evidence=tuple(
            replace(one, source=one.source[:_NAME_CHARS], text=one.text[:LINE_CHARS]) for one in row.evidence[:LINES]
        ),
    )


def _stored(uid: int, user: str, row: IncidentRow, now: float) -> dict[str, object]:
    plain = to_plain(replace(row, user=user, noticed_at=now, at=min(row.at, now)))
    return {
        "uid": uid,
        "key": row.key,
        "received_at": now,
        "noticed_at": min(row.noticed_at, now),
        "at": min(row.at, now),
        "origin": row.origin,
        "lost_gpu_hours": row.lost_gpu_hours,
        "row": json.dumps(plain, separators=(",", ":")),
    }


def _read(texts: Iterable[str]) -> Iterator[IncidentRow]:
    return (from_plain(IncidentRow, json.loads(text)) for text in texts)
