"""What is written of a job whose deployment is over: the scheduler has it, or will never hear of it; and how long it
may take until that is known."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import AttemptEnd, Change, Job, Token
from ffdl_batch.domain.job_state import Cause, JobState, Wish
from ffdl_batch.domain.outcome.continuation import Interruption, halted_before, what_begins
from ffdl_batch.domain.outcome.ending import CANCELLED_BY_OWNER
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.ports.capabilities import CredentialLife, SubmitsArrays
from ffdl_batch.ports.scheduler import (
    InvalidRequest,
    LaunchPlan,
    NoResources,
    NotNow,
    NotTaken,
    NotUnderstood,
    RefusedBySite,
    SchedulerMissing,
    SchedulerUnreachable,
)
from ffdl_batch.services.backends.adapters import NotAsked
from ffdl_batch.services.backends.submit_limits import REFUSALS, REFUSED_S, Refusal
from ffdl_batch.services.deployment.attempt_planning import plan_attempt
from ffdl_batch.services.incidents.incident_recorder import refusal
from ffdl_batch.services.outcome.attempt_records import read_launch
from ffdl_batch.services.platform import Platform

log = logging.getLogger(__name__)


def queued(platform: Platform, job: Job, native: NativeId, plan: LaunchPlan | None, at: float) -> Change:
    """The scheduler has it since `at`. Without a plan the attempt's own files say what was sent."""
    attempt = platform.root.job(job.id).attempt(job.attempt)
    launch, network = (plan.launch, plan.network) if plan is not None else (read_launch(attempt), None)
    if launch is None:
        plan = plan_attempt(platform, job)
        launch, network = plan.launch, plan.network
    columns: dict[str, object] = {
        "native_id": str(native),
        "uncertain_since": None,
        "pending_reason": "",
        "network": (network or launch.network).level,
        "results": launch.stores.results or attempt.results,
    }
    if plan is not None and (fresh := [one for one in plan.kept_off if one not in job.warnings]):
        columns["warnings"] = (*job.warnings, *fresh)
    return Change(steps=((JobState.QUEUED, min(at, platform.clock.now())),), columns=columns)


def turned_away(platform: Platform, jobs: Sequence[Job], error: NotTaken) -> str:
    """Note that the scheduler refused `jobs`, which are one submission. Return why they wait; "" if the refusal has
    repeated so often that the jobs end."""
    rooms, job = platform.adapters.rooms, jobs[0]
    is_news = rooms.why_full(job)
    if rooms.turned_away(job, error) is Refusal.IS_OVER:
        return ""
    why = rooms.why_full(job)
    if is_news != why:
        log.warning("%d jobs wait, %s among them: %s", len(jobs), job.id, why)
    return why


def waits(platform: Platform, why: str) -> Change:
    """Return the change for an attempt that the scheduler did not accept. The job waits again and shows `why`."""
    steps = ((JobState.PENDING, platform.clock.now()),)
    return Change(steps, Cause.REQUEUED, why, columns={"pending_reason": why}, unsent=True)


def has_none(platform: Platform, backend: str, attempts: Mapping[Token, AttemptDir]) -> bool:
    """Ask the scheduler after its refusal. Return whether it certainly has no job of these attempts."""
    try:
        with platform.adapters.asking(backend) as adapter:
            if isinstance(adapter, SubmitsArrays):
                return not any(adapter.find_many(attempts).values())
            return not any(adapter.find(token, attempt) for token, attempt in attempts.items())
    except SchedulerUnreachable as error:
        log.info("%d refused attempts are looked for again: %s", len(attempts), error)
        return False


def sought(platform: Platform, job: Job) -> Change:
    """The scheduler said that it has taken the attempt, and has no job of the id that it named: whether it has taken it
    is as unknown as where it has not answered. Whoever deploys the job looks for it by its token."""
    why = f"the scheduler does not know {job.native_id}, which it said the job was"
    steps = ((JobState.DEPLOYING, platform.clock.now()),)
    return Change(steps, Cause.REQUEUED, why, columns={"native_id": "", "pending_reason": why})


def may_land_s(platform: Platform, job: Job, passed_s: float, at_least_s: float = 0.0) -> float:
    """For how many seconds more a request that was sent for the attempt may still be accepted; 0 or less = it cannot.

    `passed_s` is how long ago the scheduler was asked, by the clock of the file system that told it; when the answer
    was lost is told by the database's.
    """
    life_s = _life_s(platform, job, at_least_s)
    told = [passed_s] if job.uncertain_since is None else [passed_s, platform.clock.now() - job.uncertain_since]
    # A clock that was set back since then tells nothing; where all were, the life begins anew.
    return life_s - min((seconds for seconds in told if seconds >= 0), default=0.0)


def _life_s(platform: Platform, job: Job, at_least_s: float) -> float:
    adapter = platform.adapters.get(job.backend)
    return max(adapter.credential_life_s if isinstance(adapter, CredentialLife) else 0.0, at_least_s)


def ended(platform: Platform, job: Job, state: JobState, code: str, message: str) -> Change:
    """It ends here."""
    end = AttemptEnd(Interruption.HALT.value if state is JobState.HALTED else "")
    at = platform.clock.now()
    incidents = (refusal(job, code, message, at),) if state is JobState.FAILED else ()
    return Change(((state, at),), message=message, error_code=code, attempt_end=end, incidents=incidents)


def refused(platform: Platform, job: Job, error: InvalidRequest) -> Change:
    """It ends here, because the scheduler will not have it."""
    code = "S100" if isinstance(error, NoResources) else "S101"
    return ended(platform, job, JobState.FAILED, code, str(error))


def refused_repeatedly(error: NotTaken) -> RefusedBySite:
    """Return the error that ends a job whose refusal has repeated unchanged."""
    words = error.words if isinstance(error, NotUnderstood) else str(error)
    return RefusedBySite(
        f"the scheduler has refused the job at least {REFUSALS} times in {REFUSED_S / 60:g} min: {words}; correct the "
        "request and submit again"
    )


def ended_as_wished(platform: Platform, job: Job) -> Change:
    """It ends as its owner wishes; the scheduler never heard of the attempt, so nothing has to be asked for."""
    number = job.attempt + 1 if job.state is JobState.PENDING else job.attempt
    if job.wish is Wish.CANCEL:
        message = f"{CANCELLED_BY_OWNER} before {what_begins(number)} was deployed"
        return ended(platform, job, JobState.CANCELLED, "000", message)
    return ended(platform, job, JobState.HALTED, "000", halted_before(number))


def why_looked_for(platform: Platform, job: Job, at_least_s: float = 0.0) -> str:
    """Why a job waits whose request may have reached the scheduler, which does not have it (yet)."""
    then = "submitted again" if job.wish is Wish.NONE else "ended"
    late_s = _life_s(platform, job, at_least_s)
    return f"its submission was not answered and may still arrive; if not within {late_s:.0f} s, it is {then}"


def why_not_now(error: SchedulerUnreachable) -> str:
    """Why a job waits that the scheduler could not be asked about. A scheduler that is left alone is told of elsewhere,
    and by what it said."""
    if isinstance(error, NotAsked) and not isinstance(error, SchedulerMissing):
        return "the scheduler does not answer"
    is_told = isinstance(error, (NotNow, SchedulerMissing))  # it says itself what lacks
    return str(error) if is_told else f"the scheduler does not answer: {error}"
