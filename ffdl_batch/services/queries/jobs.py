"""Reads jobs as views of their rows, after checking who owns them."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ffdl_batch import __version__
from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.daemon_health import DatabaseOutage, Health
from ffdl_batch.domain.data.store_kinds import KINDS
from ffdl_batch.domain.data.store_urls import format_store_url
from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.data_stores import place_of_results
from ffdl_batch.domain.job.elastic import halted_for_size
from ffdl_batch.domain.job.job import HistoryEntry, Job, JobId, Overrides, parse_job_id
from ffdl_batch.domain.job.learner_layout import count_gpus
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import AttemptView, EventView, JobCounts, JobView, ResizeView, RestartView
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.launch.network_level import split_network
from ffdl_batch.domain.metrics.usage_timeline import RUNNING
from ffdl_batch.domain.outcome.continuation import used_up
from ffdl_batch.domain.outcome.error_codes import UNSTORED, Fault
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S
from ffdl_batch.services.outcome.retry_budget import budget_of
from ffdl_batch.services.queries.pod_output import without_places
from ffdl_batch.services.refusals import (
    Refused,
    ambiguous_job,
    ambiguous_native_id,
    native_array,
    not_allowed,
    removed_job,
    unknown_array,
    unknown_job,
    whole_array,
    wrong_usage,
)
from ffdl_batch.services.reports.incident_report import incidents_of
from ffdl_batch.store import Attempt, Store, StoreError

MAX_LISTED = 10_000
_BEGINNING = re.compile(r"training-[0-9a-z]{3,8}", re.ASCII)
_ELEMENT = re.compile(r"(array-[0-9a-z]{9})_(\d{1,7})", re.ASCII)
_NATIVE = re.compile(r"\d{1,18}(?:_\d{1,7})?", re.ASCII)
_CANDIDATES = 5
_RAN = frozenset({JobState.PROCESSING, JobState.STORING, JobState.COMPLETED})


def list_jobs(  # noqa: PLR0913 - the filters of one query
    storage: JobStorage,
    caller: Caller,
    *,
    states: Collection[JobState] | None = None,
    name: str | None = None,
    since: float | None = None,
    limit: int = 100,
    all_users: bool = False,
    array: str | None = None,
    ended_before: float | None = None,
    after: str | None = None,
    text: str | None = None,
    is_collapsed: bool = False,
) -> list[JobView]:
    """Return at most `limit` jobs, newest first; those of one array by their index. Takes two queries, and a third one
    if it `is_collapsed`. See :meth:`ffdl_batch.store.Store.list_jobs`."""
    if all_users and not caller.is_admin:
        raise not_allowed("only administrators may list other users' jobs")
    jobs = storage.store.list_jobs(
        uid=None if all_users else caller.default_owner,
        states=states or None,
        name=name,
        since=since,
        limit=max(1, min(limit, MAX_LISTED)),
        array=array,
        ended_before=ended_before,
        after=after,
        text=text,
        is_collapsed=is_collapsed,
    )
    if array is not None:
        jobs.reverse()
    histories = storage.store.histories([job.id for job in jobs])
    continued = storage.store.elastic.continued(jobs)
    views = [view_of(storage, job, histories.get(job.id, ())) for job in jobs]
    views = [_continued(view, job) if job.id in continued else view for view, job in zip(views, jobs, strict=True)]
    if not is_collapsed:
        return views
    counts = storage.store.count_elements([view.array for view in views], with_removed=False)
    return [replace(view, array_states=_by_name(counts.get(view.array, {}))) for view in views]


def count_jobs(storage: JobStorage, version: int) -> JobCounts:
    """Return how many jobs of the daemon's user are in each state. `version` is that of the daemon's changes."""
    counts: Counter[JobState] = Counter()
    for (_, state), count in storage.store.count_states(storage.uid, with_removed=False).items():
        counts[state] += count
    return JobCounts(_by_name(counts), version)


def _by_name(counts: Mapping[JobState, int]) -> dict[str, int]:
    return {state.value: counts[state] for state in JobState if counts.get(state)}


def own_job(store: Store, caller: Caller, job_id: str) -> Job:
    """Return the job if it is the caller's. Raises :class:`Refused` if it does not exist, was removed, or is another
    user's.

    `job_id` may be the beginning of an id, with at least three characters after the dash, or the scheduler's id of an
    attempt, if only one of the caller's jobs has it; or an array's id with an element's index, for example
    array-0a1b2c3d4_3.
    """
    job = own_job_or_removed(store, caller, job_id)
    if job.removed_at is not None:
        raise removed_job(job_id)
    return job


def own_job_or_removed(store: Store, caller: Caller, job_id: str) -> Job:
    """Return the job like :func:`own_job`, also if it was removed."""
    job = store.get(_whole_id(store, caller, job_id))
    if job is None or not (caller.is_admin or job.uid == caller.uid):
        raise unknown_job(job_id)
    return job


def require_learner(job: Job, wanted: int | None) -> None:
    """Raise :class:`Refused` if the job has no learner of that number. None stands for all learners."""
    count = job.most_learners
    if wanted is not None and not 1 <= wanted <= count:
        has = "one learner" if count == 1 else f"learners 1 to {count}"
        raise wrong_usage(f"{job.id} has {has}; there is no learner {wanted}")


def _whole_id(store: Store, caller: Caller, text: str) -> JobId:
    try:
        return parse_job_id(text)
    except ValueError:
        element = _ELEMENT.fullmatch(text)
        if element is not None:
            return _element_id(store, element[1], int(element[2]), text)
        if is_array_id(text):
            raise _no_job(store, caller, text) from None
        if not _BEGINNING.fullmatch(text):
            return _native_id(store, caller, text)
    found = store.find_ids(text, caller.default_owner, _CANDIDATES + 1)
    if not found:
        raise unknown_job(text)
    if len(found) > 1:
        raise ambiguous_job(text, found[:_CANDIDATES], complete=len(found) <= _CANDIDATES)
    return found[0]


def _element_id(store: Store, array: str, index: int, text: str) -> JobId:
    found = store.elements_of(array, index)
    if not found:
        raise unknown_job(text)
    return found[0].id


def _native_id(store: Store, caller: Caller, text: str) -> JobId:
    """Return the job with an attempt of this scheduler's id. Raises Refused for other texts, and for the id of a native
    array."""
    found = []
    if _NATIVE.fullmatch(text):
        found = store.find_native(text, None if caller.is_admin else caller.uid, _CANDIDATES + 1)
    if not found:
        raise unknown_job(text)
    newest, element = found[0], found[0].spec.element
    if element is not None and newest.native_id.startswith(f"{text}_"):
        raise native_array(text, newest.backend, element.array, newest.native_id)
    if len(found) > 1:
        ids = [job.id for job in found[:_CANDIDATES]]
        raise ambiguous_native_id(text, ids, complete=len(found) <= _CANDIDATES)
    return newest.id


def _no_job(store: Store, caller: Caller, array: str) -> Refused:
    """Return the refusal of an array's id where a job's is needed."""
    found = store.list_jobs(uid=None if caller.is_admin else caller.uid, array=array, limit=1)
    element = found[0].spec.element if found else None
    return whole_array(array, element.first) if element is not None else unknown_array(array)


def get_job(storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str) -> JobView:
    """Return one job in detail. Raises :class:`Refused`."""
    return detailed(storage, adapters, own_job(storage.store, caller, job_id))


def detailed(storage: JobStorage, adapters: Adapters, job: Job) -> JobView:
    """Return the job with its history, attempts and incidents."""
    view = view_of(storage, job, storage.store.history(job.id), storage.store.attempts(job.id))
    view = replace(view, incidents=incidents_of(storage.store, job))
    if storage.store.elastic.continued([job]):
        view = _continued(view, job)
    return without_places(storage, adapters, job, view)


def _continued(view: JobView, job: Job) -> JobView:
    """Return the view of a job that a scaler halted and will continue."""
    elastic = job.spec.batch.elasticity
    pool = elastic.pool if elastic is not None else ""
    failure = f"{view.message}; " if view.error_code != "000" and view.message else ""
    return replace(view, continued_by=pool, message=f"{failure}{halted_for_size(pool)}", cure="")


def get_events(store: Store, caller: Caller, job_id: str, after: int) -> tuple[list[EventView], bool]:
    """Return the changes of state with a number above `after`, and whether the job has ended. Raises Refused."""
    job = own_job(store, caller, job_id)
    entries = store.history(job.id, after)
    return [_event(entry) for entry in entries], store.elastic.is_over(job)


def health(storage: JobStorage, adapters: Adapters, started_at: float, settings_problem: str = "") -> Health:
    """Return the state of the daemon, also if its database is unavailable."""
    trouble, live_jobs = storage.store.outage, None
    if trouble is None or not storage.store.is_shared:  # do not wait for an unavailable server
        try:
            live_jobs = storage.store.count_live()
        except StoreError as error:
            trouble = trouble or DatabaseOutage(storage.clock.now(), str(error))
    return Health(
        version=__version__,
        host=socket.gethostname(),
        pid=os.getpid(),
        uid=storage.uid,
        started_at=started_at,
        database=adapters.settings.database.partition(":")[0].partition("+")[0],
        live_jobs=live_jobs,
        backends=adapters.health(),
        database_outage=trouble,
        settings_problem=settings_problem,
    )


def view_of(
    storage: JobStorage, job: Job, history: Sequence[HistoryEntry], attempts: Sequence[Attempt] = ()
) -> JobView:
    """Return the view of a job. Resources are those of its current attempt, or of the next one that it waits for."""
    spec = job.effective_spec
    resources, element = spec.resources, spec.element
    directory, now = storage.root.job(job.id), storage.clock.now()
    ran = _ran(history)
    network, network_by = split_network(job.network)
    stored_in, stored_at = _store(job)
    return JobView(
        id=job.id,
        name=spec.name,
        user=job.user,
        state=job.state,
        requested_action=job.requested_action,
        backend=job.backend,
        native_id=job.native_id,
        attempt=job.attempt,
        framework=spec.framework.name,
        framework_version=spec.framework.version,
        learners=resources.learners,
        cpus=resources.cpus,
        gpus=resources.gpus,
        gpu_type=resources.gpu_type,
        total_gpus=count_gpus(spec),
        partition=spec.batch.partition,
        memory_bytes=resources.memory_bytes,
        submitted_at=job.submitted_at,
        updated_at=job.updated_at,
        ended_at=job.ended_at,
        error_code=job.error_code,
        message=job.message,
        cure=_cure(job, history, attempts),
        exit_code=job.exit_code,
        exit_signal=job.exit_signal,
        pending_reason=job.pending_reason,
        nodes=job.nodes,
        network_requested=spec.batch.network,
        network=network,
        network_by=network_by,
        results=_results(job, directory, ran),
        logs=directory.attempt(max(ran, default=job.attempt)).logs if job.attempt else "",
        job_dir=directory.path,
        warnings=job.warnings,
        log_tail=job.log_tail,
        timestamps=_timestamps(history),
        limit_at=_limit_at(job, history),
        sources=spec.sources,
        uncertain_since=job.uncertain_since,
        attempts=tuple(_attempt(one, directory if one.number in ran else None, history, now) for one in attempts),
        overrides=_overrides(job.overrides),
        array=element.array if element is not None else "",
        array_index=element.index if element is not None else None,
        array_values=element.values if element is not None else {},
        stored_in=stored_in,
        stored_at=stored_at,
        settled_at=_settled_at(job, history),
    )


def _cure(job: Job, history: Sequence[HistoryEntry], attempts: Sequence[Attempt]) -> str:
    """Return what the owner can do about the job's error."""
    return Fault(job.error_code, job.message).cure(
        job.id,
        has_checkpoint=any(one.checkpoint.saved_at is not None for one in attempts),
        used_up=used_up(budget_of(job.effective_spec.batch.retry), job.spent),
        is_settled=_settled_at(job, history) is not None,
    )


