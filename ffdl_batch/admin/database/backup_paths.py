"""Which files a backup may be written to, and a restore read: regular ones, and for a backup none that is another's."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ffdl_batch.admin.database.access import Place
from ffdl_batch.admin.database.check import Report
from ffdl_batch.admin.exit_handling import Stop
from ffdl_batch.config.daemon_location import LOCK_NAME, LOG_NAME
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.services.daemon_lock import FLOCK_NAME
from ffdl_batch.store.sqlite_backup import companions, is_of_database

_BEGINNINGS = (b"SQLite format 3\0", b"PGDMP")
"""Of a SQLite database (sqlite.org/fileformat.html, 1.3.1), and of a dump in pg_dump's custom format."""
_DAEMONS = re.compile(
    rf"\..+|{re.escape(LOCK_NAME)}|{re.escape(FLOCK_NAME)}|{re.escape(LOG_NAME)}(\..+)?|site-.+\.json"
)
"""Files of a daemon in its directories; those that begin with a dot the janitor may take for half-written ones."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
}


def kind_of(mode: int) -> str | None:
    """What a file of this mode (stat(2)) is, where that is no regular one."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")


def refuse_target(place: Place, target: Path, *, force: bool) -> None:
    """Raise Stop where no backup may be written to `target`. A symbolic link is not followed: a backup is renamed into
    its place, so that the link would be gone and the file behind it left as it was."""
    if place.file is not None and is_of_database(target, place.file):
        raise _wrong(f"{target} is the database itself, or belongs to it; name another file")
    if not target.parent.is_dir():
        raise _wrong(f"there is no directory {target.parent}")
    own = {os.path.realpath(place.state_dir), os.path.realpath(place.jobs_dir)}
    if os.path.realpath(target.parent) in own and _DAEMONS.fullmatch(target.name):
        raise _wrong(f"{target} is a name of the daemon's own files; name another file")
    _refuse_to_lose(target, force=force)


def place_of_copy(target: Path, report: Report) -> Path:
    """What a copy is called of which `report` tells and that was to be `target`: with faults it replaces no other,
    but one with faults. Raises Stop where that cannot be replaced."""
    if not report.faults or not target.exists():
        return target
    faulty = target.with_name(f"{target.name}.faulty")
    _refuse_to_lose(faulty, force=True)
    return faulty


def refuse_source(source: Path) -> None:
    """Raise Stop where `source` can be no copy of a database, before anybody opens it: a FIFO would be waited for."""
    try:
        kind = kind_of(source.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise Stop(ExitCode.NO_INPUT, f"there is no file {source}") from None
    if kind is not None:
        raise Stop(ExitCode.NO_INPUT, f"{source} is {kind}; a copy of a database is a regular file")


def _refuse_to_lose(target: Path, *, force: bool) -> None:
    """A file that lies beside a database which is used would be taken for a part of the copy, too, by SQLite."""
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
        raise _wrong(f"{target} is no backup of a database, and --force replaces nothing else; name another file")


def _wrong(message: str) -> Stop:
    return Stop(ExitCode.USAGE, message)
