"""A way into a database that is there, which changes nothing of how it is kept: to look at it, and to administer it.

No file is made, no journal mode is set, no lock is kept beyond a transaction.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import NullPool, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError

from ffdl_batch.ports.clock import Clock, SystemClock
from ffdl_batch.store.database import BUSY_TIMEOUT_S, Database, connect, over
from ffdl_batch.store.errors import StoreError


class NoDatabase(StoreError):
    """There is no such file: no daemon has made it yet."""


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite database, None where the URL names another kind (or is none)."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        return None
    return Path(parsed.database).absolute()


def connect_existing(url: str, clock: Clock | None = None) -> Database:
    """The database behind a URL. Raises :class:`NoDatabase` for a SQLite file that does not exist, StoreError for a URL
    that is none of ours."""
    path = sqlite_file(url)
    if path is None:
        return connect(url, None, clock or SystemClock())
    if not path.exists():
        raise NoDatabase(f"there is no database {path}; the daemon makes one when it starts")
    return connect_file(path, clock or SystemClock())


def connect_file(path: Path, clock: Clock, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Database:
    """A SQLite file that exists. One connection per use: nothing of it stays open."""

    def open_file() -> sqlite3.Connection:
        place = f"file:{quote(str(path))}?mode=rw"
        return sqlite3.connect(
            place, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )  # fmt: skip

    engine = create_engine("sqlite://", creator=open_file, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return over(engine, str(path), clock)
