"""Check the files that a backup may write and a restore may read."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ffdl_batch.admin.database.access import Place
from ffdl_batch.admin.database.check import Report
from ffdl_batch.config.daemon_location import LOCK_NAME, LOG_NAME
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop
from ffdl_batch.services.daemon_lock import FLOCK_NAME
from ffdl_batch.store.sqlite_files import companions, is_of_database

_BEGINNINGS = (b"SQLite format 3\0", b"PGDMP")
"""The first bytes of a SQLite database (sqlite.org/fileformat.html, 1.3.1), and of a dump in pg_dump's format."""
_DAEMONS = re.compile(
    rf"\..+|{re.escape(LOCK_NAME)}|{re.escape(FLOCK_NAME)}|{re.escape(LOG_NAME)}(\..+)?|site-.+\.json"
)
"""Files of a daemon in its directories; the janitor may remove files that begin with a dot as half-written."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
}


def kind_of(mode: int) -> str | None:
    """Return what a file of this mode (stat(2)) is; None for a regular one."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")


def refuse_target(place: Place, target: Path, *, force: bool) -> None:
    """Raise Stop if no backup may be written to `target`.

    A symbolic link is refused: a backup is renamed to its name, which would replace the link and not its target.
    """
    if place.file is not None and is_of_database(target, place.file):
        raise _wrong(f"{target} is the database itself, or belongs to it; name another file")
    if not target.parent.is_dir():
        raise _wrong(f"there is no directory {target.parent}")
    own = {os.path.realpath(place.state_dir), os.path.realpath(place.jobs_dir)}
    if os.path.realpath(target.parent) in own and _DAEMONS.fullmatch(target.name):
        raise _wrong(f"{target} is a name of the daemon's own files; name another file")
    _refuse_to_lose(target, force=force)


def place_of_copy(target: Path, report: Report) -> Path:
    """Return the name of a copy for `target` with the faults of `report`.

    A copy with faults replaces only another one with faults. Raises Stop if that cannot be replaced.
    """
    if not report.faults or not target.exists():
        return target
    faulty = target.with_name(f"{target.name}.faulty")
    _refuse_to_lose(faulty, force=True)
    return faulty


def refuse_source(source: Path) -> None:
    """Raise Stop if `source` is not a regular file, before it is opened: opening a FIFO would wait."""
    try:
        kind = kind_of(source.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise Stop(ExitCode.NO_INPUT, f"there is no file {source}") from None
    if kind is not None:
        raise Stop(ExitCode.NO_INPUT, f"{source} is {kind}; a copy of a database is a regular file")


def _refuse_to_lose(target: Path, *, force: bool) -> None:
    """Raise Stop if `target` must not be replaced. SQLite would take a log beside it for a part of the copy."""
    for path in companions(target):
        if os.path.lexists(path):
            raise _wrong(f"{path} belongs to a database {target}, or to one that was there; name another file")
    try:
        kind = kind_of(target.lstat().st_mode)
    except FileNotFoundError:
        return
    if kind is not None:
        raise _wrong(f"{target} is {kind}, and no regular file; name another file")
    if not force:
        raise _wrong(f"{target} exists; name another file, or replace it with --force")
    with target.open("rb") as file:
        beginning = file.read(max(map(len, _BEGINNINGS)))
    if beginning and not beginning.startswith(_BEGINNINGS):
        raise _wrong(f"{target} is not a backup of a database, and --force replaces nothing else; name another file")


def _wrong(message: str) -> Stop:
    return Stop(ExitCode.USAGE, message)
