"""The pending reason of jobs that have nothing left to do but to store their results."""

from __future__ import annotations

from collections.abc import Mapping

from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store import Store

UPLOAD_PENDING = "its results and logs are still to be stored"
"""Pending reason of a job whose learners have ended and whose controllers were killed before everything was stored."""


def is_reported_pending(job: Job) -> bool:
    """Return whether the job's pending reason says so already, whatever the cause."""
    return job.pending_reason.startswith(UPLOAD_PENDING)


class ReportedReasons:
    """Reasons that were reported, so that only changes are written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[tuple[JobId, int], str] = {}

    def report(self, reasons: Mapping[tuple[JobId, int], str]) -> int:
        """Record why the uploads of these attempts are still pending ("" = being stored). `reasons` names all of them.
        Return how many jobs changed. Raises StoreError."""
        self._last = {key: why for key, why in self._last.items() if key in reasons}
        changes = {key: why for key, why in reasons.items() if self._last.get(key) != why}
        changed = 0
        jobs = {job.id: job for job in self._store.get_many([job_id for job_id, _ in changes])} if changes else {}
        for (job_id, number), why in changes.items():
            job = jobs.get(job_id)
            text = f"{UPLOAD_PENDING}: {why}" if why else UPLOAD_PENDING
            waits = (
                job is not None and job.state is JobState.STORING and job.attempt == number and is_reported_pending(job)
            )
            if job is not None and waits and job.pending_reason != text:
                if self._store.apply(job, Change(columns={"pending_reason": text})) is None:
                    continue  # it has changed meanwhile; the next round looks again
                changed += 1
            self._last[job_id, number] = why
        return changed
