"""Copy a SQLite database, and check that the files of an open one are still under their names.

A copy has one consistent state, is a whole file or none, and is readable by its owner alone. SQLite's own backup
(sqlite.org/backup.html) reads one state of the source while others write. A copy has no write-ahead log, so that it is
one file.

SQLite continues to write into a file that was deleted, moved or replaced: such commits are lost when the process ends.
So the device and the inode of each file are recorded when it is opened. stat(2) of a name costs microseconds; opening
the database file again would release SQLite's locks (sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ffdl_batch.store.errors import DatabaseGone, StoreUnavailable

KEPT = 3
"""How many copies from before upgrades are kept beside the database."""
LEFT_AGE_S = 3600.0
"""A file that has not changed for so long is not being written any more."""
_STAMP = "%Y%m%dT%H%M%SZ"


class CopyFailed(StoreUnavailable):
    """A copy could not be written; nothing else was changed."""


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Write what `source` sees now to `target`, durably, and replace an existing file. Raises :class:`CopyFailed`.

    `source` must be in a transaction that has read something: it has waited for locks then.
    """
    hidden = hidden_name(target)
    try:
        write_copy(source, hidden, shown=target)
        hidden.rename(target)
        sync(target.parent)
    except OSError as error:
        raise CopyFailed(f"no copy could be written to {target}: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)


def write_copy(source: sqlite3.Connection, file: Path, *, shown: Path) -> None:
    """Write what `source` sees now to the new file `file`, durably; leave no file if that fails.

    `source` as for :func:`copy_database`. `shown` is the copy's name in messages. Raises :class:`CopyFailed`.
    """
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as target:
            target.execute("PRAGMA journal_mode = OFF").close()  # an unfinished copy is removed, not rolled back
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE").close()  # the copy has the source's mode
        sync(file)
    except (OSError, sqlite3.Error) as error:
        for path in (file, *companions(file)):
            path.unlink(missing_ok=True)
        why = _why(error, source, shown)
        raise CopyFailed(f"no copy could be written to {shown}: {why}") from error


def hidden_name(target: Path) -> Path:
    """Return a name for a file that is to become `target`, as :func:`sweep_left` and the janitor know it."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")


def companions(path: Path) -> tuple[Path, ...]:
    """Return the names of the files that SQLite keeps beside the database `path`, also after a crash."""
    return tuple(path.with_name(path.name + suffix) for suffix in ("-journal", "-wal", "-shm"))


def is_of_database(path: Path, database: Path) -> bool:
    """Return whether `path` is, or would be, the database or a file that SQLite keeps beside it; links are followed.

    Raises OSError.
    """
    real = Path(os.path.realpath(database))
    return any(
        os.path.realpath(path) == str(own) or (own.exists() and path.exists() and path.samefile(own))
        for own in (real, *companions(real))
    )


def upgrade_copy(path: Path, revision: str, at: float) -> Path:
    """Return the name of a copy of the database `path`, made at the time `at` before an upgrade from `revision`."""
    return path.with_name(f"{path.name}.revision-{revision}-{stamp(at)}")


def upgrade_copies(path: Path) -> list[tuple[str, Path]]:
    """Return the copies that were made before upgrades, newest first, with their revisions."""
    form = re.compile(rf"{re.escape(path.name)}\.revision-(\w+)-(\d{{8}}T\d{{6}}Z)", re.ASCII)
    found = [(match[2], match[1], one) for one in path.parent.iterdir() if (match := form.fullmatch(one.name))]
    return [(revision, one) for _, revision, one in sorted(found, reverse=True)]


def sweep_left(target: Path) -> None:
    """Remove what killed processes left of copies to `target` more than an hour ago.

    The janitor does so only in the daemon's own directories. Raises OSError.
    """
    form = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}(?:-journal|-wal|-shm)?")
    for path in [one for one in target.parent.iterdir() if form.fullmatch(one.name)]:
        with contextlib.suppress(FileNotFoundError):  # another process removes them, too
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > LEFT_AGE_S:
                path.unlink()


def drop_old_copies(path: Path) -> None:
    """Remove all but the newest KEPT of :func:`upgrade_copies`. Raises OSError."""
    for _, old in upgrade_copies(path)[KEPT:]:
        old.unlink(missing_ok=True)


def stamp(at: float) -> str:
    """Return a time for names of files, UTC."""
    return time.strftime(_STAMP, time.gmtime(at))


def unused(path: Path) -> Path:
    """Return `path`, or the next free name after it if it or a file beside it exists."""
    names = (path, *(path.with_name(f"{path.name}.{number}") for number in range(2, 1000)))
    return next(one for one in names if not any(file.exists() for file in (one, *companions(one))))


def sync(path: Path) -> None:
    """Write a file or a directory to its disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(error: OSError | sqlite3.Error, source: sqlite3.Connection, target: Path) -> str:
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, OSError) or (
        isinstance(code, int) and code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    ):
        return f"{said}; {target.parent} must be writable and have {_size_mib(source)} MiB of space (and quota)"
    return said


