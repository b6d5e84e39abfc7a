"""Faults of the product that the judge has to find. Made from outside, in forked children; the product has no switch.

Each takes away one guard of the order that keeps jobs whole. A suite that does not find them could not find a bug.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine, insert

from ffdl_batch.attempt import element_files
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.head.claim import Claim
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.domain.job.job import Job, Token
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.data.pending_uploads import PendingUploads, Start, Upload, WriteFinalRecord, start_upload
from ffdl_batch.services.deployment import array_submission
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import Leases
from ffdl_batch.store import NewJob, Store
from ffdl_batch.store.batched_writes import Row, Writes
from ffdl_batch.store.schema import HISTORY
from ffdl_batch.store.submissions import _job as job_of
from tests.crash.fuzz import cluster, heads

LATE_S = 0.03
"""How long after its time the mutated daemon commits."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault, and the count of :class:`~tests.crash.fuzz.judge.Findings` in which it must show.

    `within` is the number of kills, with the work that follows them, in which it must; the first ones are at `aim`.
    """

    name: str
    shows_in: str
    within: int
    aim: tuple[str, ...] = ()

    def alter_cluster(self) -> None:
        """In the process of the heads."""

    def alter_daemon(self) -> None:
        """In a life, before the daemon begins."""

    def alter_platform(self, platform: Platform) -> None:
        """In a life, when the platform is open."""


class ClaimAlwaysGranted(Mutation):
    """Two deliveries of one attempt both execute it. Every third request is delivered twice, so that it shows soon."""

    __slots__ = ()

    def alter_cluster(self) -> None:
        """See :class:`Mutation`."""

        def grant(attempt: AttemptDir, native_id: str) -> Claim:
            return Claim(1, {})

        heads.claim_attempt = grant
        cluster.TWICE = cluster.DOWN = cluster.LOST + 1 / 3


class AnswerBeforeCommit(Mutation):
    """A submission is answered, and committed a moment later."""

    __slots__ = ()

    def alter_platform(self, platform: Platform) -> None:
        """See :class:`Mutation`."""
        add = platform.storage.store.add_jobs

        def later(jobs: Sequence[NewJob]) -> None:
            time.sleep(LATE_S)
            add(jobs)

        def add_jobs(jobs: Sequence[NewJob]) -> list[Job]:
            threading.Thread(target=later, args=(jobs,), daemon=True).start()
            return [job_of(job) for job in jobs]

        setattr(platform.storage.store, "add_jobs", add_jobs)  # noqa: B010 - a method


class KeysIgnored(Mutation):
    """A submission that is sent again, because its answer was lost, makes another job."""

    __slots__ = ()

    def alter_platform(self, platform: Platform) -> None:
        """See :class:`Mutation`."""
        add = platform.storage.store.add_jobs

        def add_jobs(jobs: Sequence[NewJob]) -> list[Job]:
            return add([replace(job, submit_key="") for job in jobs])

        setattr(platform.storage.store, "add_jobs", add_jobs)  # noqa: B010 - a method


class HistoryApart(Mutation):
    """A change of state and its entry in the history are two transactions."""

    __slots__ = ()

    def alter_daemon(self) -> None:
        """See :class:`Mutation`."""
        flush = Writes.flush

        def later(engine: Engine, rows: list[Row]) -> None:
            time.sleep(LATE_S)
            with engine.begin() as connection:
                connection.execute(insert(HISTORY), rows)

        def flush_without_history(writes: Writes) -> None:
            rows, writes._history = writes._history, []
            flush(writes)
            if rows:
                threading.Thread(target=later, args=(writes._connection.engine, rows), daemon=True).start()

        setattr(Writes, "flush", flush_without_history)  # noqa: B010 - a method


class LeasesSurvive(Mutation):
    """A daemon leaves the leases of its earlier life as they are."""

    __slots__ = ()

    def alter_daemon(self) -> None:
        """See :class:`Mutation`."""

        def keep(store: Store, owner: str) -> None:
            return

        setattr(Store, "end_leases_of", keep)  # noqa: B010 - a method


class MarksNameNoArray(Mutation):
    """The mark of an element does not say which task of which native array it is: whoever finds it later cannot look
    for it. Tasks wait for long, so that no claim helps, and every third answer is lost, so that it shows soon."""

    __slots__ = ()

    def alter_cluster(self) -> None:
        """See :class:`Mutation`."""
        cluster.QUEUED, cluster.QUEUED_S = 1.0, 10 * cluster.QUEUED_S
        cluster.LOST = cluster.TWICE = cluster.DOWN = cluster.TOO_LATE + 1 / 3

    def alter_daemon(self) -> None:
        """See :class:`Mutation`."""

        def no_mark(chunk: Token, task: str) -> str:
            return ""

        def no_line(array: str, number: int, task: str) -> str:
            return "in some array\n"

        setattr(array_submission, "mark_of", no_mark)  # noqa: B010 - it is imported there
        element_files.mark_line = no_line


class UploadedBeforeStored(Mutation):
    """An upload is noted as done when it is about to begin."""

    __slots__ = ()

    def alter_daemon(self) -> None:
        """See :class:`Mutation`."""
        make = PendingUploads.__init__

        def make_hasty(
            uploads: PendingUploads, storage: JobStorage, adapters: Adapters, leases: Leases, start: Start | None = None
        ) -> None:
            def begin(attempt: AttemptDir, write_record: WriteFinalRecord) -> Upload | None:
                directory = Path(attempt.path)
                number = int(directory.name.rpartition("-")[2])
                storage.store.note_uploaded(directory.parent.name, number, storage.clock.now())
                return (start or start_upload)(attempt, write_record)

            make(uploads, storage, adapters, leases, begin)

        setattr(PendingUploads, "__init__", make_hasty)  # noqa: B010 - a method


MUTATIONS = {
    mutation.name: mutation
    for mutation in (
        ClaimAlwaysGranted("claim", "executed_twice", 50),
        AnswerBeforeCommit("answer", "lost", 50, ("after reply submit",)),
        KeysIgnored("keys", "unacknowledged", 6, ("after commit add_jobs", "before reply submit")),
        HistoryApart("history", "history_faults", 50),
        LeasesSurvive("leases", "lease_faults", 20, ("deployer claimed", "after commit acquire_lease")),
        MarksNameNoArray("marks", "sent_again", 40, ("deployer chunk submitted",)),
        UploadedBeforeStored("uploads", "lost", 40, ("after commit note_uploaded",)),
    )
}
