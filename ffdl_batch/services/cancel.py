"""The owner wants a job to end."""

from __future__ import annotations

from ffdl_batch.domain.job import Change
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.views import JobView
from ffdl_batch.services.platform import Caller, Platform
from ffdl_batch.services.query import own_job, view_of

ATTEMPTS = 5
"""How often a row that changes under our hands is read again; each loss means that another step succeeded."""


def cancel_job(platform: Platform, caller: Caller, job_id: str) -> JobView:
    """Record the wish; a job that no scheduler has heard of ends at once. Idempotent; an ended job stays as it is."""
    job = own_job(platform, caller, job_id)
    for _ in range(ATTEMPTS):
        if job.state.is_terminal:
            break
        if job.state is JobState.PENDING:
            change = Change(
                steps=((JobState.CANCELLED, platform.clock.now()),),
                message="cancelled by its owner before it was deployed",
                columns={"wish": Wish.CANCEL},
            )
            updated = platform.store.apply(job, change)
        else:
            updated = platform.store.set_wish(job.id, Wish.CANCEL)
        if updated is not None:
            job = updated
            break
        job = own_job(platform, caller, job_id)
    return view_of(platform, job, platform.store.history(job.id))
