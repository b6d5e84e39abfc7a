"""Gives elastic jobs their sizes: admits those that wait, and halts and resumes those that run.

Each change is written with its job in one transaction, so that it continues after a crash, and once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.number_text import counted
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_control.stop import notify_controllers
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.store import JobSize, NamedLease, SizeState

log = logging.getLogger(__name__)

Reached = Callable[[str], None]
"""Called with the name of each step; tests make it fail or kill the process there."""


@dataclass(frozen=True, slots=True)
class SizeChanges:
    """Changes the sizes of jobs of one pool, while this daemon holds its lease.

    All methods return True if they changed the job, and False if it has changed since it was read, or another scaler
    holds the lease.
    """

    storage: JobStorage
    pool: str
    lease: NamedLease
    reached: Reached

    def admit(self, job: Job, known: JobSize | None, learners: int, batch: int) -> bool:
        """Let the deployer submit the next attempt of a job in PENDING, with this size."""
        size = JobSize(job.id, SizeState.ADMITTED, job.attempt + 1, learners, batch, self._now())
        overrides = replace(job.overrides, learners=learners, global_batch=batch)
        change = Change(columns={"overrides": overrides, "pending_reason": ""})
        if self.storage.store.elastic.change(self.lease, job, change, size, known) is None:
            return False
        self.reached("admitted")
        self.storage.store.make_due([job.id])
        log.info("pool %s: %s begins with %s and batch %d", self.pool, job.id, counted(learners, "learner"), batch)
        return True

    def halt(self, job: Job, known: JobSize | None, learners: int, batch: int) -> bool:
        """Ask a running job to end, so that it can continue with this size; 0 learners = it waits then."""
        size = JobSize(job.id, SizeState.HALTING, job.attempt, learners, batch, self._now())
        change = Change(columns={"requested_action": RequestedAction.HALT})
        updated = self.storage.store.elastic.change(self.lease, job, change, size, known)
        if updated is None:
            return False
        self.reached("halted")
        notify_controllers(self.storage, updated)
        log.info(
            "pool %s: %s is halted, to continue with %s and batch %d",
            self.pool,
            job.id,
            counted(learners, "learner"),
            batch,
        )
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
            columns={"overrides": overrides, "spent": job.spent},
        )
        size_after = replace(known, state=state, attempt=job.attempt + 1)
        if self.storage.store.elastic.change(self.lease, job, change, size_after, known) is None:
            return False
        self.reached("resumed")
        return True

    def _now(self) -> float:
        return self.storage.clock.now()
