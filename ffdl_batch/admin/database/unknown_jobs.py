"""Jobs that were executed, as their directories show, and that the database does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from ffdl_batch.admin.database.access import Place
from ffdl_batch.admin.exit_handling import Stop
from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.services.job_files.database_binding import find_unknown
from ffdl_batch.store.database import Database
from ffdl_batch.store.leases import leave_out, left_out
from ffdl_batch.store.queries import job_ids


@dataclass(frozen=True, slots=True)
class Strangers:
    """Their ids. The database is to do without those `left_out`; a daemon does not start where others are `unknown`."""

    unknown: Sequence[str]
    left_out: Sequence[str]


def find_strangers(place: Place, database: Database) -> Strangers:
    """Hold the tree against the rows, also beside a daemon. Raises StoreError, OSError."""

    def known() -> frozenset[str]:
        with database.reading() as connection:
            return job_ids(connection)

    found = find_unknown(Root(str(place.jobs_dir)), known)
    with database.reading() as connection:
        expected = left_out(connection)
    return Strangers([one for one in found if one not in expected], [one for one in found if one in expected])


def leave_strangers_out(place: Place, connection: Connection) -> None:
    """Have the database do without the jobs that it lacks, in the transaction of `connection`: who restores a copy
    knows that. Those that an earlier restore left out stay so, though their directories may not be mounted now."""
    known, before = job_ids(connection), left_out(connection)
    try:
        found = find_unknown(Root(str(place.jobs_dir)), lambda: known)
    except OSError as error:
        message = f"{place.jobs_dir}/jobs cannot be read: {error.strerror or error}"
        raise Stop(ExitCode.TRY_AGAIN, f"{message}; restore again when it can") from error
    now = before.union(found) - known
    if now != before:
        leave_out(connection, now)
