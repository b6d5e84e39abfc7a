"""Back up and restore a SQLite database by SQLite's own backup (sqlite.org/backup.html)."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from ffdl_batch.admin.database.access import HOW_TO_STOP, Place, count_jobs, held, opened, stopping_on_store_errors
from ffdl_batch.admin.database.backup_paths import place_of_copy
from ffdl_batch.admin.database.check import Report, check
from ffdl_batch.admin.database.unknown_jobs import leave_out_unknown_jobs
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.store import DatabaseDamaged, StoreError
from ffdl_batch.store.database import Database
from ffdl_batch.store.errors import refuse_other_file
from ffdl_batch.store.existing_database import NoDatabase, connect_file
from ffdl_batch.store.schema_upgrade import driver_connection, refuse_unknown, standing_of
from ffdl_batch.store.sqlite_files import (
    CopyFailed,
    companions,
    copy_database,
    hidden_name,
    stamp,
    sweep_left,
    sync,
    unused,
    write_copy,
)

log = logging.getLogger(__name__)


def back_up(place: Place, target: Path) -> tuple[Report, Path]:
    """Copy the database to `target`, also while a daemon works with it; return the faults of the copy, and its name.

    A copy with faults replaces only another one with faults.
    """
    fresh = hidden_name(target)
    try:
        sweep_left(target)
        try:
            _copy(place, fresh, target)
            report = examine(fresh)
            copy = place_of_copy(target, report)
            fresh.rename(copy)
            sync(copy.parent)
        finally:
            for path in (fresh, *companions(fresh)):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise CopyFailed(f"no copy could be written to {target}: {error.strerror or error}") from error
    return report, copy


def _copy(place: Place, fresh: Path, target: Path) -> None:
    """Write the copy to `fresh`, which becomes `target`."""
    with opened(place) as database:
        try:
            with database.reading() as connection:
                standing = standing_of(connection)
                refuse_unknown(standing, database)
                if standing.revision is None:
                    raise NoDatabase(f"the database {database.place} is empty: there is nothing to back up")
                write_copy(driver_connection(connection), fresh, shown=target)
        except DatabaseDamaged as error:
            raise DatabaseDamaged(f"no copy was written, because SQLite cannot read the file: {error}") from error


def examine(file: Path) -> Report:
    """Check a copy. Raises Stop if it is no database of ffdl_batch."""
    with _opened_file(file) as copy:
        try:
            return check(copy)
        except NoDatabase as error:
            raise Stop(ExitCode.NO_INPUT, f"{file} has no tables of ffdl_batch") from error


def restore(place: Place, source: Path, *, force: bool) -> tuple[Report, list[Path]]:
    """Write the copy `source` into the database; return the faults of the result, and the file with the old content.

    SQLite's backup writes all pages in one transaction: if this process is killed, the database has the old content or
    the new one. If the name is a link, the file that it leads to is written.
    """
    assert place.file is not None
    target = Path(os.path.realpath(place.file))
    with stopping_on_store_errors():
        found = examine(source)
        if found.faults:
            more = f", and {len(found.faults) - 1} more" if len(found.faults) > 1 else ""
            message = f"{source} is damaged ({found.faults[0]}{more}): nothing was changed; take another copy"
            raise Stop(ExitCode.NO_INPUT, message)
        with held(place):
            if _has_content(target) and not force:
                _refuse_to_lose(target)
            try:
                replaced = _keep(target)
                _write(source, target)
            except OSError as error:
                raise Stop(ExitCode.TRY_AGAIN, f"{target} could not be replaced: {error.strerror or error}") from error
            with _opened_file(target) as database:
                with database.writing() as connection:  # a restore that is killed before must be repeated
                    leave_out_unknown_jobs(place, connection)
                return check(database), replaced


@contextlib.contextmanager
def _opened_file(file: Path) -> Iterator[Database]:
    database = connect_file(file, SystemClock())
    try:
        yield database
    finally:
        database.close()


def _has_content(target: Path) -> bool:
    return target.exists() and target.stat().st_size > 0


def _refuse_to_lose(target: Path) -> None:
    try:
        with _opened_file(target) as there, there.reading() as connection:
            jobs = counted(count_jobs(connection), "job") if standing_of(connection).revision is not None else ""
    except StoreError as error:
        jobs = f"something that cannot be read ({error})"
    if jobs:
        raise Stop(
            ExitCode.USAGE,
            f"{target} has {jobs}. --force replaces its content by the copy, and keeps the old content beside it",
        )


def _keep(target: Path) -> list[Path]:
    """Copy the content of the database to a file beside it; return that file.

    A database that cannot be read is renamed with all that SQLite keeps beside it. A log without its database is
    renamed, too: SQLite would take it for the new one's.
    """
    replaced = unused(target.with_name(f"{target.name}.replaced-{stamp(time.time())}"))
    if _has_content(target):
        try:
            refuse_other_file(target)  # SQLite may remove the log of a file that it cannot read
            _fold(target)
            with _opened_file(target) as database, database.reading() as connection:
                standing_of(connection)  # begins the transaction whose state is copied
                copy_database(driver_connection(connection), replaced)
            return [replaced]
        except DatabaseDamaged as error:
            log.info("%s is renamed: %s", target, error)
    else:
        target.unlink(missing_ok=True)
    names = zip((target, *companions(target)), (replaced, *companions(replaced)), strict=True)
    kept = [(path, new_path) for path, new_path in names if path.exists()]
    for path, new_path in kept:
        path.rename(new_path)
    return [new_path for _, new_path in kept[:1]]


def _fold(target: Path) -> None:
    """Have SQLite write its log into the file. Raises Stop if another program uses it, DatabaseDamaged."""
    with contextlib.closing(sqlite3.connect(target, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA journal_mode = DELETE").close()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                used = f"{target} is in use by another program ({error}); is it a daemon, {HOW_TO_STOP}"
                raise Stop(ExitCode.TRY_AGAIN, used) from error
            raise DatabaseDamaged(str(error)) from error


def _write(source: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with (
        _opened_file(source) as copy,
        copy.reading() as connection,
        contextlib.closing(sqlite3.connect(target, timeout=1.0, isolation_level=None)) as written,
    ):
        driver_connection(connection).backup(written)
