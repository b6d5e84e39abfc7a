"""Change the sizes of elastic jobs: admit waiting jobs, halt and resume running ones, or release learners.

Each change is written with its job in one transaction, so that it is finished exactly once, even after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ffdl_batch.domain.job.job import Change, Job, Resize
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.number_text import counted
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_control.stop import notify_controllers
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.store import ElasticJob, JobSize, NamedLease, SizeState

log = logging.getLogger(__name__)

LOOK_S, SHRINKING_S = 60.0, 1.0
"""Pauses of LastChanges, unless a job changes before: without and with a job that shrinks, whose nodes are idle."""
Reached = Callable[[str], None]
"""Called with the name of each step. Tests use it to fail or kill the process at that step."""


@dataclass(frozen=True, slots=True)
class SizeChanges:
    """Changes the sizes of jobs of one pool, while this daemon holds its lease.

    All methods return True if they changed the job. They return False if the job has changed since it was read, or if
    another scaler holds the lease.
    """

    storage: JobStorage
    pool: str
    lease: NamedLease | None
    """None = the pool is not configured, so no daemon holds its lease. Changes can be finished, but not started."""
    reached: Reached

    def admit(self, job: Job, known: JobSize | None, learners: int, batch: int) -> bool:
        """Allow the deployer to submit the next attempt of a PENDING job with this size."""
        size = JobSize(job.id, SizeState.ADMITTED, job.attempt + 1, learners, batch, self._now())
        overrides = replace(job.overrides, learners=learners, global_batch=batch)
        change = Change(columns={"overrides": overrides, "pending_reason": ""})
        if self.storage.store.elastic.change(self.lease, job, change, size, known) is None:
            return False
        self.reached("admitted")
        self.storage.store.make_due([job.id])
        log.info("pool %s: %s starts with %s and batch %d", self.pool, job.id, counted(learners, "learner"), batch)
        return True

    def halt(self, job: Job, known: JobSize | None, learners: int, batch: int) -> bool:
        """Halt a running job, so that it can continue with this size. 0 learners = the job waits after the halt."""
        size = JobSize(job.id, SizeState.HALTING, job.attempt, learners, batch, self._now())
        then = f"continue with {counted(learners, 'learner')} and batch {batch}" if learners else "free its GPUs"
        change = Change(
            steps=((job.state, self._now()),),
            cause=Cause.RESIZED,
            message=f"the scaler of pool {self.pool} halts the job to {then}",
            columns={"requested_action": RequestedAction.HALT},
        )
        updated = self.storage.store.elastic.change(self.lease, job, change, size, known)
        if updated is None:
            return False
        self.reached("halted")
        notify_controllers(self.storage, updated)
        log.info("pool %s: %s is being halted to %s", self.pool, job.id, then)
        return True

    def shrink(self, job: Job, known: JobSize | None, learners: int, batch: int) -> bool:
        """Release the learners with the highest numbers from a running job, so that it continues in place with this
        size."""
        size = JobSize(job.id, SizeState.SHRINKING, job.attempt, learners, batch, self._now())
        if self.storage.store.elastic.change(self.lease, job, Change(), size, known) is None:
            return False
        self.reached("shrinking")
        let_leave(self.storage, job, learners)
        log.info("pool %s: %s shrinks in place to %s", self.pool, job.id, counted(learners, "learner"))
        return True

    def note_shrunk(self, job: Job, known: JobSize, resizes: tuple[Resize, ...]) -> bool:
        """Record that the nodes of a shrinking job were released. `resizes` are the earlier changes of its attempt."""
        done = Resize(known.requested_at, self._now(), known.learners, known.global_batch)
        size = f"{counted(known.learners, 'learner')} and batch {known.global_batch}"
        overrides = replace(job.overrides, learners=known.learners, global_batch=known.global_batch)
        change = Change(
            steps=((job.state, done.at),),
            cause=Cause.RESIZED,
            message=f"the scaler of pool {self.pool} shrank the job in place to {size}",
            columns={"overrides": overrides, "spent": replace(job.spent, resizes=job.spent.resizes + 1)},
            resizes=(*resizes, done),
        )
        size_after = replace(known, state=SizeState.ADMITTED)
        if self.storage.store.elastic.change(self.lease, job, change, size_after, known) is None:
            return False
        self.reached("shrunk")
        return True

    def resume(self, job: Job, known: JobSize) -> bool:
        """Continue a job that was halted for another size. Its retry budgets stay as they are."""
        overrides, state = job.overrides, SizeState.WITHDRAWN
        message = f"the scaler of pool {self.pool} gave its GPUs to other jobs"
        if known.learners:
            overrides = replace(overrides, learners=known.learners, global_batch=known.global_batch)
            state = SizeState.ADMITTED
            size = f"{counted(known.learners, 'learner')} and batch {known.global_batch}"
            message = f"the scaler of pool {self.pool} gave it {size}"
        change = Change(
            steps=((JobState.PENDING, self._now()),),
            cause=Cause.RESUMED,
            message=message,
            columns={"overrides": overrides, "spent": replace(job.spent, resizes=job.spent.resizes + 1)},
        )
        size_after = replace(known, state=state, attempt=job.attempt + 1)
        if self.storage.store.elastic.change(self.lease, job, change, size_after, known) is None:
            return False
        self.reached("resumed")
        return True

    def _now(self) -> float:
        return self.storage.clock.now()


def resume_halted(storage: JobStorage, changes_of: Callable[[Job], SizeChanges | None]) -> int:
    """Resume the jobs that were halted for another size, except those for which `changes_of` returns None. Return how
    many were resumed."""
    jobs = storage.store.elastic.halted()
    sizes = storage.store.elastic.sizes([job.id for job in jobs]) if jobs else {}
    return sum(
        changes.resume(job, sizes[job.id])
        for job in jobs
        if job.id in sizes and (changes := changes_of(job)) is not None
    )


@dataclass(frozen=True, slots=True)
class LastChanges:
    """Finishes the changes of size in a daemon that no longer has a pool, and deletes the sizes of ended jobs."""

    storage: JobStorage
    shrink: Callable[[SizeChanges, ElasticJob], bool]
    """Releases the nodes of a shrinking job."""

    def step(self) -> tuple[int, float]:
        """Resume the jobs that were halted for another size, release the nodes of shrinking ones, and delete the sizes
        of ended ones. Return how many jobs changed, and how long to pause."""
        resumed = resume_halted(self.storage, lambda job: unpooled(self.storage, job))
        self.storage.store.elastic.forget_ended()
        shrinking = self.storage.store.elastic.shrinking()
        changed = resumed + sum(self.shrink(unpooled(self.storage, one.job), one) for one in shrinking)
        return changed, SHRINKING_S if shrinking else LOOK_S

    def is_busy(self) -> bool:
        """Return whether a halted job is about to be resumed. Such a job does not count as live."""
        return bool(self.storage.store.elastic.halted())

    def close(self) -> None:
        """Do nothing: there is no lease."""


def unpooled(storage: JobStorage, job: Job, reached: Reached = lambda _step: None) -> SizeChanges:
    """Return the changes of a job whose pool is no longer configured."""
    elastic = job.spec.batch.elasticity
    return SizeChanges(storage, elastic.pool if elastic is not None else "", None, reached)


def let_leave(storage: JobStorage, job: Job, learners: int) -> None:
    """Request that the controllers end all but the first `learners` learners. If this fails, the scaler tries again."""
    try:
        storage.tree.check()
        write_control(storage.root, job, learners=learners)
    except OSError as error:
        log.warning("job %s: its control.json could not be written; the scaler tries again: %s", job.id, error)
