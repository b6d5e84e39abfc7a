"""Check a whole database: the file, the tables, the rows of every job. It reads one state and changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import field, fields
from typing import Any, TypeVar, cast

from sqlalchemy import ColumnElement, Table, UniqueConstraint, func, inspect, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError

from ffdl_batch.admin.database.row_rules import LONGEST_LEASE_S, AttemptRow, HistoryRow, JobRow, faults_of
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store import DatabaseDamaged, StoreError
from ffdl_batch.store.database import Database
from ffdl_batch.store.errors import ROW_ERRORS
from ffdl_batch.store.existing_database import NoDatabase
from ffdl_batch.store.leases import LEFT_OUT, TREE
from ffdl_batch.store.records import ATTEMPT_COLUMNS, JOB_COLUMNS, JobReader, attempt
from ffdl_batch.store.schema import ATTEMPTS, HISTORY, JOBS, LEASES, METADATA
from ffdl_batch.store.schema_upgrade import Standing, refuse_unknown, standing_of

PAGE = 1000
MOST_DAMAGES = 20
"""How many faults SQLite reports of a damaged file."""
_FILE = "file"
"""`Fault.about` of faults that SQLite itself reports."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Fault:
    """`about` is a job's id, or a part of the database."""

    about: str
    text: str

    def __str__(self) -> str:
        """Return the fault as text."""
        return f"{self.about}: {self.text}"