def _size_mib(source: sqlite3.Connection) -> int:
    """Return the size of the copy, rounded up."""
    try:
        pages, size = (source.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    except sqlite3.Error:  # the source itself failed; the message names that error
        return 1
    return -(-int(pages) * int(size) // 2**20)


Identity = tuple[int, int]
"""Device and inode."""
_STOPPED = "while a daemon works with it; nothing is accepted or written"


class OpenFiles:
    """The file of the database `path`, and those beside it whose names end with one of `beside`. Safe in every thread.

    If `path` is a symbolic link, SQLite keeps the others beside its target. All methods raise DatabaseGone if the file
    system does not answer.
    """

    def __init__(self, path: Path, beside: Sequence[str]) -> None:
        self._path = path
        real = Path(os.path.realpath(path))
        self._names = [real.with_name(real.name + suffix) for suffix in beside]
        self._lock = threading.Lock()
        self._file: Identity | None = None
        self._beside: dict[Path, Identity] = {}

    def note_opened(self) -> None:
        """Record the files of a connection that was just opened.

        Raises DatabaseGone if the database is another file than that of the first connection.
        """
        found = _identity(self._path)
        with self._lock:
            if found is None or found != (self._file or found):
                raise self._gone(self._path)
            self._file = found
            self._beside.clear()
        self.find_misplaced()

    def find_misplaced(self) -> Path | None:
        """Return a name that does not lead to the open file any more; None if there is none."""
        found = {path: _identity(path) for path in (self._path, *self._names)}
        with self._lock:
            if self._file is not None and found[self._path] != self._file:
                return self._path
            for path in self._names:
                identity = found[path]
                if identity is not None:  # SQLite creates some of them later
                    self._beside.setdefault(path, identity)
                if identity != self._beside.get(path):
                    return path
        return None

    def refuse_misplaced(self) -> None:
        """Raise DatabaseGone, with the way out, if :meth:`find_misplaced` returns a name."""
        path = self.find_misplaced()
        if path is not None:
            raise self._gone(path)

    def _gone(self, path: Path) -> DatabaseGone:
        if path == self._path:
            cure = "move it back, or restore a backup (ffdl daemon stop; ffdl-admin db restore FILE --force)"
            return DatabaseGone(f"the database {path} was deleted, moved or replaced {_STOPPED}: {cure}")
        cure = "run `ffdl daemon restart`, which writes what it held into the database"
        return DatabaseGone(f"{path}, a part of the database {self._path}, was deleted or replaced {_STOPPED}: {cure}")


def _identity(path: Path) -> Identity | None:
    """Return what the file is known by; None if it does not exist."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"the file system does not say whether {path} is in its place: {error.strerror}; try again"
        raise DatabaseGone(message) from error
    return status.st_dev, status.st_ino
