"""Collect the changes of one transaction, and write them with few statements.

A statement costs far more than one of its rows. Rows of jobs (or attempts) that change in the same columns share one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, delete, insert, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql.dml import Update

from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.job.job import HistoryEntry, Job, JobId
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.errors import StoreError
from ffdl_batch.store.incidents import add_incidents, incident_row
from ffdl_batch.store.records import JOB_FIELDS, encode_columns
from ffdl_batch.store.schema import ATTEMPTS, HISTORY, JOBS

Row = dict[str, Any]

# Parameters whose names no column has; columns to set are those that the rows name.
_JOB = update(JOBS).where(JOBS.c.id == bindparam("of_job"), JOBS.c.revision == bindparam("of_revision"))
_OF_JOB = (ATTEMPTS.c.job_id == bindparam("of_job"), ATTEMPTS.c.number == bindparam("of_number"))
_ATTEMPT, _NO_ATTEMPT = update(ATTEMPTS).where(*_OF_JOB), delete(ATTEMPTS).where(*_OF_JOB)


@dataclass(frozen=True, slots=True)
class Step:
    """The changes of one job."""

    job: Job
    """The job after the changes."""
    entries: tuple[HistoryEntry, ...] = ()
    beside: Row = dataclasses.field(default_factory=dict)
    """Columns of the job's row that :class:`Job` does not have."""
    attempt_columns: Row = dataclasses.field(default_factory=dict)
    """Changes of the row of the current attempt."""
    next_attempt: Row = dataclasses.field(default_factory=dict)
    """The row of an attempt that begins; empty = none begins."""
    drops_attempt: bool = False
    """Whether the row of the current attempt is deleted."""
    incidents: tuple[Incident, ...] = ()
    noticed_at: float = 0.0


class Writes:
    """Steps of jobs whose rows this transaction has locked. Nothing is written before :meth:`flush`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clear()

    def _clear(self) -> None:
        self._ids: set[JobId] = set()
        self._jobs: list[Row] = []
        self._attempts: list[Row] = []
        self._begun: list[Row] = []
        self._dropped: list[Row] = []
        self._history: list[Row] = []
        self._incidents: list[Row] = []

    def add(self, before: Job, step: Step) -> Job:
        """Return the job after the step. A step without changes writes nothing, so that the revision stays."""
        self._incidents += [incident_row(incident, step.noticed_at) for incident in step.incidents]
        changed = {n: getattr(step.job, n) for n in JOB_FIELDS if getattr(step.job, n) != getattr(before, n)}
        if not step.entries and not step.attempt_columns and changed.keys() <= {"updated_at"}:
            return before
        if before.id in self._ids:
            self.flush()  # steps of one job are written in order
        after = replace(step.job, revision=before.revision + 1)
        values = encode_columns(changed) | step.beside | {"revision": after.revision}
        self._ids.add(before.id)
        self._jobs.append({"of_job": before.id, "of_revision": before.revision, **values})
        if step.attempt_columns:
            self._attempts.append({"of_job": before.id, "of_number": before.attempt, **step.attempt_columns})
        if step.next_attempt:
            self._begun.append(step.next_attempt)
        if step.drops_attempt:
            self._dropped.append({"of_job": before.id, "of_number": before.attempt})
        self._history += [_history_row(entry) for entry in step.entries]
        return after

    def flush(self) -> None:
        """Write all steps. Raises StoreError for a row that changed under its lock."""
        self._update(_JOB, self._jobs)
        self._update(_ATTEMPT, self._attempts)
        for row in self._dropped:
            self._connection.execute(_NO_ATTEMPT, row)
        if self._begun:
            self._connection.execute(insert(ATTEMPTS), self._begun)
        if self._history:
            self._connection.execute(insert(HISTORY), self._history)
        if self._incidents:
            add_incidents(self._connection, self._incidents)
        self._clear()

    def _update(self, statement: Update, rows: Iterable[Row]) -> None:
        alike: dict[frozenset[str], list[Row]] = {}
        for row in rows:
            alike.setdefault(frozenset(row), []).append(row)
        for group in alike.values():
            if self._connection.execute(statement, group).rowcount != len(group):
                ids = ", ".join(row["of_job"] for row in group)
                raise StoreError(f"a row of {ids} changed under its lock; this is an error in the program")


def add_entry(connection: Connection, entry: HistoryEntry) -> None:
    """Write one row of history."""
    connection.execute(insert(HISTORY), _history_row(entry))


def _history_row(entry: HistoryEntry) -> Row:
    return {
        "job_id": entry.job_id,
        "seq": entry.seq,
        "at": entry.at,
        "state": entry.state.value,
        "attempt": entry.attempt,
        "cause": entry.cause,
        "message": entry.message,
        "error_code": entry.error_code,
    }
