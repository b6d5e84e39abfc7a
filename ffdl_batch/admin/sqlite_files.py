"""Backup and restore of a SQLite database: whole files, changed by one rename."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
import time
from pathlib import Path

from ffdl_batch.admin.check import Report, check, place_of_copy
from ffdl_batch.admin.ending import Stop
from ffdl_batch.admin.place import HOW_TO_STOP, Place, count_jobs, held, opened, told
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.ports.clock import SystemClock
from ffdl_batch.store import StoreError
from ffdl_batch.store.copies import CopyFailed, companions, copy_database, stamp, unused
from ffdl_batch.store.existing import NoDatabase, connect_file
from ffdl_batch.store.revisions import driver_connection, refuse_unknown, standing_of


def back_up(place: Place, target: Path) -> tuple[Report, Path]:
    """Copy the database to `target`, also while a daemon works with it; what was found in the copy, and where it is
    (a copy with faults replaces no other)."""
    # The janitor knows this form of name for something that was being written when somebody was killed.
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
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
    with opened(place) as database, database.reading() as connection:
        standing = standing_of(connection)
        refuse_unknown(standing, database)
        if standing.revision is None:
            raise NoDatabase(f"the database {database.place} is empty: there is nothing to back up")
        copy_database(driver_connection(connection), fresh, shown=target)


def examine(file: Path) -> Report:
    """Look through a copy. Raises Stop where it is none of ours."""
    copy = connect_file(file, SystemClock())
    try:
        return check(copy)
    except NoDatabase as error:
        raise Stop(ExitCode.NO_INPUT, f"{file} holds no tables of ffdl_batch") from error
    finally:
        copy.close()


def restore(place: Place, source: Path, *, force: bool) -> tuple[Report, Path | None]:
    """Put a copy in the place of the database; what was found in it, and where the database of before is now (None =
    there was none).

    Whoever is killed in between leaves the old database or the new one in its place, and each of them whole.
    """
    target = place.file
    assert target is not None
    with told():
        found = examine(source)
        if found.faults:
            said = f"{source} is damaged ({found.faults[0]}"
            more = f", and {len(found.faults) - 1} more" if len(found.faults) > 1 else ""
            raise Stop(ExitCode.NO_INPUT, f"{said}{more}): nothing was changed; take another copy")
        with held(place):
            if target.exists() and not force:
                _refuse_to_lose(target)
            replaced = _replace(source, target)
            return examine(target), replaced


def _refuse_to_lose(target: Path) -> None:
    there = connect_file(target, SystemClock())
    try:
        with there.reading() as connection:
            jobs = f"{count_jobs(connection)} jobs" if standing_of(connection).revision is not None else ""
    except StoreError as error:
        jobs = f"something that cannot be read ({error})"
    finally:
        there.close()
    if jobs:
        raise Stop(
            ExitCode.USAGE,
            f"{target} holds {jobs}. --force puts the copy in its place, and keeps what is there now beside it",
        )


def _replace(source: Path, target: Path) -> Path | None:
    """The new file comes into being beside the old one, which gets a second name; then one rename decides."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    copy = connect_file(source, SystemClock())
    try:
        with copy.reading() as connection:
            standing_of(connection)  # begins the transaction whose state is copied
            copy_database(driver_connection(connection), fresh)
        replaced = _keep(target) if target.exists() else None
        fresh.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise Stop(
            ExitCode.TRY_AGAIN, f"{target} could not be replaced, and is as it was: {error.strerror or error}"
        ) from error
    finally:
        copy.close()
        fresh.unlink(missing_ok=True)
    return replaced


def _keep(target: Path) -> Path:
    """Give the database that is there a second name, with all that belongs to it. Nothing of it stays beside the name
    that the new one gets: SQLite would take an old log for the new file's."""
    replaced = unused(target.with_name(f"{target.name}.replaced-{stamp(time.time())}"))
    beside = list(zip(companions(target), companions(replaced), strict=True))
    for path, second in beside:
        if path.exists():  # whoever opens a damaged file may take its log for nothing, and remove it
            shutil.copy2(path, second)
    folded = _fold(target)
    try:
        replaced.hardlink_to(target)
    except OSError:  # a file system without hard links
        shutil.copy2(target, replaced)
        _sync(replaced)
    for path, second in beside:
        (second if folded else path).unlink(missing_ok=True)
    _sync(target.parent)
    return replaced


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