@dataclass(slots=True)
class Report:
    """How much was checked, and the faults."""

    standing: Standing = field(default_factory=lambda: Standing(None))
    faults: list[Fault] = field(default_factory=list)
    jobs: int = 0
    attempts: int = 0
    entries: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether the database itself reports that it is damaged."""
        return any(fault.about == _FILE for fault in self.faults)

    @property
    def has_ids(self) -> bool:
        """Whether the file is intact and has its tables, so that the ids of its jobs can be read."""
        return not self.is_damaged and not any(fault.about in METADATA.tables for fault in self.faults)


def check(database: Database) -> Report:
    """Check the database. Raises NoDatabase if it is empty, SchemaTooNew, StoreError if it cannot be read at all.

    If SQLite reports that its file is damaged, no rows are read: they could be wrong.
    """
    report = Report()
    try:
        with database.reading() as connection:
            if database.is_postgres:  # all queries see one state; a transaction of SQLite does so by default
                connection.execution_options(isolation_level="REPEATABLE READ")
            else:
                report.faults += _damages(connection)
            if not report.faults:
                _check_rows(connection, database, report)
    except DatabaseDamaged as error:
        report.faults.append(Fault(_FILE, error.why))
    return report


def _check_rows(connection: Connection, database: Database, report: Report) -> None:
    report.standing = standing_of(connection)
    refuse_unknown(report.standing, database)
    if report.standing.revision is None:
        raise NoDatabase(f"the database {database.place} is empty; the daemon makes its tables when it starts")
    if not report.standing.missing:
        report.faults += _table_faults(connection)
    if any(fault.about in METADATA.tables for fault in report.faults):
        return  # missing columns cannot be read
    report.faults += [*_duplicate_tokens(connection), *_orphans(connection), *_lease_faults(connection, database)]
    _look_at_jobs(connection, database.now(connection), report)


def _damages(connection: Connection) -> Iterator[Fault]:
    """Yield the faults that SQLite itself reports (sqlite.org/pragma.html, integrity_check)."""
    try:
        for (said,) in connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_DAMAGES})"):
            if said != "ok":
                yield Fault(_FILE, said)
    except DatabaseError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        yield Fault(_FILE, str(error.orig))


def _table_faults(connection: Connection) -> Iterator[Fault]:
    """Yield tables, columns, indexes and unique keys of this release that the database lacks."""
    inspector = inspect(connection)
    there = set(inspector.get_table_names())
    for name, table in METADATA.tables.items():
        if name not in there:
            yield Fault(name, "the table is missing")
            continue
        columns = {column["name"] for column in inspector.get_columns(name)}
        for column in table.columns:
            if column.name not in columns:
                yield Fault(name, f"the column {column.name} is missing")
        named = {index["name"] for index in inspector.get_indexes(name)}
        named |= {constraint["name"] for constraint in inspector.get_unique_constraints(name)}
        unique = (one.name for one in table.constraints if isinstance(one, UniqueConstraint))
        for needed in sorted(map(str, (*(index.name for index in table.indexes), *unique))):
            if needed not in named:
                yield Fault(needed, f"the index of {name} is missing")


def _duplicate_tokens(connection: Connection) -> Iterator[Fault]:
    """Yield tokens that two attempts have: one would be taken for the other."""
    tokens = select(ATTEMPTS.c.token, func.count()).group_by(ATTEMPTS.c.token).having(func.count() > 1)
    for token, count in connection.execute(tokens):
        yield Fault("tokens", f"{count} attempts have the token {token}")


def _lease_faults(connection: Connection, database: Database) -> Iterator[Fault]:
    now = database.now(connection)
    leases = select(LEASES.c.name, LEASES.c.owner, LEASES.c.token, LEASES.c.until)
    for row in connection.execute(leases.where(LEASES.c.name.not_in([TREE, LEFT_OUT]))):
        if not row.token or not row.owner:
            yield Fault(f"lease {row.name}", f"it has the owner {row.owner!r} and the token {row.token!r}")
        elif row.until - now > LONGEST_LEASE_S:
            yield Fault(f"lease {row.name}", f"it lasts for {row.until - now:.0f} s more: a clock was wrong")


def _orphans(connection: Connection) -> Iterator[Fault]:
    """Yield rows of jobs that do not exist (as PRAGMA foreign_key_check, on both databases)."""
    for table in (HISTORY, ATTEMPTS):
        known = select(JOBS.c.id).where(JOBS.c.id == table.c.job_id).exists()
        for (job_id,) in connection.execute(select(table.c.job_id).where(~known).distinct()):
            yield Fault(job_id, f"it has rows in {table.name}, and there is no such job")


def _look_at_jobs(connection: Connection, now: float, report: Report) -> None:
    last = ""
    while jobs := _rows(connection, JobRow, JOBS, JOBS.c.id > last, limit=PAGE):
        first, last = jobs[0].id, jobs[-1].id
        histories: dict[str, list[HistoryRow]] = {job.id: [] for job in jobs}
        attempts: dict[str, list[AttemptRow]] = {job.id: [] for job in jobs}
        for entry in _rows(connection, HistoryRow, HISTORY, HISTORY.c.job_id.between(first, last)):
            histories.setdefault(entry.job_id, []).append(entry)
        for one in _rows(connection, AttemptRow, ATTEMPTS, ATTEMPTS.c.job_id.between(first, last)):
            attempts.setdefault(one.job_id, []).append(one)
        for job in jobs:
            found = faults_of(job, histories[job.id], attempts[job.id], now)
            report.faults += [Fault(job.id, text) for text in found]
        report.jobs += len(jobs)
        report.entries += sum(map(len, histories.values()))
        report.attempts += sum(map(len, attempts.values()))
        if not report.standing.missing:
            report.faults += _unreadable(connection, first, last)


def _rows(
    connection: Connection, kind: Callable[..., R], table: Table, where: ColumnElement[bool], limit: int | None = None
) -> list[R]:
    """Return the rows of a table as values of `kind`, whose fields are the columns, in the order of the primary key."""
    query = select(*(table.c[part.name] for part in fields(cast(Any, kind)))).where(where)
    return [kind(*row) for row in connection.execute(query.order_by(*table.primary_key).limit(limit))]


def _unreadable(connection: Connection, first: str, last: str) -> Iterator[Fault]:
    """Yield rows that the daemon could not read."""
    reader = JobReader(capacity=1)
    jobs = select(JOBS.c.id, *JOB_COLUMNS).where(JOBS.c.id.between(first, last))
    for job_id, *row in connection.execute(jobs):
        if (why := _why_unreadable(reader.job, row)) is not None:
            yield Fault(job_id, f"its row cannot be read: {why}")
    attempts = select(ATTEMPTS.c.job_id, ATTEMPTS.c.number, *ATTEMPT_COLUMNS).where(
        ATTEMPTS.c.job_id.between(first, last)
    )
    for job_id, number, *row in connection.execute(attempts):
        if (why := _why_unreadable(attempt, row)) is not None:
            yield Fault(job_id, f"the row of attempt {number} cannot be read: {why}")


def _why_unreadable(read: Callable[[list[Any]], object], row: list[Any]) -> str | None:
    try:
        read(row)
    except (*ROW_ERRORS, StoreError) as damage:
        error = damage.__cause__ or damage  # RowDamaged names the row, too
        return f"{type(error).__name__}: {error}"
    return None
