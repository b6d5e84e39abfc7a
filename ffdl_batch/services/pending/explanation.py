"""Why a job waits, when it may start, and what would start sooner; of one that does not wait, what it does instead.

Nothing is submitted, and nothing is written. Where the scheduler does not answer, what was known last is told with its
age.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from ffdl_batch.config.images import UnknownImage
from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.daemon_health import BackendHealth
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job.submission import Caller, Submission
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.pending.evidence import evidence_of, moment_text
from ffdl_batch.domain.pending.explanation import (
    Alternative,
    Explanation,
    Foretold,
    Outlook,
    WaitHistory,
    WaitKind,
    WhyView,
)
from ffdl_batch.domain.pending.reason_text import actions_of, sentence_of, span_text
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow, SchedulerUnreachable
from ffdl_batch.host.permissions import find_old_groups
from ffdl_batch.ports.capabilities import ExplainsWaiting, ForetellsStart
from ffdl_batch.ports.clock import Clock
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.pending.pending_time_history import wait_history
from ffdl_batch.services.pending.request_variants import Base, plain_request, rank, try_all, variants_of
from ffdl_batch.services.queries.jobs import detailed, own_job
from ffdl_batch.services.submission.dry_run import DRY_RUN_ID
from ffdl_batch.services.submission.validation import facts_or_refuse, launch_request, read_submission

log = logging.getLogger(__name__)
_SENT = frozenset({JobState.DEPLOYING, JobState.QUEUED})
_HAS_NODES = frozenset({JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING})
_NO_TRIAL = frozenset(
    {WaitKind.DEPENDENCY, WaitKind.DEPENDENCY_NEVER, WaitKind.BEGIN_TIME, WaitKind.HELD_BY_USER,
     WaitKind.HELD_BY_ADMIN, WaitKind.HELD_AFTER_FAILURES, WaitKind.LIMIT, WaitKind.ARRAY_LIMIT, WaitKind.IMAGE,
     WaitKind.VOLUME, WaitKind.BROKEN, WaitKind.REFUSED, WaitKind.QUEUE_CLOSED}
)  # fmt: skip
"""Where room is not what lacks, a trial of the same request would mislead: trials look at room alone."""
_NEEDS_GROUPS = frozenset({JobState.PENDING, JobState.DEPLOYING, JobState.FAILED})
"""States in which the groups of the daemon, or of a job that it started, may be the reason."""
_OF_LEARNERS = frozenset({WaitKind.IMAGE, WaitKind.BROKEN})
"""What keeps learners that have their nodes."""
_NEW_S = 15.0
"""For so long a scheduler may not show yet what it has taken."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found out about a request beside its reason."""

    known: Explanation | None = None
    trial: Foretold | None = None
    alternatives: tuple[Alternative, ...] = ()
    stale: str = ""


def explain_job(
    storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str, *, alternatives: bool = True, moving: str = ""
) -> WhyView:
    """One job; `alternatives`: the scheduler is also asked what would start sooner. `moving` is what moves to or from
    its stores. Raises :class:`Refused` for an unknown one."""
    job = own_job(storage.store, caller, job_id)
    view = _explain(storage, adapters, job, alternatives=alternatives, moving=moving)
    old = find_old_groups() if job.state in _NEEDS_GROUPS else None
    return (
        replace(view, actions=(*view.actions, f"if it lacks access to files: {old.why}; {old.cure}")) if old else view
    )


def _explain(storage: JobStorage, adapters: Adapters, job: Job, *, alternatives: bool, moving: str) -> WhyView:
    view = WhyView(job.id, job.spec.name, job.state.value, job.backend, job.native_id, waits=False, sentence="")
    if job.requested_action is RequestedAction.CANCEL and not job.state.is_terminal:
        return _explain_cancelled(adapters, job, view)
    if job.state in _SENT and job.native_id:
        return _explain_queued(storage, adapters, job, view, alternatives=alternatives)
    if (
        job.state is JobState.DOWNLOADING
        and job.native_id
        and (partly := _explain_partly(storage, adapters, job, view, alternatives=alternatives))
    ):
        return partly
    if job.state in (JobState.PENDING, JobState.DEPLOYING):
        return _explain_ours(storage.clock, adapters, job, view)
    return _explain_other(replace(detailed(storage, adapters, job), moving=moving), view)


