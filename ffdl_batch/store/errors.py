"""Translates errors of the databases into exceptions whose messages say what to do.

Sources: sqlite.org/rescode.html; PostgreSQL manual, appendix A (error codes); psycopg's errors carry `sqlstate`,
sqlite3's carry `sqlite_errorcode` (Python 3.11).
"""

from __future__ import annotations

import errno
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ffdl_batch.host.filesystem import why_unwritable
from ffdl_batch.host.resource_exhaustion import MEMORY


class StoreError(Exception):
    """The database refused or failed. Trying again does not help unless the subclass says so."""


class StoreUnavailable(StoreError):
    """It is not known that anything was written; the same call may succeed later. The message says what to do.

    `is_undone`: certainly nothing was written. Otherwise the commit may have succeeded.
    """

    def __init__(self, message: str, *, is_undone: bool = False) -> None:
        super().__init__(message)
        self.is_undone = is_undone


class ServerDiskRefuses(StoreUnavailable):
    """The database server answers, but its disk is full or read-only."""


class DatabaseGone(StoreUnavailable):
    """A file of the open database was moved or replaced: writes would be lost when the process ends."""


class DatabaseMissing(StoreError):
    """There are jobs, but their database is missing. Neither a new database nor an older copy may take its place."""


class DatabaseDamaged(StoreError):
    """The database is damaged: its file, its tables, or the content of its rows. It must be replaced by a copy."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message
        """What the database reported, without the path and the cure."""


class RowDamaged(ValueError):
    """A row has a value that no release writes. Internal: callers of the store get DatabaseDamaged."""


ROW_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What building values from a damaged row raises, as JSON of another type or with too many levels."""


class SchemaTooNew(StoreError):
    """A newer release has migrated this database; this one must not touch it."""


class DuplicateId(StoreError):
    """A new job's id is taken by another job: draw another id and try again."""


class Conflict(StoreError):
    """A unique key was taken by another transaction meanwhile. Internal: the store tries again by itself."""


_FULL = "the disk (or the quota) is full: free some space; the daemon continues by itself"
_READ_ONLY = "its file system is read-only: have it mounted for writing again; the daemon continues by itself"
_NOT_OURS = "it is read-only: make the file and its directory writable for this user"
_SQLITE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: f"{_NOT_OURS}, and check that the file system is not mounted read-only",
    sqlite3.SQLITE_PERM: "access is denied: make the file readable and writable for this user",
    sqlite3.SQLITE_BUSY: "another process has it locked: find it (another daemon? `fuser FILE`) and end it, "
    "or wait until it is done",
    sqlite3.SQLITE_LOCKED: "another connection has it locked; try again",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that its directory exists and is writable for this user",
    sqlite3.SQLITE_PROTOCOL: "locking failed: the file system's locks do not work; keep the file on another one",
    sqlite3.SQLITE_IOERR: "the file system reports an I/O error: check quota, space and the file server",
}
_REFUSALS = {
    errno.EROFS: _READ_ONLY,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _NOT_OURS,
    errno.EPERM: _NOT_OURS,
}
_UNCLEAR = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM})
"""SQLite's result codes that have many different causes."""
_UNDOES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY})
"""Errors after which the transaction is certainly undone, because its last page was not written. After an I/O error it
may have been."""
_SQLITE_LOCKS = (
    "the file system refuses file locks: mount it with them (Lustre: -o flock; NFS: without nolock), "
    "or keep the file on another file system"
)
_LOCK_IOERRS = frozenset(
    {
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_UNLOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
    }
)
_MEMORY_IOERRS = {
    sqlite3.SQLITE_IOERR_NOMEM: MEMORY,
    sqlite3.SQLITE_IOERR_SHMMAP: "its -shm file cannot be mapped into memory: raise the limit (ulimit -v); where there "
    "is no limit, keep the database on a file system that maps files",
}
"""I/O errors that a disk does not cause."""
_MAGIC = b"SQLite format 3\0"
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_DAMAGES = (
    "could not decode to utf-8",  # Python's sqlite3 has no code for this error
    "no such table",
    "no such column",
    "malformed",
    "unsupported file format",
)
"""Beginnings of messages without an error code that show a damaged schema or text. Every statement fits the schema that
was found when the database was opened."""

_TOO_MANY = "the server has no connection left: raise max_connections or end other clients"
_STARTING = "the server is shutting down, starting up, or has cancelled the statement; try again"
_NOT_LET_IN = (
    "the server does not let us in: check user and database in the URL, and the password in ~/.pgpass or in the file "
    "that PGPASSFILE names (mode 0600)"
)
_NO_ROOM, _DISK_ERRORS = "53100", "58"
_CORRUPTED = ("XX001", "XX002")
"""data_corrupted, index_corrupted."""
_POSTGRES_STATES = {
    _NO_ROOM: "the server's disk is full: free some space there; the daemon continues by itself",
    "53300": _TOO_MANY,
    "25P03": "a transaction stood still for too long and was undone (was this daemon stopped?); try again",
    "25006": "the server is read-only (a standby?): point the URL at the primary server",
    "55P03": "a lock was not granted in time: another process holds it; try again",
    "40001": "another transaction came first; try again",
    "40P01": "another transaction came first; try again",
}
_POSTGRES_CLASSES = {
    "08": "the connection was lost; try again",
    "53": "the server is short of resources: look into its log",
    "57": _STARTING,
    _DISK_ERRORS: "the server's disk or operating system reports an error: look into its log",
}
# libpq gives no SQLSTATE where a connection cannot be made, so the sentence has to do. In another language
# (lc_messages) none of these is found, and the general advice names all causes.
_POSTGRES_REFUSALS = (
    ("too many clients", _TOO_MANY),
    ("too many connections", _TOO_MANY),
    ("connection slots are reserved", _TOO_MANY),
    ("the database system is", _STARTING),
    ("no password supplied", _NOT_LET_IN),
    ("authentication failed", _NOT_LET_IN),
    ("no pg_hba.conf entry", _NOT_LET_IN),
    ('" does not exist', "the server has no such user or database: correct the URL, or create it (ENCODING 'UTF8')"),
)
_UNREACHABLE = (
    "the server cannot be reached: check that it runs, that the URL is right, and that it lets us in; a daemon tries "
    "again by itself"
)


