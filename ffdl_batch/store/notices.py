"""Store notices: which incidents are still to be sent to which addresses."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, insert, select, update

from ffdl_batch.domain.incidents.site_settings import Channel, Notice
from ffdl_batch.store.database import Database
from ffdl_batch.store.queries import chunks
from ffdl_batch.store.schema import NOTICES

_KEY = (NOTICES.c.job_id, NOTICES.c.attempt, NOTICES.c.episode, NOTICES.c.channel, NOTICES.c.address)
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
                for row in connection.execute(select(*_KEY).where(NOTICES.c.job_id.in_(chunk)))
            }
            fresh = {_key(notice): notice for notice in wanted if _key(notice) not in known}
            if fresh:
                now = self._database.now(connection)
                connection.execute(insert(NOTICES), [_row(notice, now) for notice in fresh.values()])
        return len(fresh)

    def due(self, limit: int) -> list[Notice]:
        """Return the notices whose next try is due, oldest first."""
        columns = (NOTICES.c.id, *_KEY, NOTICES.c.tries)
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


def _key(notice: Notice) -> tuple[str, int, str, str, str]:
    return notice.job_id, notice.attempt, notice.episode, notice.channel.value, notice.address


def _row(notice: Notice, now: float) -> dict[str, object]:
    job_id, attempt, episode, channel, address = _key(notice)
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
