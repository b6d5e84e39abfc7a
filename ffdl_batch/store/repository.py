"""The store as the services see it. Each call is one transaction; no call is made inside another's transaction.

Every method raises :class:`StoreUnavailable` (try again later) or another :class:`StoreError`. If a writing method
raises StoreUnavailable, the write may have happened (the connection may have been lost during the commit). Keys,
revisions and tokens make it safe to read again and repeat.
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
from ffdl_batch.store.elastic import ElasticStore
from ffdl_batch.store.existing_database import sqlite_file
from ffdl_batch.store.incidents import Notices
from ffdl_batch.store.records import Attempt, JobReader, LeasedJob, NewJob
from ffdl_batch.store.schema_upgrade import bring_up_to_date
from ffdl_batch.store.tokens import Tokens

Consent = Callable[[str], None]
"""Called with the place of a SQLite database before it is created; raises StoreError to prevent that."""
Approval = Callable[["Store"], None]
"""Called with the store of an existing database before its schema is upgraded; raises to prevent that. It may call only
`job_ids`, `left_out` and `live_backends`, which work with all revisions of the schema."""


def open_store(
    url: str,
    *,
    network_fs: bool | None = None,
    clock: Clock | None = None,
    may_begin: Consent | None = None,
    may_use: Approval | None = None,
) -> Store:
    """Return the store behind `url` (``sqlite:////path`` or ``postgresql+psycopg://...``), migrated to this release.

    `network_fs` says whether a SQLite file is on a network file system; None = find out. `clock` is the store's
    time on SQLite. Raises SchemaTooNew, StoreUnavailable, StoreError for an unknown URL, and the errors of `may_begin`
    and `may_use`.
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
        """The notices of incidents."""
        self.tokens = Tokens(database)
        """The tokens of the daemon."""
        self.elastic = ElasticStore(database, self._reader)
        """The sizes of elastic jobs, and the decisions of scalers."""

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
        """Why and since when the database cannot be written; None if the last write succeeded."""
        return self._database.health.trouble

    def check_files(self) -> None:
        """Raise DatabaseGone if a file of a SQLite database was deleted, moved or replaced."""
        self._database.check_files()

    @property
    def is_shared(self) -> bool:
        """Whether several daemons may work with this database; then :meth:`now` is the server's time."""
        return self._database.is_postgres

    def add_jobs(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Add `jobs` as PENDING, with history entry 1, in one transaction; return them. They are durable on return.

        For a `submit_key` that this uid used before, the earlier job is returned. Raises DuplicateId for an id that
        another job has.
        """
        return submissions.add_jobs(self._database, self._reader, jobs) if jobs else []

    def get(self, job_id: str) -> Job | None:
        """Return the job; None if it does not exist."""
        return next(iter(self.get_many([job_id])), None)

    def get_many(self, ids: Collection[str]) -> list[Job]:
        """Return the jobs of `ids` that exist, in the order of `ids`."""
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
        ended_before: float | None = None,
        text: str | None = None,
        is_collapsed: bool = False,
    ) -> list[Job]:
        """Return jobs that are not removed by submission, newest first; None = any.

        `since` is the earliest submission. `name` is the exact name of the job or of its array, `array` the id of its
        array. `after` is the id of the last job of the previous page; an unknown id gives no jobs. `text` is part of a
        name, or the beginning of an id. If `is_collapsed`, an array has only its first element that matches.
        """
        wanted = queries.JobFilter(uid, states, name, since, limit, after, array, ended_before, text, is_collapsed)
        with self._database.reading() as connection:
            return queries.list_jobs(connection, self._reader, wanted)

    def elements_of(self, array_id: str, index: int | None = None) -> list[Job]:
        """Return the elements of an array, by index; with `index` only that one. Empty for an unknown array."""
        with self._database.reading() as connection:
            return queries.elements_of(connection, self._reader, array_id, index)

    def count_elements(self, ids: Collection[str], *, with_removed: bool = True) -> dict[str, dict[JobState, int]]:
        """Return how many elements each of these arrays has in each state; one query."""
        with self._database.reading() as connection:
            return queries.count_elements(connection, ids, with_removed=with_removed)

    def arrays_to_keep(self, ids: Collection[str]) -> frozenset[str]:
        """Return those of these arrays that have an element that is not removed; one query."""
        with self._database.reading() as connection:
            return queries.arrays_to_keep(connection, ids)

    def count_handed_over(self, ids: Collection[str], besides: str = "") -> dict[str, int]:
        """Return how many live elements of each of these arrays a scheduler has, may have, or is about to get; one
        query. Elements that are being submitted under the lease token `besides` do not count."""
        with self._database.reading() as connection:
            return queries.count_handed_over(connection, ids, self._database.now_expression(), besides)

    def job_ids(self) -> frozenset[str]:
        """Return the ids of all jobs."""
        with self._database.reading() as connection:
            return queries.job_ids(connection)

    def left_out(self) -> frozenset[str]:
        """Return the ids of executed jobs that the database leaves out on purpose."""
        with self._database.reading() as connection:
            return leases.left_out(connection)

    def leave_out(self, ids: Collection[str]) -> None:
        """Replace the ids of :meth:`left_out`."""
        with self._database.writing() as connection:
            leases.leave_out(connection, ids)

    def find_ids(self, beginning: str, uid: int | None, limit: int) -> list[JobId]:
        """Return the ids of at most `limit` jobs of `uid` (None = any user) that begin with `beginning`, newest
        first."""
        with self._database.reading() as connection:
            return queries.find_ids(connection, beginning, uid, limit)

    def find_native(self, native_id: str, uid: int | None, limit: int) -> list[Job]:
        """Return at most `limit` jobs of `uid` (None = any user) with this native id, or of the native array with it,
        newest first. There may be several, because schedulers reuse ids."""
        with self._database.reading() as connection:
            return queries.find_native(connection, self._reader, native_id, uid, limit)

    def live_deployed(self, backend: str) -> list[Job]:
        """Return the live jobs of `backend` that its scheduler can be asked about: DEPLOYING to STORING with a native
        id, oldest first."""
        with self._database.reading() as connection:
            return queries.live_deployed(connection, self._reader, backend)

    def live_backends(self) -> list[str]:
        """Return the backends that have jobs in :meth:`live_deployed`, sorted."""
        with self._database.reading() as connection:
            return queries.live_backends(connection)

    def live_digests(self) -> frozenset[str]:
        """Return the `model_digest` of every job that has not ended."""
        with self._database.reading() as connection:
            return queries.live_digests(connection)

    def count_live(self) -> int:
        """Return how many jobs have not ended."""
        with self._database.reading() as connection:
            return queries.count_live(connection)

    def count_states(self, uid: int, *, with_removed: bool = True) -> dict[tuple[str, JobState], int]:
        """See :func:`ffdl_batch.store.queries.count_states`."""
        with self._database.reading() as connection:
            return queries.count_states(connection, uid, with_removed=with_removed)

    def sum_attempts(self, uid: int) -> list[queries.AttemptSum]:
        """See :func:`ffdl_batch.store.queries.sum_attempts`."""
        with self._database.reading() as connection:
            return queries.sum_attempts(connection, uid)

    def changed_since(self, uid: int, at: float) -> dict[JobId, tuple[str, float]]:
        """See :func:`ffdl_batch.store.queries.changed_since`."""
        with self._database.reading() as connection:
            return queries.changed_since(connection, uid, at)

    def history(self, job_id: str, after_seq: int = 0) -> list[HistoryEntry]:
        """Return the job's changes of state after `after_seq`, in order; empty for an unknown job."""
        with self._database.reading() as connection:
            return queries.histories(connection, [job_id], after_seq)[JobId(job_id)]

    def histories(self, ids: Collection[str]) -> dict[JobId, list[HistoryEntry]]:
        """Return the whole history of each of `ids`."""
        with self._database.reading() as connection:
            return queries.histories(connection, ids)

    def attempts(self, job_id: str) -> list[Attempt]:
        """Return the job's attempts, in order."""
        return self.attempts_of([job_id])[JobId(job_id)]

    def attempts_of(self, ids: Collection[str]) -> dict[JobId, list[Attempt]]:
        """Return the attempts of each of `ids`, in order."""
        with self._database.reading() as connection:
            return queries.attempts(connection, ids)

    def incidents_of(self, ids: Collection[str]) -> dict[JobId, list[incidents.Noticed]]:
        """Return the incidents of the jobs `ids`, in the order in which they happened."""
        with self._database.reading() as connection:
            return incidents.of_jobs(connection, ids)

    def incidents_noticed(
        self, after: float, until: float = math.inf, uid: int | None = None, origin: Origin | None = None
    ) -> list[incidents.Noticed]:
        """Return incidents whose rows were written after `after` and not after `until` (by :meth:`now`), oldest first;
        with `uid` only those of one user, with `origin` only those of this origin."""
        with self._database.reading() as connection:
            return incidents.noticed_between(connection, after, until, uid, origin)

    def pending_uploads(self, limit: int = 100) -> list[Attempt]:
        """Return attempts with a pending upload, oldest first, of live and ended jobs."""
        with self._database.reading() as connection:
            return queries.pending_uploads(connection, limit)

    def note_uploaded(self, job_id: str, number: int, at: float = 0.0) -> bool:
        """Record that the pending upload of this attempt finished at `at`; return False if none was pending."""
        return transitions.note_uploaded(self._database, self._reader, job_id, number, at)

    def claim_deployable(self, owner: str, *, limit: int, lease_s: float, elements: int = 0) -> list[LeasedJob]:
        """Lease up to `limit` jobs, oldest first: PENDING or DEPLOYING, due, and not leased; with any request.

        If elements of arrays are among them, up to `elements` more of those arrays are leased. All have one token.
        """
        return leases.claim_deployable(self._database, self._reader, owner, limit, lease_s, elements)

    def renew(self, job_id: str, lease_token: str, lease_s: float) -> bool:
        """Extend the lease to `lease_s` from now; return False if another daemon has it."""
        return leases.renew(self._database, job_id, lease_token, lease_s)

    def renew_many(self, ids: Collection[str], lease_token: str, lease_s: float) -> frozenset[JobId]:
        """Renew the leases of many jobs like :meth:`renew` in one transaction; return the jobs that the caller still
        has."""
        return leases.renew_many(self._database, ids, lease_token, lease_s)

    def release(self, ids: Collection[str], lease_token: str, next_try_at: float | None = None) -> None:
        """Release jobs of one lease, in one transaction. With `next_try_at` (by :meth:`now`), count the try and
        postpone the next one."""
        leases.release(self._database, ids, lease_token, next_try_at)

    def make_due(self, ids: Collection[str]) -> None:
        """End the pause before the next try of those of `ids` that are PENDING."""
        leases.make_due(self._database, ids)

    def make_elements_due(self) -> None:
        """End the pause of all elements of arrays, because the daemon that postponed them may have ended."""
        leases.make_elements_due(self._database)

    def begin_attempt(self, job: Job, lease_token: str, at: float, lease_s: float | None = None) -> Job | None:
        """Begin one attempt like :meth:`begin_attempts`; return None if job or lease changed meanwhile."""
        return self.begin_attempts([job], lease_token, at, lease_s).get(job.id)

    def begin_attempts(
        self, jobs: Sequence[Job], lease_token: str, at: float, lease_s: float | None = None
    ) -> dict[JobId, Job]:
        """Move PENDING jobs to DEPLOYING, each with its next attempt and token, in one transaction; return them.

        Jobs that changed or whose lease was lost are omitted. All of `jobs` were claimed at once, so they have one
        lease token. With `lease_s`, the leases are extended to so long from now in the same write. Raises
        IllegalTransition, and begins none, if a job is not PENDING.
        """
        if not jobs:
            return {}
        return transitions.begin_attempts(self._database, self._reader, jobs, lease_token, at, lease_s)

    def apply(self, job: Job, change: Change, *, lease_token: str | None = None) -> Job | None:
        """Change a job and return it; None if its row changed (or its lease was lost) meanwhile: drop the result then.

        See :func:`ffdl_batch.store.transitions.decide` for what ends and resumes set besides. The lease ends when the
        job leaves PENDING and DEPLOYING. A change without effect writes nothing. Raises IllegalTransition, and
        ValueError for an unknown column.
        """
        return next(iter(transitions.apply_many(self._database, self._reader, [(job, change)], lease_token)), None)

    def apply_many(self, pairs: Sequence[tuple[Job, Change]], *, lease_token: str | None = None) -> list[Job]:
        """Change many jobs like :meth:`apply` in one transaction; return those that did not change meanwhile.

        One illegal change raises and undoes all.
        """
        return transitions.apply_many(self._database, self._reader, pairs, lease_token) if pairs else []

    def set_requested_action(self, job_id: str, requested_action: RequestedAction) -> Job | None:
        """Record the owner's request and return the job; None if it does not exist.

        An ended job does not change, and a halt does not replace a cancel.
        """
        return transitions.set_requested_action(self._database, self._reader, job_id, requested_action)

    def acquire_lease(self, name: str, owner: str, lease_s: float) -> str | None:
        """Return a token of the named lease; None while another daemon holds it."""
        return leases.acquire_lease(self._database, name, owner, lease_s)

    def renew_lease(self, name: str, token: str, lease_s: float) -> bool:
        """Extend the named lease to `lease_s` from now; return False if another daemon has it."""
        return leases.renew_lease(self._database, name, token, lease_s)

    def release_lease(self, name: str, token: str) -> None:
        """Release the named lease."""
        leases.release_lease(self._database, name, token)

    def bind_tree(self, tree: str, *, instead_of: str | None = None) -> str:
        """Return the tree of job directories of the database; it becomes `tree` if it had none, or had `instead_of`."""
        return leases.bind_tree(self._database, tree, instead_of)

    def used_jobs(self, uid: int | None, since: float, until: float) -> Iterator[list[usage_rows.UsedJob]]:
        """See :func:`ffdl_batch.store.usage_rows.used_jobs`; no connection is held between two pages."""
        return usage_rows.used_jobs(self._database, uid, since, until)

    def is_idle(self, owner: str) -> bool:
        """Return whether there is no live job, no pending upload, and no working daemon other than `owner`."""
        busy = self.count_live() or self.pending_uploads(1)
        return not busy and not leases.is_leased_by_others(self._database, owner)

    def end_claims_of(self, owner: str, besides: Collection[str] = ()) -> None:
        """End the leases of jobs that `owner` holds, for example after a failed step. Those with the tokens `besides`
        and named leases stay."""
        leases.end_claims_of(self._database, owner, besides)

    def end_leases_of(self, owner: str) -> None:
        """End every lease of `owner`, whose earlier process has provably ended (its lock is ours now)."""
        leases.end_leases_of(self._database, owner)

    def now(self) -> float:
        """Return the seconds since the epoch, by the server's clock on PostgreSQL, by ours on SQLite."""
        if not self._database.is_postgres:
            return self._database.clock.now()
        with self._database.reading() as connection:
            return self._database.now(connection)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()
