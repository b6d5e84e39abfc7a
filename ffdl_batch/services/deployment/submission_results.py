"""Decides how a job changes when the scheduler has its attempt, has refused it, or may still get it.

If the scheduler has several native jobs for one attempt, the job adopts one of them and the others are cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import AttemptEnd, Change, Job, Token
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.outcome.attempt_reports import CANCELLED_BY_OWNER
from ffdl_batch.domain.outcome.continuation import Interruption, halted_before, what_begins
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.domain.scheduler_errors import (
    InvalidRequest,
    NoResources,
    NotNow,
    NotTaken,
    NotUnderstood,
    RefusedBySite,
    SchedulerMissing,
    SchedulerUnreachable,
)
from ffdl_batch.ports.capabilities import SubmitsArrays
from ffdl_batch.ports.clock import Clock
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters, NotAsked
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.backends.submit_limits import REFUSALS, REFUSED_S, Refusal
from ffdl_batch.services.deployment.attempt_planning import plan_attempt
from ffdl_batch.services.deployment.result_writer import Decided
from ffdl_batch.services.incidents.incident_recorder import refusal
from ffdl_batch.services.job_files.control_cell import fence_earlier
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.attempt_records import claim_owner, read_launch
from ffdl_batch.services.outcome.native_job_identity import own_among

log = logging.getLogger(__name__)


def queued(storage: JobStorage, job: Job, native: NativeId, plan: LaunchPlan | None, at: float) -> Change:
    """Return the change of a job that the scheduler has since `at`. Without a plan, the attempt's launch file is read,
    which must exist then."""
    attempt = storage.root.job(job.id).attempt(job.attempt)
    launch, network = (plan.launch, plan.network) if plan is not None else (read_launch(attempt), None)
    assert launch is not None
    columns: dict[str, object] = {
        "native_id": str(native),
        "uncertain_since": None,
        "pending_reason": "",
        "network": (network or launch.network).level,
        "results": launch.stores.results or attempt.results,
    }
    if plan is not None and (fresh := [one for one in plan.kept_off if one not in job.warnings]):
        columns["warnings"] = (*job.warnings, *fresh)
    gpus = launch.succession.gpus if launch.succession is not None else None
    return Change(steps=((JobState.QUEUED, min(at, storage.clock.now())),), columns=columns, attempt_gpus=gpus)


def turned_away(adapters: Adapters, jobs: Sequence[Job], error: NotTaken) -> str:
    """Note that the scheduler refused `jobs`, which are one submission. Return why they wait; "" if the refusal has
    repeated so often that the jobs end."""
    limits, job = adapters.submit_limits, jobs[0]
    before = limits.why_full(job)
    if limits.turned_away(job, error) is Refusal.IS_OVER:
        return ""
    why = limits.why_full(job)
    if before != why:
        log.warning("%d jobs wait, %s among them: %s", len(jobs), job.id, why)
    return why


def waits(clock: Clock, why: str) -> Change:
    """Return the change for an attempt that the scheduler did not accept. The job waits again and shows `why`."""
    steps = ((JobState.PENDING, clock.now()),)
    return Change(steps, Cause.REQUEUED, why, columns={"pending_reason": why}, unsent=True)


def has_none(adapters: Adapters, backend: str, attempts: Mapping[Token, AttemptDir]) -> bool:
    """Ask the scheduler after its refusal. Return whether it certainly has no job of these attempts."""
    try:
        with adapters.asking(backend) as adapter:
            if isinstance(adapter, SubmitsArrays):
                return not any(adapter.find_many(attempts).values())
            return not any(adapter.find(token, attempt) for token, attempt in attempts.items())
    except SchedulerUnreachable as error:
        log.info("%d refused attempts are searched again: %s", len(attempts), error)
        return False


def sought(clock: Clock, job: Job) -> Change:
    """Return the change of a job whose id the scheduler returned but does not know. It is as uncertain whether it has
    the attempt as if it had not answered, so the deployer searches it by its token."""
    why = f"the scheduler does not know {job.native_id}, the id that it returned for the job"
    steps = ((JobState.DEPLOYING, clock.now()),)
    return Change(steps, Cause.REQUEUED, why, columns={"native_id": "", "pending_reason": why})


def may_land_s(clock: Clock, adapters: Adapters, job: Job, passed_s: float, at_least_s: float = 0.0) -> float:
    """Return for how many more seconds a request for the attempt may still be accepted. 0 or less: it cannot.

    `passed_s` is how long ago the scheduler was asked, by the clock of the file system with the mark. The time of a
    lost answer is by the clock of the database.
    """
    life_s = _life_s(adapters, job, at_least_s)
    ages = [passed_s] if job.uncertain_since is None else [passed_s, clock.now() - job.uncertain_since]
    # A negative age means that the clock was set back, and is ignored. If all are negative, the life starts again.
    return life_s - min((seconds for seconds in ages if seconds >= 0), default=0.0)


def _life_s(adapters: Adapters, job: Job, at_least_s: float) -> float:
    return max(adapters.get(job.backend).traits.credential_life_s, at_least_s)


def ended(clock: Clock, job: Job, state: JobState, code: str, message: str) -> Change:
    """Return the change of a job that ends without being submitted."""
    end = AttemptEnd(Interruption.HALT.value if state is JobState.HALTED else "")
    at = clock.now()
    incidents = (refusal(job, code, message, at),) if state is JobState.FAILED else ()
    return Change(((state, at),), message=message, error_code=code, attempt_end=end, incidents=incidents)


def refused(clock: Clock, job: Job, error: InvalidRequest) -> Change:
    """Return the change of a job that ends because the scheduler refused it."""
    code = "S100" if isinstance(error, NoResources) else "S101"
    return ended(clock, job, JobState.FAILED, code, str(error))


def refused_repeatedly(error: NotTaken) -> RefusedBySite:
    """Return the error that ends a job whose refusal has repeated unchanged."""
    message = error.words if isinstance(error, NotUnderstood) else str(error)
    return RefusedBySite(
        f"the scheduler has refused the job at least {REFUSALS} times in {REFUSED_S / 60:g} min: {message}; correct "
        "the request and submit again"
    )


def ended_as_requested(clock: Clock, job: Job) -> Change:
    """Return the change of a job that ends as its owner requests. The scheduler never got the attempt."""
    number = job.attempt + 1 if job.state is JobState.PENDING else job.attempt
    if job.requested_action is RequestedAction.CANCEL:
        message = f"{CANCELLED_BY_OWNER} before {what_begins(number)} was deployed"
        return ended(clock, job, JobState.CANCELLED, "000", message)
    return ended(clock, job, JobState.HALTED, "000", halted_before(number))


def why_looked_for(adapters: Adapters, job: Job, at_least_s: float = 0.0) -> str:
    """Return why a job waits whose submission may still arrive at the scheduler."""
    then = "submitted again" if job.requested_action is RequestedAction.NONE else "ended"
    late_s = _life_s(adapters, job, at_least_s)
    return f"its submission was not answered and may still arrive; if not within {late_s:.0f} s, it is {then}"


def why_not_now(error: SchedulerUnreachable) -> str:
    """Return why a job waits if the scheduler could not be asked. The cause of an outage is reported elsewhere."""
    if isinstance(error, NotAsked) and not isinstance(error, SchedulerMissing):
        return "the scheduler does not answer"
    is_explained = isinstance(error, (NotNow, SchedulerMissing))  # its message names the cause
    return str(error) if is_explained else f"the scheduler does not answer: {error}"


def adopt(
    storage: JobStorage,
    adapters: Adapters,
    node_exclusion: NodeExclusion,
    job: Job,
    found: frozenset[NativeId],
    asked_at: float,
) -> Change:
    """Adopt the native job of `found` that claimed the attempt, or else the oldest. Cancel the others if the scheduler
    lists them as the attempt. The job is QUEUED since the scheduler was asked at `asked_at`."""
    attempt = storage.root.job(job.id).attempt(job.attempt)
    owner = claim_owner(attempt)
    ordered = sorted(found, key=age)
    keep = next((native for native in ordered if str(native) == owner), ordered[0])
    if len(ordered) > 1:
        with adapters.asking(job.backend) as adapter:
            own = own_among(storage.root, adapter, job, ordered)
            if not owner:
                keep = min(own, key=age, default=keep)
            for native in sorted(own - {keep}, key=age):
                log.warning("job %s: cancelling the duplicate %s of %s", job.id, native, keep)
                if owner:
                    adapter.cancel(native)
                else:  # one that starts now may claim the attempt first, and is adopted then
                    adapter.withdraw(native)
    fence_earlier(storage.root, job)
    plan = None if read_launch(attempt) is not None else plan_attempt(storage, adapters, node_exclusion, job)
    return queued(storage, job, keep, plan, asked_at)


def take_back(storage: JobStorage, adapters: Adapters, dropped: Sequence[Decided]) -> None:
    """Withdraw submissions that another daemon has replaced while this one was stopped. Those that stay are harmless,
    because they cannot claim the attempt. One that may be the job, or has started, is left alone."""
    submitted = {job.id: (job, change.columns["native_id"]) for job, change in dropped if "native_id" in change.columns}
    for current in storage.store.get_many(submitted):
        job, native = submitted[current.id]
        may_become_it = current.attempt == job.attempt and not current.native_id and not current.state.is_terminal
        if current.native_id == native or may_become_it:
            continue
        try:
            with adapters.asking(job.backend) as adapter:
                late = NativeId.parse(str(native))
                if late in own_among(storage.root, adapter, job, [late]):
                    log.warning("job %s: %s came too late for attempt %d and is withdrawn", job.id, native, job.attempt)
                    adapter.withdraw(late)
        except (InvalidRequest, SchedulerUnreachable) as error:
            log.warning("job %s: %s could not be withdrawn: %s", job.id, native, error)


def retire_earlier(storage: JobStorage, adapters: Adapters, job: Job) -> None:
    """Make sure that no earlier attempt runs beside this one: fence its controllers, and cancel its native job if the
    scheduler still has it (held after too many requeues, or requeued late)."""
    fence_earlier(storage.root, job)
    earlier = [a for a in storage.store.attempts(job.id) if a.number == job.attempt - 1 and a.native_id]
    for attempt in earlier:
        native = NativeId.parse(attempt.native_id)
        with adapters.asking(job.backend) as adapter:
            shown = adapter.observe([native]).get(native)
            is_it = shown is not None and shown.name in ("", attempt.token)
            if shown is not None and is_it and shown.phase not in (Phase.ENDED, Phase.UNKNOWN):
                log.info("job %s: cancelling %s, its attempt %d is over", job.id, native, attempt.number)
                adapter.cancel(native)


def age(native: NativeId) -> tuple[int, str]:
    """Return a key that sorts the ids of one scheduler, oldest first."""
    return (int(native.job) if native.job.isdigit() else 0, str(native))
