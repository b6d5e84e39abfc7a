"""What is said of a job that has nothing left to do but to be stored, and for what that waits."""

from __future__ import annotations

from collections.abc import Mapping

from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store import Store

UPLOAD_PENDING = "its results and logs are still to be stored"
"""What a job waits for whose training is over and whose controllers were killed before they had stored it all."""


def is_reported_pending(job: Job) -> bool:
    """Whether the job says so already, whatever it says of the reason."""
    return job.pending_reason.startswith(UPLOAD_PENDING)


class ReportedReasons:
    """What was said of debts, so that jobs are written only where that changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[tuple[JobId, int], str] = {}

    def report(self, reasons: Mapping[tuple[JobId, int], str]) -> int:
        """Why what these attempts owe is not stored yet ("" = it is being stored), of all of which something is to be
        said; how many jobs changed. Raises StoreError."""
        self._last = {key: why for key, why in self._last.items() if key in reasons}
        news = {key: why for key, why in reasons.items() if self._last.get(key) != why}
        changed = 0
        jobs = {job.id: job for job in self._store.get_many([job_id for job_id, _ in news])} if news else {}
        for (job_id, number), why in news.items():
            job = jobs.get(job_id)
            text = f"{UPLOAD_PENDING}: {why}" if why else UPLOAD_PENDING
            waits = (
                job is not None and job.state is JobState.STORING and job.attempt == number and is_reported_pending(job)
            )
            if job is not None and waits and job.pending_reason != text:
                if self._store.apply(job, Change(columns={"pending_reason": text})) is None:
                    continue  # it went on meanwhile: it is looked at again
                changed += 1
            self._last[job_id, number] = why
        return changed
