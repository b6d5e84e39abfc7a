"""Holds the leases of the jobs that one step of the deployer has claimed, and puts jobs off.

While a step works on a job, other processes may change its row, for example for a request. Changes that are written
here are therefore repeated on the current row, as long as the lease is held.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable

from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store import Store, StoreUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delay:
    """A job that is tried again later."""

    job: Job
    pause_s: float
    reason: str = ""
    """The pending reason to show; "" leaves it unchanged."""


@dataclass(frozen=True, slots=True)
class StepLease:
    """The leases of one claim. Safe in every thread."""

    store: Store
    token: str

    def note(self, jobs: Collection[Job], change: Change) -> set[JobId]:
        """Write `change` on leased jobs, whatever else has changed on them. Return the jobs that were changed."""
        return self._note({job.id: change for job in jobs})

    def put_off(self, delays: Collection[Delay]) -> set[JobId]:
        """Show why the jobs wait, count the try, and release the jobs until their pauses end.

        Return the jobs whose pending reason has changed. A reason that the database cannot store is only logged.
        """
        changed: set[JobId] = set()
        try:
            changed = self._note(
                {one.job.id: Change(columns={"pending_reason": one.reason}) for one in delays if one.reason}
            )
        except StoreUnavailable as error:
            log.warning("the pending reasons of %d jobs could not be written: %s", len(delays), error)
        pauses: defaultdict[float, list[JobId]] = defaultdict(list)
        for one in delays:
            pauses[one.pause_s].append(one.job.id)
        now = self.store.now() if delays else 0.0
        for pause_s, ids in pauses.items():
            self.store.release(ids, self.token, now + pause_s)
        return changed

    def release(self, jobs: Iterable[Job]) -> None:
        """Release jobs after a failure. The try does not count."""
        ids = [job.id for job in jobs]
        if ids:
            self.store.release(ids, self.token)

    def _note(self, changes: dict[JobId, Change]) -> set[JobId]:
        changed: set[JobId] = set()
        tried: dict[JobId, int] = {}
        while changes:
            # A job that was refused at its current revision is leased by another daemon.
            current = [
                job
                for job in self.store.get_many(changes)
                if tried.get(job.id) != job.revision and _differs(job, changes[job.id])
            ]
            written = self.store.apply_many([(job, changes[job.id]) for job in current], lease_token=self.token)
            changed |= {job.id for job in written}
            tried = {job.id: job.revision for job in current}
            changes = {job_id: changes[job_id] for job_id in tried.keys() - changed}
        return changed


def _differs(job: Job, change: Change) -> bool:
    return any(getattr(job, name) != value for name, value in change.columns.items())
