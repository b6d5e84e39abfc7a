"""Reading jobs: views of rows, with owner checks."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence

from ffdl_batch import __version__
from ffdl_batch.domain.faults import Fault
from ffdl_batch.domain.job import HistoryEntry, Job, parse_job_id
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.views import EventView, Health, JobView
from ffdl_batch.services.platform import Caller, Platform
from ffdl_batch.services.problems import not_allowed, unknown_job

MAX_LISTED = 10_000


def list_jobs(  # noqa: PLR0913 - the filters of one query
    platform: Platform,
    caller: Caller,
    *,
    states: Collection[JobState] | None = None,
    name: str | None = None,
    since: float | None = None,
    limit: int = 100,
    all_users: bool = False,
) -> list[JobView]:
    """Newest first, at most `limit`; two queries whatever the number."""
    if all_users and not caller.is_admin:
        raise not_allowed("only administrators may list other users' jobs")
    jobs = platform.store.list_jobs(
        uid=None if all_users else caller.uid,
        states=states or None,
        name=name,
        since=since,
        limit=max(1, min(limit, MAX_LISTED)),
    )
    histories = platform.store.histories([job.id for job in jobs])
    return [view_of(platform, job, histories.get(job.id, ())) for job in jobs]


def own_job(platform: Platform, caller: Caller, job_id: str) -> Job:
    """The job, if it is the caller's; another user's job is as unknown as none."""
    try:
        job = platform.store.get(parse_job_id(job_id))
    except ValueError:
        job = None
    if job is None or not (caller.is_admin or job.uid == caller.uid):
        raise unknown_job(job_id)
    return job


def get_job(platform: Platform, caller: Caller, job_id: str) -> JobView:
    """One job with all its detail."""
    job = own_job(platform, caller, job_id)
    return view_of(platform, job, platform.store.history(job.id))


def get_events(platform: Platform, caller: Caller, job_id: str, after: int) -> tuple[list[EventView], bool]:
    """Changes of state with a number above `after`, and whether the job has ended."""
    job = own_job(platform, caller, job_id)
    entries = platform.store.history(job.id, after)
    return [_event(entry) for entry in entries], job.state.is_terminal


def health(platform: Platform, started_at: float) -> Health:
    """The daemon itself."""
    return Health(
        version=__version__,
        host=socket.gethostname(),
        pid=os.getpid(),
        uid=platform.uid,
        started_at=started_at,
        database=platform.settings.database.partition(":")[0].partition("+")[0],
        live_jobs=platform.store.count_live(),
        backends=platform.adapters.health(),
    )


def view_of(platform: Platform, job: Job, history: Sequence[HistoryEntry]) -> JobView:
    """What the world sees of a job."""
    spec, resources = job.spec, job.spec.resources
    directory = platform.root.job(job.id)
    attempt = directory.attempt(max(1, job.attempt))
    fault = Fault(job.error_code, job.message)
    return JobView(
        id=job.id,
        name=spec.name,
        user=job.user,
        state=job.state,
        wish=job.wish,
        backend=job.backend,
        native_id=job.native_id,
        attempt=job.attempt,
        framework=spec.framework.name,
        framework_version=spec.framework.version,
        learners=resources.learners,
        cpus=resources.cpus,
        gpus=resources.gpus,
        gpu_type=resources.gpu_type,
        memory_bytes=resources.memory_bytes,
        submitted_at=job.submitted_at,
        updated_at=job.updated_at,
        ended_at=job.ended_at,
        error_code=job.error_code,
        message=job.message,
        cure=fault.kind.cure if job.error_code != "000" else "",
        exit_code=job.exit_code,
        exit_signal=job.exit_signal,
        pending_reason=job.pending_reason,
        nodes=job.nodes,
        network_requested=spec.batch.network,
        network=job.network,
        results=job.results,
        logs=attempt.logs if job.attempt else "",
        job_dir=directory.path,
        warnings=job.warnings,
        log_tail=job.log_tail,
        timestamps=_timestamps(job, history),
        sources=spec.sources,
        uncertain_since=job.uncertain_since,
    )


def _timestamps(job: Job, history: Sequence[HistoryEntry]) -> dict[str, float]:
    """First time of each state in the current attempt; PENDING is the submission's."""
    times: dict[str, float] = {}
    for entry in history:
        if entry.attempt in (job.attempt, 0):
            times.setdefault(entry.state, entry.at)
    return times


def _event(entry: HistoryEntry) -> EventView:
    return EventView(
        entry.job_id, entry.seq, entry.at, entry.state, entry.attempt, entry.cause, entry.message, entry.error_code
    )
