"""Connections and transactions of the two databases; knows no table.

SQLite: one connection, serialised by the pool. Durable means fsync'ed at commit: `synchronous` FULL with a
write-ahead log on a local file system; on a network file system no log and no shared memory, but a rollback
journal and a lock that is kept for as long as the store is open (sqlite.org/wal.html, lockingv3.html).
Writers begin with BEGIN IMMEDIATE, so that a transaction never finds out at its end that it came second.

PostgreSQL: READ COMMITTED with row locks; all daemons use the server's clock.

A commit to a SQLite file that was moved or replaced is never reported as a success (:class:`OpenFiles`).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Double, Engine, create_engine, event, func, literal, make_url, select, type_coerce
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool
from sqlalchemy.sql import ColumnElement

from ffdl_batch.domain.daemon_health import DatabaseOutage
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.filesystem import is_network
from ffdl_batch.ports.clock import Clock
from ffdl_batch.store.errors import (
    ROW_ERRORS,
    Conflict,
    DatabaseDamaged,
    DatabaseGone,
    RowDamaged,
    ServerDiskRefuses,
    StoreError,
    StoreUnavailable,
    refuse_other_file,
    refuse_other_kind,
    translate,
)
from ffdl_batch.store.sqlite_files import OpenFiles

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 30.0
_BEGIN = "sqlite_begin"
_WROTE = "wrote"
_LOCAL_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "journal_size_limit = 67108864")
_NETWORK_PRAGMAS = ("locking_mode = EXCLUSIVE", "journal_mode = TRUNCATE", "synchronous = EXTRA")
# SQLite's default of 2 MB holds less than a thousand jobs; with more, each query of all live jobs reads the file again.
_CACHE = "cache_size = -32768"
"""32 MiB at most, for the one connection."""
# idle_in_transaction_session_timeout: a daemon that was stopped, or whose machine vanished, in mid-transaction gives
# its locks back before TCP notices, and before a lease of the usual length is over; ours idle for milliseconds.
# lock_timeout: a stuck peer must not stop the loops for ever; longer than the other, to outlast a stopped peer.
STANDSTILL_S = 10
_POSTGRES_OPTIONS = "-c lock_timeout=30s -c idle_in_transaction_session_timeout={standstill_s}s"


class WriteHealth:
    """Record whether the last write to a database succeeded. Safe in every thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._trouble: DatabaseOutage | None = None
        self._kind: type[StoreError] | None = None
        self._needs_rows = False

    @property
    def trouble(self) -> DatabaseOutage | None:
        """Why the last write failed; None if it succeeded."""
        return self._trouble

    def failed(self, error: StoreError) -> None:
        """Record that a write was refused."""
        with self._lock:
            known = self._trouble if self._kind is type(error) else None
            self._trouble = DatabaseOutage(known.since if known is not None else self._now(), str(error))
            self._kind = type(error)
            self._needs_rows = isinstance(error, ServerDiskRefuses)

    def succeeded(self) -> None:
        """Record that rows were written. A transaction without rows proves nothing: a read-only disk accepts one."""
        with self._lock:
            self._trouble = None

    def answered(self) -> None:
        """Record that a server committed a transaction without rows. Only a refusal of its disk can still hold.

        A daemon may have nothing to write for hours if another one holds the leases.
        """
        with self._lock:
            if not self._needs_rows:
                self._trouble = None


