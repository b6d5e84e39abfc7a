"""Backup and restore of a SQLite database: whole files, changed by one rename."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
import time
from pathlib import Path

from ffdl_batch.admin.database.access import HOW_TO_STOP, Place, count_jobs, held, opened, told
from ffdl_batch.admin.database.backup_paths import place_of_copy
from ffdl_batch.admin.database.check import Report, check
from ffdl_batch.admin.database.unknown_jobs import leave_strangers_out
from ffdl_batch.admin.exit_handling import Stop
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted
from ffdl_batch.ports.clock import SystemClock
from ffdl_batch.store import DatabaseDamaged, StoreError
from ffdl_batch.store.existing_database import NoDatabase, connect_file
from ffdl_batch.store.schema_upgrade import driver_connection, refuse_unknown, standing_of
from ffdl_batch.store.sqlite_backup import CopyFailed, companions, copy_database, stamp, sweep_left, unused


def back_up(place: Place, target: Path) -> tuple[Report, Path]:
    """Copy the database to `target`, also while a daemon works with it; what was found in the copy, and where it is
    (a copy with faults replaces no other)."""
    # A form of name that sweep_left knows, and in the daemon's own directories the janitor.
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        sweep_left(target)
        try:
            _copy(place, target, fresh)
            report = examine(fresh)
            copy = place_of_copy(target, report)
            fresh.rename(copy)
            _sync(copy.parent)
        finally:
            for path in (fresh, *companions(fresh)):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise CopyFailed(f"no copy could be written to {target}: {error.strerror or error}") from error
    return report, copy


def _copy(place: Place, target: Path, fresh: Path) -> None:
    """Into the file `fresh`, that will be called `target`."""
    with opened(place) as database:
        try:
            with database.reading() as connection:
                standing = standing_of(connection)
                refuse_unknown(standing, database)
                if standing.revision is None:
                    raise NoDatabase(f"the database {database.place} is empty: there is nothing to back up")
                copy_database(driver_connection(connection), fresh, shown=target)
        except DatabaseDamaged as error:
            unread = "no copy was written, because SQLite can read nothing of it"
            raise DatabaseDamaged(f"{unread}: {error}") from error


def examine(file: Path) -> Report:
    """Look through a copy. Raises Stop where it is none of ours."""
    copy = connect_file(file, SystemClock())
    try:
        return check(copy)
    except NoDatabase as error:
        raise Stop(ExitCode.NO_INPUT, f"{file} holds no tables of ffdl_batch") from error
    finally:
        copy.close()


def restore(place: Place, source: Path, *, force: bool) -> tuple[Report, list[Path]]:
    """Put a copy in the place of the database; what was found in it, and the files that are kept of what was there.

    Whoever is killed in between leaves the old database or the new one in its place, each of them whole, or none where
    there was none: never the new one beside the log of another. Where the name is a link, the file that it leads to is
    replaced: SQLite keeps log and journal beside that one.
    """
    assert place.file is not None
    target = Path(os.path.realpath(place.file))
    with told():
        _refuse_faults(source, examine(source), "nothing was changed; take another copy")
        with held(place):
            if _has_content(target) and not force:
                _refuse_to_lose(target)
            return _replace(place, source, target)


def _has_content(target: Path) -> bool:
    """Whether there is something to keep. SQLite is not asked: beside an empty file it removes a log."""
    return target.exists() and target.stat().st_size > 0


def _refuse_faults(source: Path, found: Report, so: str) -> None:
    if found.faults:
        more = f", and {len(found.faults) - 1} more" if len(found.faults) > 1 else ""
        raise Stop(ExitCode.NO_INPUT, f"{source} is damaged ({found.faults[0]}{more}): {so}")


def _refuse_to_lose(target: Path) -> None:
    there = connect_file(target, SystemClock())
    try:
        with there.reading() as connection:
            jobs = counted(count_jobs(connection), "job") if standing_of(connection).revision is not None else ""
    except StoreError as error:
        jobs = f"something that cannot be read ({error})"
    finally:
        there.close()
    if jobs:
        raise Stop(
            ExitCode.USAGE,
            f"{target} holds {jobs}. --force puts the copy in its place, and keeps what is there now beside it",
        )


def _replace(place: Place, source: Path, target: Path) -> tuple[Report, list[Path]]:
    """The new file comes into being beside the old one, which gets a second name; all that SQLite kept beside that one
    goes; then one rename decides. What it led to is looked through, and undone where it is not whole."""
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    replaced = unused(target.with_name(f"{target.name}.replaced-{stamp(time.time())}"))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep_left(target)  # its directory may be none that the janitor looks into
        _make(place, source, fresh)
        try:
            if _has_content(target):
                _keep(target, replaced)
            _set_aside(target, replaced)
            fresh.rename(target)
            _sync(target.parent)
            found = examine(target)
            _refuse_faults(target, found, f"it is as it was before; is {source} on a sound disk?")
        except BaseException:
            _undo(target, replaced, is_new_there=not fresh.exists())
            raise
    except OSError as error:
        raise Stop(
            ExitCode.TRY_AGAIN, f"{target} could not be replaced, and is as it was: {error.strerror or error}"
        ) from error
    finally:
        for path in (fresh, *companions(fresh)):
            path.unlink(missing_ok=True)
    beside = [path for path in companions(replaced) if path.exists()]
    return found, [replaced] if replaced.exists() else beside


def _make(place: Place, source: Path, fresh: Path) -> None:
    """The copy that is to be the database. It knows which jobs it lacks, from the moment that it is in its place."""
    copy = connect_file(source, SystemClock())
    try:
        with copy.reading() as connection:
            standing_of(connection)  # begins the transaction whose state is copied
            copy_database(driver_connection(connection), fresh)
    finally:
        copy.close()
    made = connect_file(fresh, SystemClock())
    try:
        with made.writing() as connection:
            leave_strangers_out(place, connection)
    finally:
        made.close()


def _keep(target: Path, replaced: Path) -> None:
    """Give the database that is there a second name. Its log becomes a part of it, or, where it is damaged, is copied
    to a second name as well."""
    beside = list(zip(companions(target), companions(replaced), strict=True))
    for path, second in beside:
        if path.exists():  # whoever opens a damaged file may take its log for nothing, and remove it
            shutil.copy2(path, second)
            _sync(second)
    folded = _fold(target)
    try:
        replaced.hardlink_to(target)
    except OSError:  # a file system without hard links
        shutil.copy2(target, replaced)
        _sync(replaced)
    if folded:
        for _, second in beside:
            second.unlink(missing_ok=True)
    _sync(target.parent)


def _set_aside(target: Path, replaced: Path) -> None:
    """Nothing stays beside the name that the new file gets: SQLite would take an old log for the new file's, also that
    of a database which is gone, and write foreign pages into it."""
    for path, second in zip(companions(target), companions(replaced), strict=True):
        if second.exists():  # it was copied when it was whole
            path.unlink(missing_ok=True)
        elif path.exists():
            path.rename(second)
    _sync(target.parent)


def _undo(target: Path, replaced: Path, *, is_new_there: bool) -> None:
    """As it was before, the file first: it may be without its log, but not have another's."""
    if is_new_there:
        for path in companions(target):
            path.unlink(missing_ok=True)
        if replaced.exists():
            replaced.rename(target)
        else:
            target.unlink(missing_ok=True)
    replaced.unlink(missing_ok=True)
    for path, second in zip(companions(target), companions(replaced), strict=True):
        if path.exists():  # it never went away, and somebody may have it open
            second.unlink(missing_ok=True)
        elif second.exists():
            second.rename(path)
    _sync(target.parent)


def _fold(target: Path) -> bool:
    """Have SQLite take its log into the file. False: it is damaged, and as it was. One that is in use is refused."""
    with contextlib.closing(sqlite3.connect(target, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA journal_mode = DELETE").close()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                used = f"{target} is in use by another program ({error}); is it a daemon, {HOW_TO_STOP}"
                raise Stop(ExitCode.TRY_AGAIN, used) from error
            return False
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