def _explain_partly(
    storage: JobStorage, adapters: Adapters, job: Job, view: WhyView, *, alternatives: bool
) -> WhyView | None:
    """A job that has nodes, where some of its learners wait for theirs, or what they run cannot be had; None where
    neither is so."""
    is_gang = job.effective_spec.resources.learners > 1
    if not is_gang and not job.pending_reason:
        return None
    partly = _explain_queued(storage, adapters, job, view, alternatives=alternatives and is_gang)
    reason = partly.explanation.reason if partly.explanation is not None else None
    if reason is not None and reason.kind in _OF_LEARNERS:
        return replace(partly, sentence=f"it has its nodes, but {partly.sentence}")
    if reason is None or reason.kind is WaitKind.STARTING or not is_gang:
        return None
    return replace(partly, sentence=f"some of its learners have their nodes, and others wait: {partly.sentence}")


def look_ahead(storage: JobStorage, adapters: Adapters, caller: Caller, submission: Submission) -> Outlook:
    """What awaits a submission. Raises :class:`Refused` for one that would be refused."""
    candidate = read_submission(storage, adapters, submission)
    facts_or_refuse(adapters, candidate.backend)
    found = _find_out(storage, adapters, candidate.spec, candidate.backend, None, alternatives=True)
    history = wait_history(storage, caller.uid, candidate.spec, candidate.backend)
    return Outlook(
        backend=candidate.backend,
        evidence=_evidence(storage.clock, found, history),
        explanation=found.known,
        trial=found.trial,
        history=history,
        alternatives=found.alternatives,
        stale=found.stale,
    )


# --------------------------------------------------------------------------------------------------- jobs that wait


def _explain_queued(storage: JobStorage, adapters: Adapters, job: Job, view: WhyView, *, alternatives: bool) -> WhyView:
    found = _find_out(storage, adapters, job.effective_spec, job.backend, job, alternatives=alternatives)
    history = wait_history(storage, job.uid, job.effective_spec, job.backend)
    known, now = found.known, storage.clock.now()
    view = replace(
        view,
        waits=True,
        evidence=_evidence(storage.clock, found, history),
        explanation=known,
        trial=found.trial,
        history=history,
        alternatives=found.alternatives,
        stale=found.stale,
    )
    if known is not None and known.reason is not None:
        actions = actions_of(known.reason)
        if found.alternatives:
            actions = (*actions, "or cancel it, and ask for one of the alternatives, which would start sooner")
        return replace(view, sentence=sentence_of(known.reason), actions=actions)
    if found.stale:
        when = span_text(max(0.0, now - job.updated_at))
        said = f"; it said last, {when} ago: {job.pending_reason}" if job.pending_reason else ""
        lacks = bool(adapters.lacks(job.backend))
        action = "have that mended" if lacks else f"nothing: ask again when {job.backend} answers"
        sentence = f"it is in {job.backend}'s queue; {found.stale}{said}"
        return replace(view, sentence=sentence, actions=(f"{action}; it keeps its place meanwhile",))
    if job.pending_reason and (known is not None or not _explains(adapters, job.backend)):
        return replace(view, sentence=f"{job.backend} says: {job.pending_reason}")
    since_s = now - job.updated_at
    if job.state is JobState.QUEUED and 0 <= since_s < _NEW_S:
        said = f"{job.backend} has taken it {span_text(since_s)} ago, and does not list it as waiting yet, or no more"
    else:
        said = f"{job.backend} does not list it as waiting: it is starting, or has just ended"
    last = f"; what was known last: {job.pending_reason}" if job.pending_reason else ""
    return replace(view, sentence=f"{said}; ask again in a few seconds{last}")


