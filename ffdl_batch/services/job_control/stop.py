"""Halts and cancels jobs.

The request is noted beside the job's state and written for the controllers at once. A job that no scheduler has is
ended here: one that waits for its deployment, and by a cancel also one that was halted.
"""

from __future__ import annotations

import logging

from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import what_begins
from ffdl_batch.domain.outcome.ending import CANCELLED_BY_OWNER
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.jobs import detailed, own_job
from ffdl_batch.services.refusals import try_again

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a row that changes under our hands is read again; each loss means that another step succeeded."""
_ENDS = {
    RequestedAction.HALT: (JobState.HALTED, "halted"),
    RequestedAction.CANCEL: (JobState.CANCELLED, CANCELLED_BY_OWNER),
}


def request_stop(
    storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str, requested_action: RequestedAction
) -> JobView:
    """Record the request to halt or to cancel; a job that no scheduler has ends at once. Idempotent.

    A job that has ended stays as it is, but for one that was halted: a cancel gives it up. A cancel is not softened to
    a halt.
    """
    job = own_job(storage.store, caller, job_id)
    for _ in range(ATTEMPTS):
        is_end = ends_here(job, requested_action)
        if job.state.is_terminal and not is_end:
            break
        if is_end:
            updated = storage.store.apply(job, end_here(job, requested_action, storage.clock.now()))
        else:
            updated = storage.store.set_requested_action(job.id, requested_action)
        if updated is not None and not ends_here(updated, requested_action):
            job = updated
            break
        job = own_job(storage.store, caller, job_id)
    else:
        raise try_again("S210", f"{job_id} changes too fast to note the request", cure="try again")
    if not job.state.is_terminal:
        _notify_controllers(storage, job)
    return detailed(storage, adapters, job)


def ends_here(job: Job, requested_action: RequestedAction) -> bool:
    """Whether the request ends the job now, because no scheduler has anything of it."""
    return job.state is JobState.PENDING or (
        job.state is JobState.HALTED and requested_action is RequestedAction.CANCEL
    )


def end_here(job: Job, requested_action: RequestedAction, now: float) -> Change:
    """How it ends the job."""
    state, word = _ENDS[requested_action]
    if job.state is JobState.HALTED:
        return Change(steps=((state, now),), cause=Cause.CANCELLED, message=word)
    return Change(steps=((state, now),), message=f"{word} before {what_begins(job.attempt + 1)} was deployed")


def _notify_controllers(storage: JobStorage, job: Job) -> None:
    """A courtesy that saves a second or two: the row is what counts, and the watcher writes the cell from it again."""
    try:
        storage.tree.check()
        write_control(storage.root, job, requested_action=job.requested_action)
    except OSError as error:
        log.warning("job %s: its control cell could not be written now, and will be again: %s", job.id, error)


def halt_job(storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str) -> JobView:
    """Record the request; a job that no scheduler has heard of is HALTED at once. Idempotent; an ended job stays as
    it is, and so does a request to cancel."""
    return request_stop(storage, adapters, caller, job_id, RequestedAction.HALT)


def cancel_job(storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str) -> JobView:
    """Record the request; a job that no scheduler has ends at once, also one that was halted. Idempotent; a job that
    has ended otherwise stays as it is."""
    return request_stop(storage, adapters, caller, job_id, RequestedAction.CANCEL)
