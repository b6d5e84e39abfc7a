"""Open an existing database, for administration, without changing its journal mode.

It creates no file, and keeps no lock beyond a transaction. On a read-only file system SQLite cannot create the files
beside a database with a write-ahead log; it is read without them then (sqlite.org/wal.html, 5).
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import NullPool, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError

from ffdl_batch.host.filesystem import is_network, is_read_only
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.ports.clock import Clock
from ffdl_batch.store.database import BUSY_TIMEOUT_S, Database, connect, over
from ffdl_batch.store.errors import StoreError, StoreUnavailable, refuse_other_file, refuse_other_kind
from ffdl_batch.store.sqlite_files import companions

_READ_AND_WRITE, _READ, _READ_UNCHANGING = "mode=rw", "mode=ro", "mode=ro&immutable=1"
_MODES_OF_FORMAT, _WITH_LOG = slice(18, 20), b"\2\2"
"""The bytes of a database's header with its write and read version (sqlite.org/fileformat.html, 1.3.3)."""


class NoDatabase(StoreError):
    """The file does not exist: no daemon has created it yet."""


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite database; None if the URL names another kind, or is invalid."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        return None
    return Path(parsed.database).absolute()


def connect_existing(url: str, clock: Clock | None = None) -> Database:
    """Return the database behind a URL.

    Raises :class:`NoDatabase` for a SQLite file that does not exist, StoreUnavailable for one on a read-only file
    system that cannot be read without writing, StoreError for an unknown URL, DatabaseDamaged if it is not a
    regular file.
    """
    path = sqlite_file(url)
    if path is None:
        return connect(url, None, clock or SystemClock())
    if not path.exists():
        raise NoDatabase(f"there is no database {path}; the daemon creates one when it starts")
    refuse_other_kind(path)
    return connect_file(path, clock or SystemClock(), mode=_mode(path))


def _mode(path: Path) -> str:
    """Return the mode for SQLite. The file does not change if no daemon has it open: then there is no log beside it."""
    real = Path(os.path.realpath(path))
    try:
        if not is_read_only(real.parent):
            return _READ_AND_WRITE
        _, log, memory = companions(real)
        if memory.exists() or is_network(real.parent) or not _keeps_log(real):
            return _READ
        if log.exists() and log.stat().st_size > 0:
            cure = "have it mounted for writing again, or set FFDL_DATABASE_URL to a copy of both files"
            raise StoreUnavailable(
                f"the database {path} cannot be read: its last writes are in {log}, and the file system is "
                f"read-only: {cure}"
            )
    except OSError as error:
        raise StoreUnavailable(f"the database {path} cannot be read: {error.strerror}") from error
    return _READ_UNCHANGING


def _keeps_log(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(_MODES_OF_FORMAT.stop)[_MODES_OF_FORMAT] == _WITH_LOG


def connect_file(
    path: Path, clock: Clock, busy_timeout_s: float = BUSY_TIMEOUT_S, mode: str = _READ_AND_WRITE
) -> Database:
    """Return the database of an existing SQLite file. Each use opens a connection: no file stays open."""

    def open_file() -> sqlite3.Connection:
        refuse_other_file(path)
        place = f"file:{quote(os.fsencode(path))}?{mode}"
        return sqlite3.connect(
            place, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )  # fmt: skip

    engine = create_engine("sqlite://", creator=open_file, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return over(engine, str(path), clock)