def translate(error: Exception, place: str) -> StoreError:
    """Return the :class:`StoreError` for `error`, which SQLAlchemy or a driver raised for the database `place`."""
    if isinstance(error, PoolTimeout):
        return StoreUnavailable(f"the database {place} is busy: no connection became free in time; try again")
    if isinstance(error, IntegrityError):
        return Conflict(f"the database {place} refused a row: {_first_line(error.orig or error)}")
    if isinstance(error, (RowDamaged, UnicodeDecodeError)):
        return _damaged(error, place)
    cause = (error.orig if isinstance(error, DBAPIError) else None) or error
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause, place, in_transaction=isinstance(error, DBAPIError))
    return _of_postgres(cause, place, lost=isinstance(error, DBAPIError) and error.connection_invalidated)


def _of_sqlite(cause: sqlite3.Error, place: str, *, in_transaction: bool) -> StoreError:
    """Return the error for one of SQLite. An error that the driver itself raises may follow a commit."""
    code = getattr(cause, "sqlite_errorcode", None)
    if code in _LOCK_IOERRS:
        return StoreUnavailable(f"the database {place} cannot be used: {_SQLITE_LOCKS}")
    if code in _MEMORY_IOERRS:
        return StoreUnavailable(f"the database {place} cannot be used: {_MEMORY_IOERRS[code]}")
    primary = code & 0xFF if isinstance(code, int) else None
    refusal = why_unwritable(Path(place)) if primary in _UNCLEAR else None
    if refusal is not None and refusal.errno in _REFUSALS:
        return StoreUnavailable(f"the database {place} cannot be used: {_REFUSALS[refusal.errno]}")
    if primary == sqlite3.SQLITE_READONLY and _has_unknown_format(Path(place)):
        return _damaged(cause, place)
    if primary in _SQLITE:
        is_undone = in_transaction and primary in _UNDOES
        return StoreUnavailable(
            f"the database {place} cannot be used: {_SQLITE[primary]} ({cause})", is_undone=is_undone
        )
    if primary in _DAMAGED or (primary in (None, sqlite3.SQLITE_ERROR) and str(cause).lower().startswith(_DAMAGES)):
        return _damaged(cause, place)
    return StoreError(f"the database {place} failed: {_first_line(cause)}")


def refuse_other_file(path: Path) -> None:
    """Raise DatabaseDamaged if a file has content but not the beginning of a SQLite database, or is not a regular file.

    SQLite opens some of them as empty databases, for example one of zeros, and would write to them. A file with a
    journal is left to SQLite, because it may be rolled back to an empty one.
    """
    refuse_other_kind(path)
    with suppress(OSError), path.open("rb") as file:
        head = file.read(len(_MAGIC))
        if head and head != _MAGIC and not path.with_name(f"{path.name}-journal").exists():
            raise _damaged(sqlite3.DatabaseError("file is not a database"), str(path))


def refuse_other_kind(path: Path) -> None:
    """Raise DatabaseDamaged if something other than a regular file exists there. Opening a pipe would wait forever."""
    with suppress(OSError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise _damaged(sqlite3.DatabaseError("it is not a regular file"), str(path))


def _has_unknown_format(path: Path) -> bool:
    """Return whether the header requires a write version that no SQLite has (sqlite.org/fileformat.html, 1.3.3)."""
    try:
        with path.open("rb") as file:
            return max(file.read(20)[18:], default=0) > 2
    except OSError:
        return False


def _damaged(cause: BaseException, place: str) -> DatabaseDamaged:
    is_file = place.startswith("/")
    what = "damaged or not a SQLite database" if is_file and not isinstance(cause, RowDamaged) else "damaged"
    why = _first_line(cause)
    return DatabaseDamaged(f"the database {place} is {what} ({why}): {how_to_replace(place)}", why)


def how_to_replace(place: str) -> str:
    """Return how to replace a damaged database. The user must choose the copy."""
    what = "put a copy in its place" if place.startswith("/") else "restore a dump of it"
    return f"ffdl daemon stop, and {what} (ffdl-admin db restore FILE --force)"


def _of_postgres(cause: BaseException, place: str, *, lost: bool) -> StoreError:
    state = getattr(cause, "sqlstate", None) or ""
    if state in _CORRUPTED:
        return _damaged(cause, place)
    advice = _POSTGRES_STATES.get(state) or _POSTGRES_CLASSES.get(state[:2])
    if advice is None and (lost or (not state and type(cause).__name__ == "OperationalError")):
        said = str(cause)
        advice = next((advice for part, advice in _POSTGRES_REFUSALS if part in said), _UNREACHABLE)
    if advice is not None:
        kind = ServerDiskRefuses if state == _NO_ROOM or state[:2] == _DISK_ERRORS else StoreUnavailable
        return kind(f"the database {place} cannot be used: {advice} ({_first_line(cause)})")
    return StoreError(f"the database {place} failed: {_first_line(cause)}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
