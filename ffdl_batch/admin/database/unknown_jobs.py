"""Find jobs that were executed, according to their directories, and that the database does not have."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from ffdl_batch.admin.database.access import Place
from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_files.database_binding import find_unknown
from ffdl_batch.store.database import Database
from ffdl_batch.store.leases import leave_out, left_out
from ffdl_batch.store.queries import job_ids


@dataclass(frozen=True, slots=True)
class UnknownJobs:
    """The ids of executed jobs that the database lacks: a restore left some out; a daemon refuses the others."""

    unknown: Sequence[str]
    left_out: Sequence[str]


def find_unknown_jobs(place: Place, database: Database) -> UnknownJobs:
    """Compare the directories with the rows; a daemon may run. Raises StoreError, OSError."""

    def known() -> frozenset[str]:
        with database.reading() as connection:
            return job_ids(connection)

    found = find_unknown(Root(str(place.jobs_dir)), known)
    with database.reading() as connection:
        expected = left_out(connection)
    return UnknownJobs([one for one in found if one not in expected], [one for one in found if one in expected])


def leave_out_unknown_jobs(place: Place, connection: Connection) -> None:
    """Record the jobs that a restored copy lacks as left out, in the transaction of `connection`.

    Jobs that an earlier restore left out stay so, even if their directories are not mounted now.
    """
    known, before = job_ids(connection), left_out(connection)
    try:
        found = find_unknown(Root(str(place.jobs_dir)), lambda: known)
    except OSError as error:
        message = f"{place.jobs_dir}/jobs cannot be read: {error.strerror or error}"
        raise Stop(ExitCode.TRY_AGAIN, f"{message}; restore again when it can") from error
    now = before.union(found) - known
    if now != before:
        leave_out(connection, now)
