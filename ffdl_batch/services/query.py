"""Reading jobs: views of rows, with owner checks."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Sequence

from ffdl_batch import __version__
from ffdl_batch.domain.faults import Fault
from ffdl_batch.domain.job import HistoryEntry, Job, JobId, Overrides, parse_job_id
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.domain.views import AttemptView, EventView, Health, JobView
from ffdl_batch.services.platform import Caller, Platform
from ffdl_batch.services.problems import ambiguous_job, not_allowed, unknown_job
from ffdl_batch.store import Attempt

MAX_LISTED = 10_000
_BEGINNING = re.compile(r"training-[0-9a-z]{3,8}", re.ASCII)
_CANDIDATES = 5


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
    """The job, if it is the caller's; another user's job is as unknown as none.

    `job_id` may be the beginning of an id, three characters or more behind the dash, that only one job of the caller's
    own has.
    """
    job = platform.store.get(_whole_id(platform, caller, job_id))
    if job is None or not (caller.is_admin or job.uid == caller.uid):
        raise unknown_job(job_id)
    return job


def _whole_id(platform: Platform, caller: Caller, text: str) -> JobId:
    try:
        return parse_job_id(text)
    except ValueError:
        if not _BEGINNING.fullmatch(text):
            raise unknown_job(text) from None
    found = platform.store.find_ids(text, caller.uid, _CANDIDATES + 1)
    if not found:
        raise unknown_job(text)
    if len(found) > 1:
        raise ambiguous_job(text, found[:_CANDIDATES], complete=len(found) <= _CANDIDATES)
    return found[0]


def get_job(platform: Platform, caller: Caller, job_id: str) -> JobView:
    """One job with all its detail."""
    return detailed(platform, own_job(platform, caller, job_id))


def detailed(platform: Platform, job: Job) -> JobView:
    """The job with its history and its chain of attempts."""
    return view_of(platform, job, platform.store.history(job.id), platform.store.attempts(job.id))


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


def view_of(platform: Platform, job: Job, history: Sequence[HistoryEntry], attempts: Sequence[Attempt] = ()) -> JobView:
    """What the world sees of a job. Resources are those of its current attempt, or of the next that it waits for."""
    spec = job.effective_spec
    resources = spec.resources
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
        attempts=tuple(map(_attempt, attempts)),
        overrides=_altered(job.overrides),
    )


def _altered(overrides: Overrides) -> dict[str, str]:
    """What is set, in words by manifest key."""
    altered: dict[str, str] = {}
    if overrides.gpus is not None:
        altered["gpus"] = f"{overrides.gpus:g}"
    if overrides.time_s is not None:
        altered["batch.time"] = format_time_limit(overrides.time_s)
    if overrides.exclude:
        altered["batch.exclude"] = ",".join(overrides.exclude)
    return altered


def _timestamps(job: Job, history: Sequence[HistoryEntry]) -> dict[str, float]:
    """First time of each state in the current attempt; PENDING is the submission's.

    A job that waits for its next attempt has reached nothing of it yet, and has not ended any more.
    """
    wanted = (0,) if job.state is JobState.PENDING else (job.attempt, 0)
    times: dict[str, float] = {}
    for entry in history:
        if entry.attempt in wanted:
            times.setdefault(entry.state, entry.at)
    return times


def _attempt(attempt: Attempt) -> AttemptView:
    checkpoint = attempt.checkpoint
    return AttemptView(
        number=attempt.number,
        native_id=attempt.native_id,
        backend=attempt.backend,
        created_at=attempt.created_at,
        submitted_at=attempt.submitted_at,
        ended_at=attempt.ended_at,
        error_code=attempt.outcome_code,
        interruption=attempt.interruption,
        nodes=attempt.nodes,
        network=attempt.network,
        checkpoint_asked=checkpoint.asked,
        checkpoint_confirmed=checkpoint.confirmed,
        checkpoint_answered=checkpoint.answered,
        checkpoint_took_s=checkpoint.took_s,
        checkpoint_saved_at=checkpoint.saved_at,
        gpu_seconds=attempt.gpu_seconds,
        owed=attempt.owed,
    )


def _event(entry: HistoryEntry) -> EventView:
    return EventView(
        entry.job_id, entry.seq, entry.at, entry.state, entry.attempt, entry.cause, entry.message, entry.error_code
    )
