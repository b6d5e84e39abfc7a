"""Back up and restore the tables of a PostgreSQL database by PostgreSQL's client programs, in one transaction.

pg_dump reads one state of the database while daemons work with it. No password is in an argument.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import URL, func, inspect, make_url, select

from ffdl_batch.admin.database.access import Place, count_jobs, held, opened, refuse_others
from ffdl_batch.admin.database.backup_paths import place_of_copy
from ffdl_batch.admin.database.check import Report, check
from ffdl_batch.admin.database.unknown_jobs import leave_out_unknown_jobs
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted
from ffdl_batch.exit_handling import Stop
from ffdl_batch.store.database import Database
from ffdl_batch.store.schema import METADATA
from ffdl_batch.store.schema_upgrade import Standing, refuse_unknown, standing_of
from ffdl_batch.store.sqlite_files import hidden_name, stamp, sweep_left, sync, unused

TABLES = (*(table.name for table in METADATA.sorted_tables), "alembic_version")
_MESSAGE_CHARACTERS = 500
_SERVER_ERROR = "ERROR:"
_PR_SET_PDEATHSIG = 1
"""prctl(2)"""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ESTALE)
_TABLE_LINE = re.compile(r"^\d+; \d+ \d+ TABLE (\S+) (\S+) ", re.MULTILINE)


class Refused(Stop):
    """A client program of PostgreSQL failed."""


def back_up(place: Place, target: Path) -> tuple[Report, Path]:
    """Dump the database to `target` in pg_dump's custom format; return the faults of the database, and the dump's name.

    A dump with faults replaces only another one with faults.
    """
    with opened(place) as database:
        report = check(database)
        copy = place_of_copy(target, report)
        _dump(place, database, copy)
    return report, copy


def restore(place: Place, source: Path, *, force: bool) -> tuple[Report, list[Path]]:
    """Replace our tables by a dump, in one transaction; return the faults after it, and a dump of the old tables."""
    schema, standing = _examine(source)
    with held(place), opened(place) as database:
        refuse_unknown(standing, database)
        replaced = _keep(place, database, schema, force=force)
        _load(place, source, schema)
        with database.writing() as connection:  # a restore that is killed before must be repeated
            leave_out_unknown_jobs(place, connection)
        return check(database), [replaced] if replaced is not None else []


def _dump(place: Place, database: Database, target: Path) -> None:
    with database.reading() as connection:
        schema = connection.execute(select(func.current_schema())).scalar_one()
        there = set(inspect(connection).get_table_names())
    tables = [f'--table="{schema}"."{name}"' for name in TABLES if name in there]
    hidden = hidden_name(target)
    options = ("--format=custom", "--no-owner", "--no-privileges", *tables)
    try:
        sweep_left(target)
        try:
            os.close(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            _run_to_file(place, ["pg_dump", *options, f"--file={hidden}", f"--dbname={_address(place)}"])
            sync(hidden)
            hidden.rename(target)
        finally:
            hidden.unlink(missing_ok=True)
    except OSError as error:
        why = f"{error.strerror or error}; {target.parent} must be writable and have space (and quota)"
        raise Stop(ExitCode.TRY_AGAIN, f"no copy could be written to {target}: {why}") from error


def _examine(source: Path) -> tuple[str, Standing]:
    """Return the PostgreSQL schema of a dump's tables, and their revision. Raises Stop if it is no dump of ours."""
    try:
        listing = _run(None, ["pg_restore", "--list", str(source)])
    except Refused as refused:
        raise Stop(ExitCode.NO_INPUT, f"{source} is not a dump in pg_dump's custom format: {refused}") from refused
    schemas = {name: schema for schema, name in _TABLE_LINE.findall(listing)}
    if not {"jobs", "alembic_version"} <= schemas.keys():
        raise Stop(ExitCode.NO_INPUT, f"{source} has no tables of ffdl_batch")
    rows = _run(None, ["pg_restore", "--data-only", "--table=alembic_version", "--file=-", str(source)])
    found = re.search(r"^COPY .*\n(\S+)\n", rows, re.MULTILINE)
    if found is None or found[1] == "\\.":
        raise Stop(ExitCode.NO_INPUT, f"{source} has no schema revision")
    return schemas["jobs"], Standing(found[1])


