"""Copies of a SQLite database: consistent while others write, whole or not there, readable by their owner alone.

SQLite's own backup interface (sqlite.org/backup.html) reads one state of the source, however long it takes. A copy is
in no write-ahead mode, so that it is one file wherever it is carried.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import stat
import time
from pathlib import Path

from ffdl_batch.store.errors import StoreUnavailable

KEPT = 3
"""How many copies from before upgrades stay beside the database."""
LEFT_AGE_S = 3600.0
"""Nobody writes a file any more that did not change for so long."""
_STAMP = "%Y%m%dT%H%M%SZ"


class CopyFailed(StoreUnavailable):
    """There is no copy, and nothing else was changed."""


def copy_database(source: sqlite3.Connection, target: Path, *, shown: Path | None = None) -> None:
    """Write what `source` sees now to `target`, durably, in the place of what is there. Raises :class:`CopyFailed`.

    `source` must be in a transaction that has read something: waiting for locks is over then. `shown` is what messages
    call the copy, where it gets that name later.
    """
    # A form of name that sweep_left knows, and in the daemon's own directories the janitor.
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        try:
            _write(source, hidden)
            hidden.rename(target)
            _sync(target.parent)
        finally:
            for path in (hidden, *companions(hidden)):
                path.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        why = _why(error, source, shown or target)
        raise CopyFailed(f"no copy could be written to {shown or target}: {why}") from error


def companions(path: Path) -> tuple[Path, ...]:
    """The files that SQLite keeps beside the database `path` while it is used, and after a crash."""
    return tuple(path.with_name(path.name + suffix) for suffix in ("-journal", "-wal", "-shm"))


def is_of_database(path: Path, database: Path) -> bool:
    """Whether `path` is, or would be, the database or a file that SQLite keeps beside it, by whatever name. Raises
    OSError."""
    real = Path(os.path.realpath(database))
    return any(
        os.path.realpath(path) == str(own) or (own.exists() and path.exists() and path.samefile(own))
        for own in (real, *companions(real))
    )


def upgrade_copy(path: Path, revision: str, at: float) -> Path:
    """Where the copy of the database `path` from before its upgrade from `revision` goes; `at` is now."""
    return path.with_name(f"{path.name}.revision-{revision}-{stamp(at)}")


def upgrade_copies(path: Path) -> list[tuple[str, Path]]:
    """The copies from before upgrades that lie beside the database, newest first, with their revisions."""
    form = re.compile(rf"{re.escape(path.name)}\.revision-(\w+)-(\d{{8}}T\d{{6}}Z)", re.ASCII)
    found = [(match[2], match[1], one) for one in path.parent.iterdir() if (match := form.fullmatch(one.name))]
    return [(revision, one) for _, revision, one in sorted(found, reverse=True)]


def sweep_left(target: Path) -> None:
    """Remove what was being written for a copy `target` more than an hour ago, by somebody who was killed.

    The janitor does so in the daemon's own directories; nobody else looks into others. Raises OSError.
    """
    name, sign = re.escape(target.name), r"\.[0-9a-f]{8}"
    form = re.compile(rf"(?:\.{name}{sign}|\.\.{name}{sign}{sign})(?:-journal|-wal|-shm)?")
    for path in [one for one in target.parent.iterdir() if form.fullmatch(one.name)]:
        with contextlib.suppress(FileNotFoundError):  # another copy's writer sweeps, too
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > LEFT_AGE_S:
                path.unlink()


def drop_old_copies(path: Path) -> None:
    """Remove all but the newest KEPT of :func:`upgrade_copies`. Raises OSError."""
    for _, old in upgrade_copies(path)[KEPT:]:
        old.unlink(missing_ok=True)


def stamp(at: float) -> str:
    """A time in names of files, UTC."""
    return time.strftime(_STAMP, time.gmtime(at))


def unused(path: Path) -> Path:
    """`path`, or where it or what belongs to it exists the next name after it that is free."""
    names = (path, *(path.with_name(f"{path.name}.{number}") for number in range(2, 1000)))
    return next(one for one in names if not any(file.exists() for file in (one, *companions(one))))


def _write(source: sqlite3.Connection, hidden: Path) -> None:
    os.close(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(hidden, isolation_level=None)) as target:
        target.execute("PRAGMA journal_mode = OFF").close()  # nobody needs an undone copy, nor a journal of it
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE").close()  # it came with the source's mode
    _sync(hidden)


def _sync(path: Path) -> None:
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
    """What the copy takes, rounded up."""
    try:
        pages, size = (source.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    except sqlite3.Error:  # the source is what failed; its own message is told
        return 1
    return -(-int(pages) * int(size) // 2**20)