def _settled_at(job: Job, history: Sequence[HistoryEntry]) -> float | None:
    """Return when the upload was made up whose failure is the job's error; None if it was not."""
    if job.error_code not in UNSTORED:
        return None
    return next((entry.at for entry in history if entry.is_upload_of(job.attempt)), None)


def _overrides(overrides: Overrides) -> dict[str, str]:
    """Return the overrides as text, by manifest key."""
    altered: dict[str, str] = {}
    if overrides.gpus is not None:
        altered["gpus"] = f"{overrides.gpus:g}"
    if overrides.time_s is not None:
        altered["batch.time"] = format_time_limit(overrides.time_s)
    if overrides.learners is not None:
        altered["learners"] = str(overrides.learners)
    if overrides.global_batch is not None:
        altered["batch.elastic.batch"] = str(overrides.global_batch)
    if overrides.exclude:
        altered["batch.exclude"] = ",".join(overrides.exclude)
    return altered


def _timestamps(history: Sequence[HistoryEntry]) -> dict[str, float]:
    """Return when each state was reached since the job last went back: for its next attempt, when the scheduler
    requeued the attempt, or by a resume."""
    times: dict[str, float] = {}
    for entry in history:
        if entry.cause in (Cause.REQUEUED, Cause.RESUMED):
            times = {}
        times.setdefault(entry.state, entry.at)
    return times