def _find_out(
    storage: JobStorage, adapters: Adapters, spec: JobSpec, backend: str, job: Job | None, *, alternatives: bool
) -> _Found:
    known, stale = _ask_backend(storage.clock, adapters, spec, backend, job)
    has_left = known is None and job is not None and _explains(adapters, backend)
    if stale or has_left or not alternatives or not isinstance(adapters.get(backend), ForetellsStart):
        return _Found(known, stale=stale)
    trial = None
    if known is None or known.reason is None or known.reason.kind not in _NO_TRIAL:
        trial = _try(storage, adapters, spec, backend)
    facts = adapters.facts(backend)
    answers = try_all(
        variants_of(spec, facts, known) if trial is not None or (known and known.reason) else [],
        lambda changed: _plan(storage, adapters, changed, backend),
        lambda plan: adapters.trials.ask(plan, storage.clock.now),
        time.monotonic,
    )
    planned = known.expected_start if known is not None else None
    tried = trial.at if trial is not None else None
    if known is not None and known.reason is not None and known.reason.limit is not None:
        planned = None  # by room alone
    return _Found(known, trial, rank(answers, Base(planned, tried), storage.clock.now()))


def _ask_backend(
    clock: Clock, adapters: Adapters, spec: JobSpec, backend: str, job: Job | None
) -> tuple[Explanation | None, str]:
    """What the backend says, and why that is old or nothing ("" = it is new)."""
    adapter = adapters.get(backend)
    if not isinstance(adapter, ExplainsWaiting):
        return None, ""
    try:
        request = WaitingRequest(spec, adapters.facts(backend), _native(job))
        with adapters.asking(backend):
            (known,) = adapter.explain_waiting([request])
    except SchedulerUnreachable as error:
        return _recall(clock, adapters, backend, job, error)
    if job is not None and known is not None:
        adapters.trials.remember(job.id, known)
    return known, ""


def _native(job: Job | None) -> NativeId | None:
    return NativeId.parse(job.native_id) if job is not None else None


def _explains(adapters: Adapters, backend: str) -> bool:
    return isinstance(adapters.get(backend), ExplainsWaiting)


def _recall(
    clock: Clock, adapters: Adapters, backend: str, job: Job | None, error: SchedulerUnreachable
) -> tuple[Explanation | None, str]:
    known = adapters.trials.recall(job.id) if job is not None else None
    outage, now = _outage_of(adapters, backend), clock.now()
    if lacks := adapters.lacks(backend):
        why = f"{backend} cannot be asked: {lacks}"
    elif outage is not None and outage.unreachable_since is not None:
        why = f"{backend} has not answered for {span_text(now - outage.unreachable_since)}: {outage.detail}"
    else:
        why = f"{backend} {'was not asked' if isinstance(error, NotNow) else 'did not answer'}: {error}"
    age = f"; what follows it said {span_text(now - known.known_at)} ago" if known is not None else ""
    return known, f"{why}{age}"


def _outage_of(adapters: Adapters, backend: str) -> BackendHealth | None:
    return next((one for one in adapters.outages() if one.name == backend), None)


def _try(storage: JobStorage, adapters: Adapters, spec: JobSpec, backend: str) -> Foretold | None:
    """The request as it is, submitted anew."""
    plan = _plan(storage, adapters, plain_request(spec), backend)
    if plan is None:
        return None
    try:
        return adapters.trials.ask(plan, storage.clock.now)
    except SchedulerUnreachable as error:
        log.debug("no trial on %s: %s", backend, error)
        return None


def _plan(storage: JobStorage, adapters: Adapters, spec: JobSpec, backend: str) -> LaunchPlan | None:
    """The plan of a trial; None where it could not be submitted either."""
    try:
        request = launch_request(storage, adapters, spec, backend, DRY_RUN_ID, environ={})
        return adapters.get(backend).plan(request)
    except (InvalidRequest, UnknownImage):
        return None


def _evidence(clock: Clock, found: _Found, history: WaitHistory | None) -> tuple[str, ...]:
    return evidence_of(found.known, found.trial, history, clock.now())


# ------------------------------------------------------------------------------------------------ jobs that do not


