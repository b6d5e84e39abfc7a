"""Routes for jobs, arrays and the daemon itself. A waiting request uses no thread, except while it reads the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, TypeVar

from anyio import CapacityLimiter
from fastapi import Query
from starlette.requests import Request

from ffdl_batch.daemon.error_replies import blame_options
from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import (
    ArrayReply,
    CountsReply,
    DrillRequest,
    EventsReply,
    JobReply,
    JobsReply,
    PlainReply,
    SubmitReply,
    SubmitRequest,
)
from ffdl_batch.daemon.request_context import (
    Asking,
    CaughtUp,
    Context,
    Gate,
    Here,
    check_files,
    if_soon,
    in_thread,
    until_gone,
    with_files,
    with_files_through,
)
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.parameters import Count, Time, Word, answers
from ffdl_batch.domain.daemon_health import Health
from ffdl_batch.domain.job.submission import Caller, Submission, SubmissionResult
from ffdl_batch.domain.job.views import ArrayView, JobCounts, JobView, Resume
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.services.authorisation import without_content
from ffdl_batch.services.job_control.drill import drill as simulate
from ffdl_batch.services.job_control.removal import remove_job
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import cancel_job, get_array, halt_job, stop_array
from ffdl_batch.services.queries.disk_use import with_disk_use
from ffdl_batch.services.queries.jobs import count_jobs, get_events, get_job, health, list_jobs
from ffdl_batch.services.queries.learners import MOVES, learners_of, with_progress
from ffdl_batch.services.submission.submit import submit

log = logging.getLogger(__name__)
T = TypeVar("T")

LONGEST_WAIT_S = 30.0
SHARED_LOOK_S = 1.0
"""Interval at which waiting requests read the store: changes by another daemon do not bump `changes`."""
_SETTLE_S = 0.02
"""Pause between a wake-up and reading, so that a burst of changes is read once."""

router = Routes(prefix=PREFIX)
WaitSeconds = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="Maximum wait for a change, in seconds.")]


@router.get("/health", response_model=Health, responses=answers(), operation_id="health")
async def read_health(here: Here) -> PlainReply:
    """Return the daemon's version, process, number of live jobs, and whether each backend answers."""
    platform = here.platform
    return PlainReply(
        await in_thread(
            here.limits.quick, health, platform.storage, platform.adapters, here.started_at, here.settings_problem()
        )
    )


@router.post("/jobs", response_model=SubmitReply, responses=answers(413, 422), operation_id="submit")
async def submit_jobs(body: SubmitRequest, here: Here, caller: Asking) -> PlainReply:
    """Submit jobs. Jobs with an id in the reply are durable. A `key` that was accepted before returns the same id."""
    results = await submit_all(here, caller, body.submissions)
    return PlainReply(SubmitReply(results, here.platform.adapters.outages()))


async def submit_all(here: Context, caller: Caller, submissions: Sequence[Submission]) -> tuple[SubmissionResult, ...]:
    """Submit jobs, and wake the loops. Return a result for each. Raises Refused, OSError."""
    gate, limiter = Gate(), _limit(here, submissions)
    results = await with_files_through(
        gate,
        here,
        limiter,
        submit,
        here.platform.storage,
        here.platform.adapters,
        here.platform.store_checks,
        caller,
        submissions,
        gate.go_through,
    )
    accepted = [result.id for result in results if result.id]
    log.info("%s: %d accepted %s, %d refused", caller, len(accepted), accepted[:3], len(results) - len(accepted))
    if accepted:
        here.changes.bump()
        here.poke()
    return tuple(replace(result, problem=result.problem and blame_options(result.problem)) for result in results)


def _limit(here: Context, submissions: Sequence[Submission]) -> CapacityLimiter:
    """Return the limiter for submissions. If a backend has not described itself yet, they may take long, and must not
    block other requests."""
    adapters = here.platform.adapters
    known = all(adapters.knows_site(one.backend or adapters.default_name()) for one in submissions)
    return here.limits.quick if known else here.limits.slow