def _limit_at(job: Job, history: Sequence[HistoryEntry]) -> float | None:
    """Return when the running attempt reaches its time limit, counted from its start on the nodes."""
    limit_s, times = job.effective_spec.batch.limit_s, _timestamps(history)
    began = min((times[state] for state in RUNNING if state in times), default=None)
    return began + limit_s if limit_s is not None and began is not None and job.state in RUNNING else None


def _ran(history: Sequence[HistoryEntry]) -> frozenset[int]:
    """Return the numbers of the attempts that started learners."""
    return frozenset(entry.attempt for entry in history if entry.state in _RAN)


def _results(job: Job, directory: JobDir, ran: Collection[int]) -> str:
    """Return where the job's results are: in the store that all attempts share, else in the last attempt that ran.

    A later attempt copies them when it starts.
    """
    own = [directory.attempt(number).results for number in range(1, job.attempt + 1)]
    if ran and job.results in ("", *own):
        return directory.attempt(max(ran)).results
    return "" if job.results in own[:-1] else job.results


def _store(job: Job) -> tuple[str, str]:
    """Return the URL of the store for results, and the store's endpoint if the URL does not contain it."""
    place = place_of_results(job.spec.data_stores, job.id)
    if place is None:
        return "", ""
    address, prefix = place
    return format_store_url(address, prefix), address.endpoint if KINDS[address.kind].has_buckets else ""