def _explain_ours(clock: Clock, adapters: Adapters, job: Job, view: WhyView) -> WhyView:
    """It is with us: nobody has handed it over yet."""
    view, now = replace(view, waits=True), clock.now()
    outage = _outage_of(adapters, job.backend)
    if outage is not None and outage.unreachable_since is not None:
        since = span_text(now - outage.unreachable_since)
        again = f"; it is asked again {moment_text(outage.asked_again_at, now)}" if outage.asked_again_at else ""
        if lacks := adapters.lacks(job.backend):
            mended = "have that mended: it is handed over then"
            return replace(view, sentence=f"it waits here: {lacks}{again}", actions=(mended,))
        text = f"it waits here: {job.backend} has not answered for {since} ({outage.detail}){again}"
        return replace(view, sentence=text, actions=("nothing: it is handed over when the scheduler answers",))
    if job.uncertain_since is not None:
        age = span_text(now - job.uncertain_since)
        text = f"its submission was not answered {age} ago, and the scheduler is searched for it: {job.pending_reason}"
        return replace(view, sentence=text, actions=("nothing: it is handed over again once it surely is not there",))
    if job.state is JobState.DEPLOYING:
        return replace(view, sentence=f"it is being handed over to {job.backend} at this moment", actions=("wait",))
    if job.pending_reason:
        again = _tried_again(adapters, job)
        text = f"it waits here, and {job.backend} does not have it yet: {job.pending_reason}{again}"
        return replace(view, sentence=text, actions=(_cure_of(job),))
    return replace(view, sentence=f"it is about to be handed over to {job.backend}", actions=("wait a few seconds",))


def _explain_cancelled(adapters: Adapters, job: Job, view: WhyView) -> WhyView:
    """Its owner has cancelled it, and it has not ended yet: the scheduler may not have been told."""
    has_nodes = job.state in _HAS_NODES
    view = replace(view, waits=not has_nodes, actions=("nothing",))
    sentence = f"{'it does not wait: ' if has_nodes else ''}it is being cancelled"
    outage = _outage_of(adapters, job.backend)
    if not job.native_id or outage is None or outage.unreachable_since is None:
        return replace(view, sentence=sentence)
    lacks = adapters.lacks(job.backend)
    what, do = ("cannot be asked", "have that mended") if lacks else ("does not answer", "nothing")
    sentence += f", and {job.backend} {what}: {outage.detail}"
    return replace(view, sentence=sentence, actions=(f"{do}: it is told as soon as it answers",))


def _tried_again(adapters: Adapters, job: Job) -> str:
    """Return when a refused job is tried again; "" if it waits for something else."""
    rooms = adapters.submit_limits
    if rooms.why_full(job) != job.pending_reason:
        return ""
    wait_s = rooms.wait_s(job)
    if wait_s < 1:
        return "; it is tried again now"
    sooner = "" if rooms.wait_s(job, alone=True) else ", or earlier if a job of this daemon ends"
    return f"; it is tried again in {span_text(wait_s)}{sooner}"


def _cure_of(job: Job) -> str:
    if job.pending_reason.startswith("Dependency"):
        return "look at what it depends on (ffdl show); where that will not happen, cancel it and submit it without"
    return "nothing, unless the reason names what to mend: it is tried again by itself"


def _explain_other(job: JobView, view: WhyView) -> WhyView:
    """It runs, or has ended."""
    state, at = JobState(job.state), job.timestamps.get(job.state)
    since = f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}" if at is not None else ""
    where = f" on {job.nodes}" if job.nodes else ""
    running = {
        JobState.DOWNLOADING: f"it has its nodes, and its data are being brought{since}{where}",
        JobState.PROCESSING: f"it runs{since}{where}",
        JobState.STORING: f"its learners have ended, and results and logs are being stored{since}{where}",
    }
    if state in running:
        moving = f"; {job.moving}" if job.moving else ""
        lacks = f"; {job.pending_reason}" if job.pending_reason else ""
        return replace(view, sentence=f"it does not wait: {running[state]}{moving}{lacks}")
    if state is JobState.COMPLETED:
        return replace(view, sentence="it does not wait: it has completed")
    if state is JobState.HALTED:
        return replace(view, sentence="it does not wait: it was halted", actions=(f"ffdl resume {job.id}",))
    if state is JobState.CANCELLED:
        return replace(view, sentence="it does not wait: it was cancelled")
    code = f" with {job.error_code}" if job.error_code not in ("", "000") else ""
    said = f": {job.message}" if job.message else ""
    return replace(view, sentence=f"it does not wait: it failed{code}{said}", actions=(job.cure,) if job.cure else ())