@dataclass(frozen=True, slots=True)
class Database:
    """One open database.

    `place` is its name in messages, without a password. `files` are those of a SQLite database that is kept open.
    """

    engine: Engine
    place: str
    clock: Clock
    health: WriteHealth
    files: OpenFiles | None = None

    @property
    def is_postgres(self) -> bool:
        """Whether this is PostgreSQL; else it is SQLite."""
        return self.engine.dialect.name == "postgresql"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection for reading. Raises :class:`StoreError`, as all functions here.

        The block builds values from rows. If it raises one of ROW_ERRORS, the rows are damaged.
        """
        with self._translated(), self.engine.connect() as connection:
            try:
                yield connection
            except RowDamaged:
                raise
            except ROW_ERRORS as error:
                raise RowDamaged(f"a row cannot be read: {type(error).__name__}: {error}") from error

    @contextmanager
    def writing(self, begin: str = "IMMEDIATE") -> Iterator[Connection]:
        """Yield a connection in one transaction: durable if the block succeeds, undone if it raises.

        `begin` is SQLite's kind of transaction (IMMEDIATE or EXCLUSIVE).
        """
        with self._translated(noted=True), self.engine.connect() as connection:
            self._refuse_misplaced(connection)
            connection.execution_options(**{_BEGIN: begin})
            connection.info.pop(_WROTE, None)
            try:
                with connection.begin():
                    yield connection
            except SQLAlchemyError:
                self._refuse_misplaced(connection)  # its message names the cause
                raise
            wrote = connection.info.pop(_WROTE, False)
            self._refuse_misplaced(connection)  # a commit into a file that was deleted meanwhile is lost
            if wrote:
                self.health.succeeded()
            elif self.is_postgres:
                self.health.answered()

    def check_files(self) -> None:
        """Raise DatabaseGone, also for `health`, if a file of a SQLite database is not in its place any more."""
        if self.files is None:
            return
        with self._translated(noted=True):
            if self.files.find_misplaced() is not None:
                with self.engine.connect() as connection:  # no other thread reopens the files meanwhile
                    self._refuse_misplaced(connection)

    def now_expression(self) -> ColumnElement[float]:
        """Return the time as an SQL expression: the server's on PostgreSQL, so that daemons agree, else our clock's."""
        if self.is_postgres:
            return type_coerce(func.date_part("epoch", func.clock_timestamp()), Double)
        return literal(self.clock.now(), Double)

    def now(self, connection: Connection) -> float:
        """Return the time of :meth:`now_expression`; no statement on SQLite."""
        if not self.is_postgres:
            return self.clock.now()
        return float(connection.execute(select(self.now_expression())).scalar_one())

    def close(self) -> None:
        """Close all connections. SQLite writes its log into the database, unless that was deleted or replaced."""
        self.engine.dispose()

    def _refuse_misplaced(self, connection: Connection) -> None:
        if self.files is not None and not connection.invalidated:
            self.files.refuse_misplaced()

    @contextmanager
    def _translated(self, *, noted: bool = False) -> Iterator[None]:
        """Raise errors as :class:`StoreError`; with `noted`, record them in `health` unless they are about rows."""
        driver = self.engine.dialect.dbapi
        raw = (driver.Error,) if driver is not None else ()
        try:
            yield
        except (SQLAlchemyError, DatabaseGone, DatabaseDamaged, RowDamaged, UnicodeDecodeError, *raw) as error:
            failure = error if isinstance(error, StoreError) else translate(error, self.place)
            if noted and not isinstance(failure, Conflict):
                self.health.failed(failure)
            raise failure from (None if failure is error else error)


def over(engine: Engine, place: str, clock: Clock, files: OpenFiles | None = None) -> Database:
    """Return the database that `engine` opens."""
    event.listen(engine, "after_cursor_execute", _note_rows)
    return Database(engine, place, clock, WriteHealth(clock.now), files)


def _note_rows(
    connection: Connection, cursor: Any, _statement: str, _parameters: object, context: Any, _many: bool
) -> None:
    if (context.isinsert or context.isupdate or context.isdelete) and cursor.rowcount != 0:
        connection.info[_WROTE] = True


def connect(text: str, network_fs: bool | None, clock: Clock) -> Database:
    """Return the database behind a URL. A missing SQLite file is created (0600); the schema is not checked.

    Raises :class:`StoreError` for an unknown URL or a driver that is not installed.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # its text may contain a part of a password
        raise StoreError(f"the database URL is not readable; {_URL_HELP}, with %40 for @ and so on") from None
    if url.get_backend_name() == "sqlite" and url.get_driver_name() == "pysqlite":
        return _connect_sqlite(url, network_fs, clock)
    if url.get_backend_name() == "postgresql" and url.drivername in ("postgresql", "postgresql+psycopg"):
        return _connect_postgres(url.set(drivername="postgresql+psycopg"), clock)
    raise StoreError(f"the database URL names {url.drivername!r}; {_URL_HELP}")


