"""Halts and cancels jobs and arrays.

The request is recorded beside the job's state and written for the controllers at once. A job that no scheduler has ends
here: a PENDING job, and by a cancel also a HALTED one.
"""

from __future__ import annotations

import logging

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import ArrayView, JobView
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.outcome.attempt_reports import CANCELLED_BY_OWNER
from ffdl_batch.domain.outcome.continuation import what_begins
from ffdl_batch.ports.clock import Clock
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.jobs import detailed, own_job
from ffdl_batch.services.refusals import try_again, unknown_array

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a row that another step changes meanwhile is read again."""
AT_ONCE = 1000
"""Elements whose request is recorded in one transaction."""
_ENDS = {
    RequestedAction.HALT: (JobState.HALTED, "halted"),
    RequestedAction.CANCEL: (JobState.CANCELLED, CANCELLED_BY_OWNER),
}


def request_stop(
    storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str, requested_action: RequestedAction
) -> JobView:
    """Record the request to halt or to cancel. A job that no scheduler has ends at once. Idempotent.

    A job that has ended does not change, except that a cancel ends a HALTED job. A halt does not replace a cancel.
    """
    job = own_job(storage.store, caller, job_id)
    for _ in range(ATTEMPTS):
        is_end = ends_here(job, requested_action)
        if job.state.is_terminal and not is_end:
            if job.spec.batch.elasticity is None or storage.store.elastic.withdraw(job.id):
                break
            job = own_job(storage.store, caller, job_id)  # a scaler may have resumed it
            if job.state.is_terminal:
                break
            continue
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
        notify_controllers(storage, job)
    return detailed(storage, adapters, job)


def ends_here(job: Job, requested_action: RequestedAction) -> bool:
    """Whether the request ends the job now, because no scheduler has it."""
    return job.state is JobState.PENDING or (
        job.state is JobState.HALTED and requested_action is RequestedAction.CANCEL
    )


def end_here(job: Job, requested_action: RequestedAction, now: float) -> Change:
    """Return the change that ends the job."""
    state, word = _ENDS[requested_action]
    if job.state is JobState.HALTED:
        return Change(steps=((state, now),), cause=Cause.CANCELLED, message=word)
    return Change(steps=((state, now),), message=f"{word} before {what_begins(job.attempt + 1)} was deployed")


def notify_controllers(storage: JobStorage, job: Job) -> None:
    """Write the request for the controllers now, which saves a second or two. The watcher repeats it from the row."""
    try:
        storage.tree.check()
        write_control(storage.root, job, requested_action=job.requested_action)
    except OSError as error:
        log.warning("job %s: its control cell could not be written now; the watcher tries again: %s", job.id, error)


def halt_job(storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str) -> JobView:
    """Record the request to halt. A job that no scheduler has is HALTED at once. Idempotent. An ended job and a request
    to cancel do not change."""
    return request_stop(storage, adapters, caller, job_id, RequestedAction.HALT)


def cancel_job(storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str) -> JobView:
    """Record the request to cancel. A job that no scheduler has ends at once, also a HALTED one. Idempotent. A job that
    has ended otherwise does not change."""
    return request_stop(storage, adapters, caller, job_id, RequestedAction.CANCEL)


def get_array(storage: JobStorage, caller: Caller, array_id: str) -> ArrayView:
    """Return the number of elements by state, without removed ones. Two queries for an array of any size. Raises
    :class:`Refused`."""
    found = storage.store.list_jobs(uid=None, array=array_id, limit=1) if is_array_id(array_id) else []
    if not found or not (caller.is_admin or found[0].uid == caller.uid):
        raise unknown_array(array_id)
    counts = storage.store.count_elements([array_id], with_removed=False)
    return _view(storage.root, found[0], counts.get(array_id, {}))


def stop_array(storage: JobStorage, caller: Caller, array_id: str, requested_action: RequestedAction) -> ArrayView:
    """Halt or cancel every element, as :func:`request_stop` does for a job. Idempotent. Raises :class:`Refused`."""
    get_array(storage, caller, array_id)
    for _ in range(ATTEMPTS):
        changes = [
            (job, change)
            for job in storage.store.elements_of(array_id)
            if (change := _change(storage.clock, job, requested_action)) is not None
        ]
        if not changes:
            return get_array(storage, caller, array_id)
        for start in range(0, len(changes), AT_ONCE):
            storage.store.apply_many(changes[start : start + AT_ONCE])
    raise try_again("S210", f"{array_id} changes too fast to note the request for all of its jobs", cure="try again")


def _change(clock: Clock, job: Job, requested_action: RequestedAction) -> Change | None:
    """Return what the request changes of an element; None if it changes nothing."""
    if ends_here(job, requested_action):
        return end_here(job, requested_action, clock.now())
    if (
        job.state.is_terminal
        or job.requested_action is requested_action
        or job.requested_action is RequestedAction.CANCEL
    ):
        return None
    return Change(columns={"requested_action": requested_action})


def _view(root: Root, job: Job, states: dict[JobState, int]) -> ArrayView:
    element = job.spec.element
    assert element is not None  # it was found by its array
    return ArrayView(
        id=element.array,
        name=element.name,
        user=job.user,
        backend=job.backend,
        elements=sum(states.values()),
        states={state.value: states[state] for state in JobState if state in states},
        submitted_at=job.submitted_at,
        ended=all(state.is_terminal for state in states),
        limit=element.limit,
        variables=tuple(element.values),
        directory=root.array(element.array).path,
    )