def _attempt(attempt: Attempt, ran_in: JobDir | None, history: Sequence[HistoryEntry], now: float) -> AttemptView:
    """Return the view of an attempt. `ran_in` is the job's directory if the attempt started learners. `history` is the
    job's."""
    begins_at = attempt.ended_at + STILL_ALIVE_S if attempt.upload_pending and attempt.ended_at is not None else 0.0
    checkpoint = attempt.checkpoint
    left = ran_in.attempt(attempt.number) if ran_in is not None else None
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
        network=split_network(attempt.network)[0],
        network_by=split_network(attempt.network)[1],
        checkpoint_asked=checkpoint.asked,
        checkpoint_confirmed=checkpoint.confirmed,
        checkpoint_answered=checkpoint.answered,
        checkpoint_took_s=checkpoint.took_s,
        checkpoint_saved_at=checkpoint.saved_at,
        gpu_seconds=attempt.gpu_seconds,
        upload_pending=attempt.upload_pending,
        simulated=attempt.simulated,
        results=left.results if left is not None else "",
        logs=left.logs if left is not None else "",
        store_by=begins_at if begins_at > now else None,
        restarts=tuple(RestartView(e.at, e.message) for e in history if e.is_restart_of(attempt.number)),
        learner_restarts=tuple(
            RestartView(e.at, e.message) for e in history if e.is_learner_restart_of(attempt.number)
        ),
        uploaded_at=next((e.at for e in history if e.is_upload_of(attempt.number)), None),
        learners=attempt.learners,
        global_batch=attempt.global_batch,
        gpus=attempt.gpus,
        resizes=tuple(ResizeView(one.at, one.learners, one.global_batch) for one in attempt.resizes),
    )


def _event(entry: HistoryEntry) -> EventView:
    return EventView(
        entry.job_id, entry.seq, entry.at, entry.state, entry.attempt, entry.cause, entry.message, entry.error_code
    )
