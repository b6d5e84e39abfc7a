"""Simulates an interruption on a real attempt, by the signals of a real one, to test how the training reacts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import DrillEvent
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.deployment.submission_results import why_not_now
from ffdl_batch.services.job_control.stop import halt_job
from ffdl_batch.services.job_files.control_cell import note_drill, read_drill, write_control
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.native_job_identity import may_ask_of
from ffdl_batch.services.queries.jobs import detailed, own_job
from ffdl_batch.services.refusals import Refused, bad_request, try_again, wrong_state, wrong_usage

_SIGNALS = {DrillEvent.TIMEOUT: "URG", DrillEvent.PREEMPT: "TERM", DrillEvent.NODE_FAIL: "KILL"}


def drill(storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str, event: str) -> JobView:
    """Simulate `event` on a job that is training. The attempt's record shows the result later.

    Raises :class:`Refused` for another state, for a job that is about to end anyway, also by another event that was
    simulated on it, and if the scheduler does not take the signal. Nothing was simulated then, unless the message
    says so.
    """
    simulated = _parse(event)
    job = own_job(storage.store, caller, job_id)
    if job.state is not JobState.PROCESSING or not job.native_id:
        cure = "wait until it is PROCESSING" if not job.state.is_terminal else "ffdl resume it first"
        raise wrong_state(f"{job.id} is {job.state}: an event can be simulated on a job in PROCESSING only", cure)
    if job.requested_action is not RequestedAction.NONE:
        if simulated is DrillEvent.HALT and _is_halted_by_a_drill(storage.root, job):
            return detailed(storage, adapters, job)  # the request was sent again because its answer was lost
        raise wrong_state(
            f"{job.id} is ending, because a {job.requested_action} was requested; no event can be simulated on it"
        )
    if simulated is DrillEvent.HALT:
        with _noted(storage.root, job, DrillEvent.HALT):
            return halt_job(storage, adapters, caller, job.id)
    _signal(storage.root, adapters, job, simulated)
    return detailed(storage, adapters, job)


def _parse(event: str) -> DrillEvent:
    try:
        return DrillEvent(event)
    except ValueError:
        known = ", ".join(DrillEvent)
        raise wrong_usage(f"{event[:40]!r} is not an event that can be simulated; known are {known}") from None


def _is_halted_by_a_drill(root: Root, job: Job) -> bool:
    attempt = root.job(job.id).attempt(job.attempt)
    return job.requested_action is RequestedAction.HALT and read_drill(attempt) == DrillEvent.HALT


@contextmanager
def _noted(root: Root, job: Job, event: DrillEvent) -> Iterator[None]:
    """Note the event before it is simulated. Without the note, an end by the event would count as a real interruption.

    The note is removed only if the exception of the block proves that the event was never sent to this run of the
    attempt: an earlier request may have sent it, and its answer may have been lost. Another event would replace the
    note of the one that ends the run, so it is refused.
    """
    try:
        before = note_drill(root, job, event)
    except OSError as error:
        message = f"the drill could not be noted with {job.id}, nothing was simulated: {error}"
        raise try_again("S101", message) from error
    if before not in ("", event):
        cure = "wait until the next attempt is PROCESSING"
        raise wrong_state(f"{before} was already simulated on attempt {job.attempt} of {job.id}, which it ends", cure)
    try:
        yield
    except (Refused, InvalidRequest):
        if not before:
            write_control(root, job, drill="")
        raise


def _signal(root: Root, adapters: Adapters, job: Job, event: DrillEvent) -> None:
    """Send the signal of the event, unless it was sent before and the attempt has ended since."""
    signal, may_be_sent = _SIGNALS[event], False
    try:
        with adapters.asking(job.backend) as scheduler:
            is_own = may_ask_of(root, scheduler, job)
            if is_own:
                with _noted(root, job, event):
                    may_be_sent = True
                    scheduler.signal(NativeId.parse(job.native_id), signal)
    except SchedulerUnreachable as error:
        why = why_not_now(error)
        message = f"{why}; the event may have been simulated" if may_be_sent else f"nothing was simulated: {why}"
        raise try_again("S200", message) from error
    except InvalidRequest as error:
        raise bad_request("S101", f"the scheduler refused the signal {signal}: {error}", error.findings) from error
    if not is_own and read_drill(root.job(job.id).attempt(job.attempt)) != event:
        raise wrong_state(f"the scheduler does not list {job.native_id} as {job.id}: nothing was simulated")
