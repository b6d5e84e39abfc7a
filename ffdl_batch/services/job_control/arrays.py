"""Arrays as a whole: what became of their elements, and requests for all of them."""

from __future__ import annotations

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import ArrayView
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.ports.clock import Clock
from ffdl_batch.services.job_control.stop import end_here, ends_here
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import try_again, unknown_array

ATTEMPTS = 5
"""How often rows that change under our hands are read again."""
AT_ONCE = 1000
"""Elements whose request is noted in one transaction."""


def get_array(storage: JobStorage, caller: Caller, array_id: str) -> ArrayView:
    """The array in numbers; two queries, however many elements it has. Raises :class:`Refused`."""
    found = storage.store.list_jobs(uid=None, array=array_id, limit=1) if is_array_id(array_id) else []
    if not found or not (caller.is_admin or found[0].uid == caller.uid):
        raise unknown_array(array_id)
    return _view(storage.root, found[0], storage.store.count_elements([array_id]).get(array_id, {}))


def stop_array(storage: JobStorage, caller: Caller, array_id: str, requested_action: RequestedAction) -> ArrayView:
    """Wish the halt or the end of every element, as of a single job; those that no scheduler has end at once.
    Idempotent. Raises :class:`Refused`."""
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
    """What the request changes of an element; None where it changes nothing."""
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