_URL_HELP = "write sqlite:////directory/jobs.db or postgresql+psycopg://user@host/database"


def _connect_postgres(url: URL, clock: Clock) -> Database:
    arguments: Mapping[str, object] = {
        "connect_timeout": 10,
        "keepalives_idle": 30,  # a server whose machine vanished is noticed within a minute, not in two hours
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
        "client_encoding": "utf8",
        "options": f"{url.query.get('options', '')} {_POSTGRES_OPTIONS.format(standstill_s=STANDSTILL_S)}".strip(),
    }
    try:
        engine = create_engine(
            url, pool_size=5, max_overflow=5, pool_timeout=POOL_TIMEOUT_S, pool_pre_ping=True, connect_args=arguments
        )
    except ImportError as error:
        raise StoreError(f"PostgreSQL needs psycopg: pip install 'ffdl-batch[postgres]' ({error})") from error

    @event.listens_for(engine, "after_cursor_execute")
    def start_timer(
        _: Connection, cursor: Any, _statement: str, _parameters: object, _context: object, executemany: bool
    ) -> None:
        # psycopg sends many rows as a pipeline, with a Flush behind its Sync. A Flush stops the server's timer for
        # transactions that stand still; a statement of its own starts it again (seen with PostgreSQL 15, psycopg 3.3).
        if executemany:
            cursor.connection.execute("SELECT")

    shown = url.update_query_dict({"password": "***"}) if "password" in url.query else url
    return over(engine, shown.render_as_string(hide_password=True), clock)


def _connect_sqlite(url: URL, network_fs: bool | None, clock: Clock) -> Database:
    if not url.database or url.database == ":memory:":
        raise StoreError(f"a database in memory would lose jobs; {_URL_HELP}")
    path = Path(url.database).absolute()
    refuse_other_kind(path)
    _create_file(path)
    on_network = is_network(Path(os.path.realpath(path)).parent) if network_fs is None else network_fs
    files = OpenFiles(path, ("-journal",) if on_network else ("-wal", "-shm"))

    def open_file() -> sqlite3.Connection:
        refuse_other_file(path)
        place = f"file:{quote(os.fsencode(path))}?mode=rw"  # one that was deleted must not come back empty
        return sqlite3.connect(place, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)

    engine = create_engine(
        "sqlite://", creator=open_file, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=POOL_TIMEOUT_S
    )
    pragmas = _NETWORK_PRAGMAS if on_network else _LOCAL_PRAGMAS

    @event.listens_for(engine, "connect")
    def prepare(dbapi_connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        assert isinstance(dbapi_connection, sqlite3.Connection)
        dbapi_connection.isolation_level = None  # the driver begins nothing by itself; `begin` below does
        for pragma in (*pragmas, _CACHE, "foreign_keys = ON"):
            dbapi_connection.execute(f"PRAGMA {pragma}").close()
        if on_network:  # take the lock now: a second daemon must not get as far as its first write
            dbapi_connection.execute("BEGIN EXCLUSIVE").close()
            dbapi_connection.execute("COMMIT").close()
        dbapi_connection.execute("SELECT count(*) FROM sqlite_master").close()  # it has its log now
        files.note_opened()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(_BEGIN, 'DEFERRED')}")

    return over(engine, str(path), clock, files)


def _create_file(path: Path) -> None:
    """Create the file for its owner alone; SQLite gives its journals the same mode."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreUnavailable(
            f"the database {path} cannot be opened: {error.strerror}; "
            "its directory must exist, be writable for this user, and have space"
        ) from error