@router.get("/jobs", response_model=JobsReply, responses=answers(), operation_id="list")
async def read_jobs(  # noqa: PLR0913, PLR0917 - one parameter per field of the query string
    here: CaughtUp,
    caller: Asking,
    state: Annotated[list[JobState] | None, Query(description="Only jobs in one of these states.")] = None,
    name: Annotated[Word | None, Query(description="Only jobs of this name.")] = None,
    since: Annotated[Time | None, Query(description="Only jobs submitted at or after this time.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    all_users: bool = False,
    array: Annotated[Word | None, Query(description="Only elements of this array, by their index.")] = None,
    ended_before: Annotated[Time | None, Query(description="Only jobs that ended before this time.")] = None,
    disk: Annotated[bool, Query(description="Measure the disk space of each job's directory.")] = False,
    after: Annotated[Word | None, Query(description="Only jobs that follow the job with this id.")] = None,
    text: Annotated[Word | None, Query(description="Only jobs with this in their name, or whose id begins so.")] = None,
    collapsed: Annotated[bool, Query(description="Of each array only the first job, with `array_states`.")] = False,
) -> PlainReply:
    """List jobs, newest first."""
    found = await in_thread(
        here.limits.quick, list_jobs, here.platform.storage, caller,
        states=state, name=name, since=since, limit=limit, all_users=all_users, array=array, ended_before=ended_before,
        after=after, text=text, is_collapsed=collapsed,
    )  # fmt: skip
    shown = without_content(caller, found)
    if disk:
        shown = await with_files(here, here.limits.slow, with_disk_use, here.platform.storage.root, shown)
    return PlainReply(JobsReply(shown, here.platform.adapters.outages(), here.platform.storage.store.outage))


@router.get("/states", response_model=CountsReply, responses=answers(), operation_id="states")
async def read_states(
    here: CaughtUp,
    request: Request,
    version: Annotated[Count | None, Query(description="The version of an earlier reply.")] = None,
    wait_s: WaitSeconds = 0.0,
) -> PlainReply:
    """Count the jobs in each state. With `version` and `wait_s`, wait until a job changes."""
    first: JobCounts | None = None

    async def look() -> JobCounts:
        nonlocal first
        seen = here.changes.version
        counts = await in_thread(here.limits.quick, count_jobs, here.platform.storage, seen)
        first = first or counts
        return counts

    counts = await until_changed(
        here, request, look, lambda counts: counts.version != version or counts != first, wait_s
    )
    return PlainReply(CountsReply(counts, here.platform.adapters.outages(), here.platform.storage.store.outage))


@router.get("/jobs/{job_id}", response_model=JobReply, responses=answers(404), operation_id="get")
async def read_job(job_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Return one job, with the progress of its transfers. If it has several learners, the reply has the state of each,
    if the files can be read."""
    job = await in_thread(here.limits.quick, get_job, here.platform.storage, here.platform.adapters, caller, job_id)
    if job.learners > 1:
        found = await if_soon(with_files(here, here.limits.quick, learners_of, here.platform.storage.root, job))
        job = replace(job, learner_list=found or ())
    return PlainReply(_one(here, caller, await as_it_moves(here, job)))


async def as_it_moves(here: Context, job: JobView) -> JobView:
    """Return `job` with the progress of its transfers and its expected end, if they can be read soon."""
    if job.state not in MOVES:
        return job
    return await if_soon(with_files(here, here.limits.quick, with_progress, here.platform.storage.root, job)) or job


@router.delete("/jobs/{job_id}", response_model=JobReply, responses=answers(404, 409), operation_id="remove")
async def remove(
    job_id: str,
    here: CaughtUp,
    caller: Asking,
    dry_run: Annotated[bool, Query(description="Remove nothing; answer as if.")] = False,
) -> PlainReply:
    """Remove a job that has ended, with its directory. Idempotent. The reply has the disk space that it used."""
    await check_files(here)
    job = await in_thread(
        here.limits.slow, remove_job, here.platform.storage, here.platform.adapters, caller, job_id, is_trial=dry_run
    )
    return PlainReply(_one(here, caller, job)) if dry_run else _changed(here, caller, "remove", job)


@router.get("/jobs/{job_id}/events", response_model=EventsReply, responses=answers(404), operation_id="events")
async def read_events(
    job_id: str,
    here: CaughtUp,
    caller: Asking,
    request: Request,
    after: Annotated[Count, Query(description="Only events with a number above this one.")] = 0,
    wait_s: WaitSeconds = 0.0,
) -> PlainReply:
    """Return the changes of state after `after`. With `wait_s`, wait until there is one or the job has ended."""

    async def look() -> EventsReply:
        events, terminal = await in_thread(
            here.limits.quick, get_events, here.platform.storage.store, caller, job_id, after
        )
        return EventsReply(tuple(events), terminal)

    return PlainReply(
        await until_changed(here, request, look, lambda reply: bool(reply.events) or reply.terminal, wait_s)
    )


@router.get("/jobs/{job_id}/wait", response_model=JobReply, responses=answers(404), operation_id="wait")
async def wait_for_job(
    job_id: str, here: CaughtUp, caller: Asking, request: Request, wait_s: WaitSeconds = LONGEST_WAIT_S
) -> PlainReply:
    """Return the job when it has ended, after `wait_s`, or when the daemon stops."""

    async def look() -> JobReply:
        return _one(
            here,
            caller,
            await in_thread(here.limits.quick, get_job, here.platform.storage, here.platform.adapters, caller, job_id),
        )

    return PlainReply(await until_changed(here, request, look, lambda reply: _has_ended(reply.job), wait_s))


@router.post("/jobs/{job_id}/cancel", response_model=JobReply, responses=answers(404), operation_id="cancel")
async def cancel(job_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Cancel a job; a halted one is CANCELLED at once. Idempotent; other ended jobs do not change."""
    job = await in_thread(here.limits.quick, cancel_job, here.platform.storage, here.platform.adapters, caller, job_id)
    return _changed(here, caller, "cancel", job)


@router.post("/jobs/{job_id}/halt", response_model=JobReply, responses=answers(404), operation_id="halt")
async def halt(job_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Halt a job after a checkpoint. Idempotent; an ended job does not change."""
    job = await in_thread(here.limits.quick, halt_job, here.platform.storage, here.platform.adapters, caller, job_id)
    return _changed(here, caller, "halt", job)


@router.post("/jobs/{job_id}/resume", response_model=JobReply, responses=answers(404, 409, 422), operation_id="resume")
async def resume(job_id: str, body: Resume, here: CaughtUp, caller: Asking) -> PlainReply:
    """Continue a HALTED or FAILED job with its next attempt, from its checkpoints."""
    await check_files(here)
    job = await in_thread(
        here.limits.slow,
        resume_job,
        here.platform.storage,
        here.platform.adapters,
        here.platform.store_checks,
        caller,
        job_id,
        body,
    )
    return _changed(here, caller, "resume", job)


@router.post("/jobs/{job_id}/drill", response_model=JobReply, responses=answers(404, 409, 422), operation_id="drill")
async def drill(job_id: str, body: DrillRequest, here: CaughtUp, caller: Asking) -> PlainReply:
    """Simulate an event on the running attempt. Controllers, scheduler and daemon handle it like a real one."""
    await check_files(here)
    job = await in_thread(
        here.limits.slow, simulate, here.platform.storage, here.platform.adapters, caller, job_id, body.event
    )
    return _changed(here, caller, f"drill {body.event}", job)


def _has_ended(job: JobView) -> bool:
    return not job.continued_by and JobState(job.state).is_terminal


def _changed(here: Context, caller: Caller, verb: str, job: JobView) -> PlainReply:
    """Reply to a request, and wake the loops and the requests that wait for a change."""
    log.info("%s: %s of %s in state %s", caller, verb, job.id, job.state)
    here.changes.bump()
    here.poke()
    return PlainReply(_one(here, caller, job))


def _one(here: Context, caller: Caller, job: JobView) -> JobReply:
    (shown,) = without_content(caller, [job])
    return JobReply(shown, here.platform.adapters.outages(), here.platform.storage.store.outage)


@router.get("/arrays/{array_id}", response_model=ArrayReply, responses=answers(404), operation_id="array")
async def read_array(array_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Return how many elements of an array are in each state. `/jobs?array=` lists them."""
    return PlainReply(
        _array_reply(here, await in_thread(here.limits.quick, get_array, here.platform.storage, caller, array_id))
    )


@router.get("/arrays/{array_id}/wait", response_model=ArrayReply, responses=answers(404), operation_id="wait_array")
async def wait_for_array(
    array_id: str,
    here: CaughtUp,
    caller: Asking,
    request: Request,
    wait_s: WaitSeconds = LONGEST_WAIT_S,
) -> PlainReply:
    """Return the array when all of its elements have ended, after `wait_s`, or when the daemon stops."""

    async def look() -> ArrayReply:
        return _array_reply(
            here, await in_thread(here.limits.quick, get_array, here.platform.storage, caller, array_id)
        )

    return PlainReply(await until_changed(here, request, look, lambda reply: reply.array.ended, wait_s))


@router.post(
    "/arrays/{array_id}/cancel", response_model=ArrayReply, responses=answers(404), operation_id="cancel_array"
)
async def cancel_array(array_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Cancel every element. Idempotent; of the ended elements only halted ones change."""
    array = await in_thread(
        here.limits.slow, stop_array, here.platform.storage, caller, array_id, RequestedAction.CANCEL
    )
    return _array_changed(here, caller, "cancel", array)


@router.post("/arrays/{array_id}/halt", response_model=ArrayReply, responses=answers(404), operation_id="halt_array")
async def halt_array(array_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Halt every element after a checkpoint. Idempotent; ended elements do not change."""
    array = await in_thread(here.limits.slow, stop_array, here.platform.storage, caller, array_id, RequestedAction.HALT)
    return _array_changed(here, caller, "halt", array)


def _array_changed(here: Context, caller: Caller, verb: str, array: ArrayView) -> PlainReply:
    log.info("%s: %s of %s, %s", caller, verb, array.id, dict(array.states))
    here.changes.bump()
    here.poke()
    return PlainReply(_array_reply(here, array))


def _array_reply(here: Context, array: ArrayView) -> ArrayReply:
    return ArrayReply(array, here.platform.adapters.outages(), here.platform.storage.store.outage)


async def until_changed(
    here: Context, request: Request, look: Callable[[], Awaitable[T]], is_changed: Callable[[T], bool], wait_s: float
) -> T:
    """Return the result of `look` when it has changed, or its last result when `wait_s` seconds pass, the client
    disconnects or the daemon stops."""
    deadline = time.monotonic() + wait_s
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        while True:
            version = here.changes.version
            seen = await look()
            left = deadline - time.monotonic()
            if is_changed(seen) or left <= 0 or here.changes.closed or gone.done():
                return seen
            pause_s = min(left, SHARED_LOOK_S) if here.platform.storage.store.is_shared else left
            news = asyncio.ensure_future(here.changes.wait(version, pause_s))
            await asyncio.wait({news, gone}, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            await asyncio.sleep(_SETTLE_S)
    finally:
        gone.cancel()