def _keep(place: Place, database: Database, schema: str, *, force: bool) -> Path | None:
    """Dump the present tables, if there are any. Raises Stop if a daemon works with them, or without `force`."""
    with database.reading() as connection:
        here = connection.execute(select(func.current_schema())).scalar_one()
        if here != schema:
            message = f"the dump's tables are in the schema {schema}, this connection works in {here}"
            raise Stop(ExitCode.USAGE, f"{message}; set the search_path in the URL: ?options=-csearch_path%3D{schema}")
        if standing_of(connection).revision is None:
            return None
        refuse_others(connection, database)
        jobs = count_jobs(connection)
    if not force:
        message = f"{database.place} has {counted(jobs, 'job')}. --force replaces its content by the dump"
        raise Stop(ExitCode.USAGE, f"{message}, and keeps a dump of the old content in {place.state_dir}")
    replaced = unused(place.state_dir / f"ffdl.postgresql.replaced-{stamp(time.time())}")
    _dump(place, database, replaced)
    return replaced


def _load(place: Place, source: Path, schema: str) -> None:
    drop = "DROP TABLE IF EXISTS " + ", ".join(f'"{schema}"."{name}"' for name in TABLES)
    script = hidden_name(place.state_dir / "restore")
    try:
        os.close(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # A complete script first: psql would take a broken pipe for its end.
        _run_to_file(None, ["pg_restore", "--no-owner", "--no-privileges", f"--file={script}", str(source)])
        options = ("--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1")
        _run(place, ["psql", *options, f"--dbname={_address(place)}", "--command", drop, "--file", str(script)])
    except OSError as error:
        raise Stop(ExitCode.TRY_AGAIN, f"{script} cannot be written: {error.strerror or error}") from error
    finally:
        script.unlink(missing_ok=True)


def _address(place: Place) -> str:
    """Return the URL for PostgreSQL's programs, without a password."""
    url = make_url(place.url)
    bare = URL.create("postgresql", url.username, None, url.host, url.port, url.database, url.query)
    return bare.render_as_string()


def _run_to_file(place: Place | None, argv: Sequence[str]) -> None:
    """Run a program that writes a file, like :func:`_run`. Raises OSError if the file system refused it.

    PostgreSQL's programs have one exit status for all causes.
    """
    try:
        _run(place, argv)
    except Refused as refused:
        said = str(refused)
        code = next((one for one in _DISK_ERRORS if os.strerror(one) in said), None)
        if code is None or _SERVER_ERROR in said:
            raise
        raise OSError(code, os.strerror(code)) from refused


def _tied_to(parent: int) -> Callable[[], None]:
    """Return a function for a child of `parent` that has it killed together with `parent`.

    A psql that outlives this process would wait for its locks, and restore when daemons may run again. The server
    undoes a transaction whose client ends before its COMMIT.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = (ctypes.c_int, ctypes.c_ulong)

    def tie() -> None:
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:  # the parent was killed before that
            os._exit(1)

    return tie


def _run(place: Place | None, argv: Sequence[str]) -> str:
    """Run a program of PostgreSQL and return its output. Raises Refused if it fails, Stop if it is not installed."""
    env = {**os.environ, "LC_ALL": "C"}
    password = make_url(place.url).password if place is not None else None
    if password is not None:
        env["PGPASSWORD"] = str(password)
    if shutil.which(argv[0]) is None:
        raise Stop(
            ExitCode.UNAVAILABLE,
            f"{argv[0]} is not on the PATH: install PostgreSQL's client programs (Debian: postgresql-client), of the "
            "server's version or newer; or have the server's administrator do it",
        )
    done = subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_tied_to(os.getpid()),  # no thread of ours runs
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-_MESSAGE_CHARACTERS:] or "it printed nothing"
        raise Refused(ExitCode.FAILED, f"{argv[0]} exited with status {done.returncode}, nothing was changed: {said}")
    return done.stdout
