"""Implement the commands of ``ffdl-admin db``: options, output and exit codes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch import __version__
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.option_types import NamedPath

if TYPE_CHECKING:
    from ffdl_batch.admin.database.access import Place
    from ffdl_batch.admin.database.check import Report
    from ffdl_batch.admin.database.unknown_jobs import UnknownJobs
    from ffdl_batch.store.database import Database
    from ffdl_batch.store.schema_upgrade import Standing

_SHOWN_FAULTS = 50


_FILE = NamedPath(dir_okay=False, path_type=Path)


@click.group()
def db() -> None:
    """Manage the database of jobs: SQLite in the state directory, or PostgreSQL.

    A daemon upgrades an older database when it starts. These commands upgrade, check, back up and restore it by hand.
    """


@db.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def current(as_json: bool) -> int:
    """Print the schema revision of the database and of this release.

    Exit code 0: both are the same; 1: the database is older; 69: it is newer than this release.
    """
    from ffdl_batch.admin.database.access import find_place, opened
    from ffdl_batch.store.schema_upgrade import HEAD, describe_revisions, standing_of

    with opened(find_place()) as database, database.reading() as connection:
        standing = standing_of(connection)
    missing = standing.missing if standing.is_known else ()
    if as_json:
        _print_json(
            database=database.place,
            revision=standing.revision,
            release=standing.release,
            at=standing.at or None,
            head=HEAD,
            missing=list(missing),
        )
    else:
        click.echo(f"{'Database':<14}{database.place}")
        click.echo(f"{'Schema':<14}{_standing_text(standing)}")
        click.echo(f"{'This release':<14}{HEAD}, ffdl-batch {__version__}")
        purposes = describe_revisions() if missing else {}
        for number, revision in enumerate(missing):
            click.echo(f"{'' if number else 'Missing':<14}{revision}  {purposes[revision]}")
    return ExitCode.UNAVAILABLE if not standing.is_known else ExitCode.FAILED if missing else ExitCode.OK


@db.command()
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
def upgrade(dry_run: bool) -> None:
    """Upgrade the database to the schema of this release.

    No daemon may run. A SQLite database is copied to a file beside it before. Each revision is one transaction.
    """
    from ffdl_batch.admin.database.access import find_place, held, opened, refuse_others, stopping_on_store_errors
    from ffdl_batch.host.running_clock import SystemClock
    from ffdl_batch.store.database import connect
    from ffdl_batch.store.existing_database import NoDatabase
    from ffdl_batch.store.schema_upgrade import HEAD, bring_up_to_date, describe_revisions, refuse_unknown, standing_of

    place = find_place()
    with opened(place) as database, database.reading() as connection:
        standing = standing_of(connection)
        refuse_unknown(standing, database)
        if standing.revision is None:
            raise NoDatabase(f"the database {database.place} is empty; the daemon makes its tables when it starts")
    if not standing.missing:
        click.echo(f"{database.place} has schema revision {HEAD} already")
        return
    purposes = describe_revisions()
    if dry_run:
        for revision in standing.missing:
            click.echo(f"would apply {revision}  {purposes[revision]}")
        if place.file is not None:
            click.echo(f"would copy {place.file} to {place.file.name}.revision-{standing.revision}-<time> before")
        return
    with stopping_on_store_errors(), held(place):
        database = connect(place.url, None, SystemClock())
        try:
            with database.reading() as connection:
                refuse_others(connection, database)
            done = bring_up_to_date(database)
        finally:
            database.close()
    if done.copy is not None:
        click.echo(f"copied     {done.copy}")
    for revision in done.applied:
        click.echo(f"applied    {revision}  {purposes[revision]}")
    click.echo(f"{database.place} has schema revision {HEAD}")


@db.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(as_json: bool) -> int:
    """Check the database: the file, the tables, the rows of every job, and whether it has all jobs that were executed
    according to their directories.

    It changes nothing, and may run beside a daemon. Exit code 1: a fault was found; 69: the database is damaged, and
    only a copy of it helps.
    """
    from ffdl_batch.admin.database.access import find_place, opened
    from ffdl_batch.admin.database.check import check as look_through
    from ffdl_batch.exit_handling import Stop
    from ffdl_batch.store.errors import how_to_replace

    place = find_place()
    with opened(place) as database:
        report = look_through(database)
        unknown_jobs, why_not = _compare(place, database, report) if report.has_ids else (None, "")
    if as_json:
        _print_json(
            database=database.place,
            revision=report.standing.revision,
            jobs=report.jobs,
            attempts=report.attempts,
            entries=report.entries,
            unknown=None if unknown_jobs is None else list(unknown_jobs.unknown),
            left_out=None if unknown_jobs is None else list(unknown_jobs.left_out),
            faults=[{"about": fault.about, "text": fault.text} for fault in report.faults],
        )
    else:
        _print_report(report)
        if unknown_jobs is not None and unknown_jobs.left_out:
            _print_left_out(unknown_jobs)
        if why_not:
            click.echo(f"not compared with {place.jobs_dir}/jobs: {why_not}")
    if report.is_damaged:
        cure = how_to_replace(database.place)
        raise Stop(ExitCode.UNAVAILABLE, f"the database {database.place} is damaged: {cure}")
    return ExitCode.FAILED if report.faults else ExitCode.OK


def _compare(place: Place, database: Database, report: Report) -> tuple[UnknownJobs | None, str]:
    """Add jobs that the database lacks to `report`; return them, or why they cannot be found."""
    from ffdl_batch.admin.database.check import Fault
    from ffdl_batch.admin.database.unknown_jobs import find_unknown_jobs
    from ffdl_batch.services.job_files.database_binding import some_of

    try:
        unknown_jobs = find_unknown_jobs(place, database)
    except OSError as error:
        return None, error.strerror or str(error)
    if unknown_jobs.unknown:
        executed = counted(len(unknown_jobs.unknown), "job that was executed is", "jobs that were executed are")
        missing = f"{executed} not in it ({some_of(unknown_jobs.unknown)})"
        cure = "put the database that knew them in its place: ffdl-admin db restore FILE --force"
        report.faults.append(Fault("jobs", f"{missing}, and no daemon starts: {cure}"))
    return unknown_jobs, ""


def _print_left_out(unknown_jobs: UnknownJobs) -> None:
    from ffdl_batch.services.job_files.database_binding import some_of

    click.echo(f"left out by restore: {some_of(unknown_jobs.left_out)}")


@db.command()
@click.argument("file", type=_FILE)
@click.option("--force", is_flag=True, help="Replace FILE if it is a backup, or empty.")
def backup(file: Path, force: bool) -> int:
    """Write a copy of the database to FILE, mode 0600, completely or not at all. A copy with faults replaces no other
    one; it is named FILE.faulty then. Symbolic links, files of the daemon and files that are not regular are refused.

    A daemon may run, unless SQLite is on a network file system. PostgreSQL needs pg_dump on the PATH.
    """
    from ffdl_batch.admin.database.access import find_place, stopping_on_store_errors
    from ffdl_batch.admin.database.backup_paths import refuse_target

    place, target = find_place(), file.absolute()
    refuse_target(place, target, force=force)
    if place.file is not None:
        from ffdl_batch.admin.database.sqlite_backup import back_up
    else:
        from ffdl_batch.admin.database.postgres_backup import back_up
    with stopping_on_store_errors():
        report, copy = back_up(place, target)
    size_mib, shown = copy.stat().st_size / 2**20, file.with_name(copy.name)
    revision = report.standing.revision  # no rows of a damaged file are read
    held = f"{counted(report.jobs, 'job')}, schema revision {revision}" if revision else "damaged, and not read through"
    click.echo(f"{shown}: {held}, {size_mib:.1f} MiB")
    if report.faults:
        kept = "" if copy == target else f"; {file} is left as it was"
        click.echo(f"the database has faults, and so has the copy{kept}:")
        _print_faults(report)
    return ExitCode.FAILED if report.faults else ExitCode.OK


@db.command()
@click.argument("file", type=_FILE)
@click.option("--force", is_flag=True, help="Replace a database that has jobs; its content is kept beside it.")
def restore(file: Path, force: bool) -> int:
    """Replace the content of the database by the copy FILE. No daemon may run.

    Jobs that were submitted after the copy was made are not in it; their directories are kept. The daemon reads from
    the directories what jobs of the copy did since, and executes none of it again.
    """
    from ffdl_batch.admin.database.access import find_place, stopping_on_store_errors
    from ffdl_batch.admin.database.backup_paths import refuse_source

    place = find_place()
    refuse_source(file)
    if place.file is not None:
        from ffdl_batch.admin.database.sqlite_backup import restore as put_back
    else:
        from ffdl_batch.admin.database.postgres_backup import restore as put_back
    with stopping_on_store_errors():
        report, kept = put_back(place, file.absolute(), force=force)
    for path in kept:
        click.echo(f"kept       {path}")
    click.echo(f"restored   {counted(report.jobs, 'job')}, schema revision {report.standing.revision}")
    if report.standing.missing:
        click.echo("the next daemon upgrades it, or: ffdl-admin db upgrade")
    _print_unknown_jobs(place)
    _print_faults(report)
    return ExitCode.FAILED if report.faults else ExitCode.OK


def _print_unknown_jobs(place: Place) -> None:
    """Print the executed jobs that the database does not have."""
    from ffdl_batch.admin.database.access import opened
    from ffdl_batch.admin.database.unknown_jobs import find_unknown_jobs
    from ffdl_batch.services.job_files.database_binding import some_of

    with opened(place) as database:
        unknown_jobs = find_unknown_jobs(place, database)
    if unknown_jobs.left_out:
        click.echo(
            f"not in it: {some_of(unknown_jobs.left_out)}. Their directories in {place.jobs_dir}/jobs stay; what still "
            "runs of them is the scheduler's alone: end it there, or let it end"
        )


def _standing_text(standing: Standing) -> str:
    if standing.revision is None:
        return "none: the database is empty"
    newer = "" if standing.is_known else "; newer than this release"
    if not standing.release:
        return f"{standing.revision}{newer}"
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(standing.at))
    return f"{standing.revision}, by ffdl-batch {standing.release} at {when}{newer}"


def _print_report(report: Report) -> None:
    changes = counted(report.entries, "change of state", "changes of state")
    seen = f"{counted(report.jobs, 'job')}, {counted(report.attempts, 'attempt')}, {changes}"
    if report.faults:
        click.echo(f"{counted(len(report.faults), 'fault')} in {seen}")
        _print_faults(report)
    else:
        click.echo(f"no fault in {seen}; schema revision {report.standing.revision}")


def _print_faults(report: Report) -> None:
    for fault in report.faults[:_SHOWN_FAULTS]:
        click.echo(f"  {fault}")
    if len(report.faults) > _SHOWN_FAULTS:
        click.echo(f"  and {len(report.faults) - _SHOWN_FAULTS} more; all of them: ffdl-admin db check --json")


def _print_json(**fields: object) -> None:
    click.echo(json_text({"schema": 1, **fields}))
