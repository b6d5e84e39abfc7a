"""The store as the services see it. One transaction a call; no call is made inside another's transaction.

Every method raises :class:`StoreUnavailable` (try again later) or another :class:`StoreError`. After
StoreUnavailable out of a writing method it is open whether the write happened (the connection may have been
lost during the commit): keys, revisions and tokens make it safe to read again and repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

from sqlalchemy.engine import Engine

from ffdl_batch.domain.daemon_health import DatabaseOutage
from ffdl_batch.domain.incidents.incident import Origin
from ffdl_batch.domain.job.job import Change, HistoryEntry, Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.ports.clock import Clock
from ffdl_batch.store import incidents, leases, queries, submissions, transitions, usage_rows
from ffdl_batch.store.database import Database, connect
from ffdl_batch.store.existing_database import sqlite_file
from ffdl_batch.store.notices import Notices
from ffdl_batch.store.records import Attempt, JobReader, LeasedJob, NewJob
from ffdl_batch.store.schema_upgrade import bring_up_to_date

Consent = Callable[[str], None]
"""Called with the place of a SQLite database before it is made; raises StoreError where it must not be."""
Approval = Callable[["Store"], None]
"""Called with the store of a database as it is found, before it is brought up to date; raises where that must not be.
It may ask for what all revisions of the schema have alike: `job_ids`, `left_out`, `live_backends`."""


def open_store(
    url: str,
    *,
    network_fs: bool | None = None,
    clock: Clock | None = None,
    may_begin: Consent | None = None,
    may_use: Approval | None = None,
) -> Store:
    """The store behind `url` (``sqlite:////path`` or ``postgresql+psycopg://...``), migrated to this release's schema.

    `network_fs` says whether a SQLite file lies on a network file system; None = look. `clock` is the store's
    time on SQLite. Raises SchemaTooNew, StoreUnavailable, StoreError for a URL that is none of ours, and what
    `may_begin` and `may_use` raise.
    """
    file = sqlite_file(url)
    if may_begin is not None and file is not None and not file.exists():
        may_begin(str(file))
    database = connect(url, network_fs, clock or SystemClock())
    store = Store(database)
    try:
        bring_up_to_date(database, may_begin, (lambda: may_use(store)) if may_use is not None else None)
    except BaseException:
        database.close()
        raise
    return store


class Store:
    """Jobs, their attempts and histories, and leases. Safe to use from several threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = JobReader()
        self.notices = Notices(database)
        """Who is still to be told of which incident."""

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine, for administration and tests; services use the methods."""
        return self._database.engine

    @property
    def place(self) -> str:
        """The file or the URL, without a password."""
        return self._database.place

    @property
    def outage(self) -> DatabaseOutage | None:
        """Why, and since when, nothing can be written; None if the last write succeeded."""
        return self._database.health.trouble

    def check_files(self) -> None:
        """Raise DatabaseGone if a file of a SQLite database was deleted, moved or replaced."""
        self._database.check_files()

    @property
    def is_shared(self) -> bool:
        """Whether several daemons may work with this database; then :meth:`now` is the server's time."""
        return self._database.is_postgres

    def add_jobs(self, jobs: Sequence[NewJob]) -> list[Job]:
        """The job of each of `jobs`, PENDING with history entry 1, in one transaction, durable on return.

        A `submit_key` that this uid used before returns the job of then. Raises DuplicateId for an id that
        another job has.
        """
        return submissions.add_jobs(self._database, self._reader, jobs) if jobs else []

    def get(self, job_id: str) -> Job | None:
        """The job, or None."""
        return next(iter(self.get_many([job_id])), None)

    def get_many(self, ids: Collection[str]) -> list[Job]:
        """The jobs of `ids` that exist, in the order of `ids`."""
        with self._database.reading() as connection:
            found = queries.fetch_jobs(connection, self._reader, ids)
        return [found[JobId(job_id)] for job_id in dict.fromkeys(ids) if job_id in found]

    def list_jobs(  # noqa: PLR0913 - the filters of one query
        self,
        *,
        uid: int | None,
        states: Collection[JobState] | None = None,
        name: str | None = None,
        since: float | None = None,
        limit: int = 100,
        after: str | None = None,
        array: str | None = None,
    ) -> list[Job]:
        """Jobs by submission, newest first; None = any. `since` is the earliest submission; `name` is exact, or the
        name of the array that a job is an element of, and `array` that array's id.

        `after` is the id of the last job of the page before; an id that does not exist gives nothing.
        """
        wanted = queries.JobFilter(uid, states, name, since, limit, after, array)
        with self._database.reading() as connection:
            return queries.list_jobs(connection, self._reader, wanted)

    def elements_of(self, array_id: str, index: int | None = None) -> list[Job]:
        """The elements of an array, by index; with `index` that one alone. Empty for an unknown array."""
        with self._database.reading() as connection:
            return queries.elements_of(connection, self._reader, array_id, index)

    def count_elements(self, ids: Collection[str]) -> dict[str, dict[JobState, int]]:
        """How many elements each of these arrays has in each state; one query."""
        with self._database.reading() as connection:
            return queries.count_elements(connection, ids)

    def count_handed_over(self, ids: Collection[str]) -> dict[str, int]:
        """How many live elements of each of these arrays a scheduler has, or may have; one query."""
        with self._database.reading() as connection:
            return queries.count_handed_over(connection, ids)

    def job_ids(self) -> frozenset[str]:
        """The ids of all jobs."""
        with self._database.reading() as connection:
            return queries.job_ids(connection)

    def left_out(self) -> frozenset[str]:
        """The ids of jobs that were executed and that the database is to do without."""
        with self._database.reading() as connection:
            return leases.left_out(connection)

    def leave_out(self, ids: Collection[str]) -> None:
        """Make it these."""
        with self._database.writing() as connection:
            leases.leave_out(connection, ids)

    def find_ids(self, beginning: str, uid: int, limit: int) -> list[JobId]:
        """The ids of at most `limit` jobs of `uid` that begin with `beginning`, newest first."""
        with self._database.reading() as connection:
            return queries.find_ids(connection, beginning, uid, limit)

    def find_native(self, native_id: str, uid: int | None) -> Job | None:
        """The newest job of `uid` (None = anybody's) that a scheduler has, or had, under this id of its own; of a
        native array's id one of its elements. For messages: ids come again."""
        with self._database.reading() as connection:
            return queries.find_native(connection, self._reader, native_id, uid)

    def live_deployed(self, backend: str) -> list[Job]:
        """Live jobs of `backend` that its scheduler can be asked about: DEPLOYING to STORING with a native id,
        oldest first."""
        with self._database.reading() as connection:
            return queries.live_deployed(connection, self._reader, backend)

    def live_backends(self) -> list[str]:
        """The backends that have jobs in :meth:`live_deployed`, sorted."""
        with self._database.reading() as connection:
            return queries.live_backends(connection)

    def live_digests(self) -> frozenset[str]:
        """The `model_digest` of every job that has not ended."""
        with self._database.reading() as connection:
            return queries.live_digests(connection)

    def count_live(self) -> int:
        """How many jobs have not ended."""
        with self._database.reading() as connection:
            return queries.count_live(connection)

    def count_states(self, uid: int) -> dict[tuple[str, JobState], int]:
        """See :func:`ffdl_batch.store.queries.count_states`."""
        with self._database.reading() as connection:
            return queries.count_states(connection, uid)

    def sum_attempts(self, uid: int) -> list[queries.AttemptSum]:
        """See :func:`ffdl_batch.store.queries.sum_attempts`."""
        with self._database.reading() as connection:
            return queries.sum_attempts(connection, uid)

    def changed_since(self, uid: int, at: float) -> dict[JobId, tuple[str, float]]:
        """See :func:`ffdl_batch.store.queries.changed_since`."""
        with self._database.reading() as connection:
            return queries.changed_since(connection, uid, at)

    def history(self, job_id: str, after_seq: int = 0) -> list[HistoryEntry]:
        """The job's changes of state behind `after_seq`, in order; empty for an unknown job."""
        with self._database.reading() as connection:
            return queries.histories(connection, [job_id], after_seq)[JobId(job_id)]

    def histories(self, ids: Collection[str]) -> dict[JobId, list[HistoryEntry]]:
        """The whole history of each of `ids`."""
        with self._database.reading() as connection:
            return queries.histories(connection, ids)

    def attempts(self, job_id: str) -> list[Attempt]:
        """The job's attempts, in order."""
        return self.attempts_of([job_id])[JobId(job_id)]

    def attempts_of(self, ids: Collection[str]) -> dict[JobId, list[Attempt]]:
        """The attempts of each of `ids`, in order."""
        with self._database.reading() as connection:
            return queries.attempts(connection, ids)

    def incidents_of(self, ids: Collection[str]) -> dict[JobId, list[incidents.Noticed]]:
        """What went wrong with the jobs `ids`, in the order in which it happened."""
        with self._database.reading() as connection:
            return incidents.of_jobs(connection, ids)

    def incidents_noticed(
        self, after: float, until: float = math.inf, uid: int | None = None, origin: Origin | None = None
    ) -> list[incidents.Noticed]:
        """Incidents whose rows were written after `after` and not after `until` (seconds since the epoch, by
        :meth:`now`), oldest first; with `uid` of that user's jobs, with `origin` from there alone."""
        with self._database.reading() as connection:
            return incidents.noticed_between(connection, after, until, uid, origin)

    def pending_uploads(self, limit: int = 100) -> list[Attempt]:
        """Attempts whose results or logs are still to be stored, oldest first; their jobs may have ended or not."""
        with self._database.reading() as connection:
            return queries.pending_uploads(connection, limit)

    def note_uploaded(self, job_id: str, number: int, at: float = 0.0) -> bool:
        """Results and logs of this attempt were stored at this time, after the job's last change; False = they were not
        owed."""
        return transitions.note_uploaded(self._database, self._reader, job_id, number, at)

    def claim_deployable(self, owner: str, *, limit: int, lease_s: float, elements: int = 0) -> list[LeasedJob]:
        """Lease up to `limit` jobs, oldest first: PENDING or DEPLOYING, due, and nobody's. Any request. Where
        elements of arrays are among them, up to `elements` more of those arrays.

        One claim has one token.
        """
        return leases.claim_deployable(self._database, self._reader, owner, limit, lease_s, elements)

    def renew(self, job_id: str, lease_token: str, lease_s: float) -> bool:
        """Make the lease last `lease_s` from now; False = it is another's."""
        return leases.renew(self._database, job_id, lease_token, lease_s)

    def renew_many(self, ids: Collection[str], lease_token: str, lease_s: float) -> frozenset[JobId]:
        """As :meth:`renew` for many jobs of one lease in one transaction; those of which it is still the caller's."""
        return leases.renew_many(self._database, ids, lease_token, lease_s)

    def release(self, job_id: str, lease_token: str, next_try_at: float | None = None) -> None:
        """Give the lease back; with `next_try_at` (by :meth:`now`) the try is counted and the next one put off."""
        leases.release(self._database, job_id, lease_token, next_try_at)

    def put_off(self, ids: Collection[str], lease_token: str, next_try_at: float) -> None:
        """As :meth:`release` with `next_try_at`, for many jobs of one lease in one transaction."""
        leases.put_off(self._database, ids, lease_token, next_try_at)

    def make_due(self, ids: Collection[str]) -> None:
        """End the pause before the next try of those of `ids` that are PENDING."""
        leases.make_due(self._database, ids)

    def make_elements_due(self) -> None:
        """As :meth:`make_due` of all elements of arrays: whoever held them back may be dead."""
        leases.make_elements_due(self._database)

    def begin_attempt(self, job: Job, lease_token: str, at: float, lease_s: float | None = None) -> Job | None:
        """As :meth:`begin_attempts` for one; None = job or lease is another's by now."""
        return self.begin_attempts([job], lease_token, at, lease_s).get(job.id)

    def begin_attempts(
        self, jobs: Sequence[Job], lease_token: str, at: float, lease_s: float | None = None
    ) -> dict[JobId, Job]:
        """PENDING → DEPLOYING, the next attempt of each with its token, in one transaction; without those that are,
        or whose lease is, another's by now. All of `jobs` were claimed at once, so they have one lease token.

        With `lease_s` the leases last so long from now, in the same write.
        Raises IllegalTransition where a job is not PENDING, and begins none then.
        """
        if not jobs:
            return {}
        return transitions.begin_attempts(self._database, self._reader, jobs, lease_token, at, lease_s)

    def apply(self, job: Job, change: Change, *, lease_token: str | None = None) -> Job | None:
        """The job after `change`, or None: somebody else changed the row (or has the lease), drop the result.

        See :func:`ffdl_batch.store.transitions.decide` for what ends and resumes set beside; a job that leaves
        PENDING and DEPLOYING is nobody's any more. A change that
        changes nothing writes nothing. Raises IllegalTransition, or ValueError for a column that is none.
        """
        return next(iter(transitions.apply_many(self._database, self._reader, [(job, change)], lease_token)), None)

    def apply_many(self, pairs: Sequence[tuple[Job, Change]], *, lease_token: str | None = None) -> list[Job]:
        """As :meth:`apply` for many in one transaction: the updated jobs, without those that others changed (or have
        the lease of).

        One illegal change raises and undoes all.
        """
        return transitions.apply_many(self._database, self._reader, pairs, lease_token) if pairs else []

    def set_requested_action(self, job_id: str, requested_action: RequestedAction) -> Job | None:
        """Note what the owner requests; the job as it is then, None if there is none.

        An ended job stays as it is, and a cancel is not softened to a halt.
        """
        return transitions.set_requested_action(self._database, self._reader, job_id, requested_action)

    def acquire_lease(self, name: str, owner: str, lease_s: float) -> str | None:
        """The token of the named lease, or None while somebody holds it."""
        return leases.acquire_lease(self._database, name, owner, lease_s)

    def renew_lease(self, name: str, token: str, lease_s: float) -> bool:
        """Make the named lease last `lease_s` from now; False = it is another's."""
        return leases.renew_lease(self._database, name, token, lease_s)

    def release_lease(self, name: str, token: str) -> None:
        """Give the named lease back."""
        leases.release_lease(self._database, name, token)

    def bind_tree(self, tree: str, *, instead_of: str | None = None) -> str:
        """The tree of job directories that the database goes with: `tree`, where it had none so far, or had
        `instead_of`."""
        return leases.bind_tree(self._database, tree, instead_of)

    def used_jobs(self, uid: int | None, since: float, until: float) -> Iterator[list[usage_rows.UsedJob]]:
        """See :func:`ffdl_batch.store.usage_rows.used_jobs`; nothing is held between two pages."""
        return usage_rows.used_jobs(self._database, uid, since, until)

    def is_idle(self, owner: str) -> bool:
        """Whether no job lives, nothing is owed, and no other daemon than `owner` is at work."""
        busy = self.count_live() or self.pending_uploads(1)
        return not busy and not leases.is_leased_by_others(self._database, owner)

    def end_claims_of(self, owner: str) -> None:
        """End the leases of jobs that `owner` holds, as after a step of its that failed; named leases stay."""
        leases.end_claims_of(self._database, owner)

    def end_leases_of(self, owner: str) -> None:
        """End every lease of `owner`, whose earlier life is proven over (its lock is ours now)."""
        leases.end_leases_of(self._database, owner)

    def now(self) -> float:
        """Seconds since the epoch: the database's clock on PostgreSQL, the own one on SQLite."""
        if not self._database.is_postgres:
            return self._database.clock.now()
        with self._database.reading() as connection:
            return self._database.now(connection)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()
