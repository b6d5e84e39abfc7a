"""Explains why a job waits, when it may start, and which other request would start sooner.

Nothing is submitted and nothing is written. If the scheduler does not answer, the explanation shows its last answer and
how old that is.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from ffdl_batch.config.images import UnknownImage
from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.daemon_health import BackendHealth
from ffdl_batch.domain.incidents.stalled_learners import IDLE_WARNING
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
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.permissions import find_old_groups
from ffdl_batch.ports.capabilities import ForetellsStart
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.pending.pending_time_history import wait_history
from ffdl_batch.services.pending.request_variants import Base, TrialRequests, plain_request, rank, try_all, variants_of
from ffdl_batch.services.queries.jobs import detailed, own_job
from ffdl_batch.services.submission.dry_run import DRY_RUN_ID
from ffdl_batch.services.submission.launch_planning import facts_or_refuse, launch_request
from ffdl_batch.services.submission.validation import read_submission

log = logging.getLogger(__name__)
_SENT = frozenset({JobState.DEPLOYING, JobState.QUEUED})
_HAS_NODES = frozenset({JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING})
_NO_TRIAL = frozenset(
    {WaitKind.DEPENDENCY, WaitKind.DEPENDENCY_NEVER, WaitKind.BEGIN_TIME, WaitKind.HELD_BY_USER,
     WaitKind.HELD_BY_ADMIN, WaitKind.HELD_AFTER_FAILURES, WaitKind.LIMIT, WaitKind.ARRAY_LIMIT, WaitKind.IMAGE,
     WaitKind.VOLUME, WaitKind.BROKEN, WaitKind.REFUSED, WaitKind.QUEUE_CLOSED}
)  # fmt: skip
"""Reasons other than capacity. A trial considers only capacity, so its answer would mislead."""
_NEEDS_GROUPS = frozenset({JobState.PENDING, JobState.DEPLOYING, JobState.FAILED})
"""States in which the groups of the daemon, or of a job that it started, may be the reason."""
_OF_LEARNERS = frozenset({WaitKind.IMAGE, WaitKind.BROKEN})
"""Reasons for which learners that have their nodes do not start."""
_NEW_S = 15.0
"""How long a scheduler may take to list a job that it has accepted."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The evidence about a request."""

    known: Explanation | None = None
    trial: Foretold | None = None
    alternatives: tuple[Alternative, ...] = ()
    stale: str = ""
    """Why `known` is old or missing."""


class Explainer:
    """Explains the jobs of one daemon. It remembers trials and explanations. Safe in every thread."""

    def __init__(self, storage: JobStorage, adapters: Adapters) -> None:
        self._storage, self._adapters = storage, adapters
        self._trials = TrialRequests(adapters, storage.clock)

    def explain_job(self, caller: Caller, job_id: str, *, alternatives: bool = True, moving: str = "") -> WhyView:
        """Explain one job. Raises :class:`Refused` for an unknown job.

        With `alternatives`, the scheduler is also asked what would start sooner. `moving` describes the transfer
        between the job and its data stores.
        """
        job = own_job(self._storage.store, caller, job_id)
        view = self._explain(job, alternatives=alternatives, moving=moving)
        old = find_old_groups() if job.state in _NEEDS_GROUPS else None
        if old is None:
            return view
        return replace(view, actions=(*view.actions, f"if it lacks access to files: {old.why}; {old.cure}"))

    def look_ahead(self, caller: Caller, submission: Submission) -> Outlook:
        """Forecast the start of a submission. Raises :class:`Refused` if the submission would be refused."""
        candidate = read_submission(self._storage, self._adapters, submission)
        facts_or_refuse(self._adapters, candidate.backend)
        found = self._find_out(candidate.spec, candidate.backend, None, alternatives=True)
        history = wait_history(self._storage, caller.uid, candidate.spec, candidate.backend)
        return Outlook(
            backend=candidate.backend,
            evidence=self._evidence(found, history),
            explanation=found.known,
            trial=found.trial,
            history=history,
            alternatives=found.alternatives,
            stale=found.stale,
        )

    def _explain(self, job: Job, *, alternatives: bool, moving: str) -> WhyView:
        view = WhyView(job.id, job.spec.name, job.state.value, job.backend, job.native_id, waits=False, sentence="")
        if job.requested_action is RequestedAction.CANCEL and not job.state.is_terminal:
            return self._explain_cancelled(job, view)
        if job.state in _SENT and job.native_id:
            return self._explain_queued(job, view, alternatives=alternatives)
        if job.state is JobState.DOWNLOADING and job.native_id:
            partly = self._explain_partly(job, view, alternatives=alternatives)
            if partly is not None:
                return partly
        if job.state in (JobState.PENDING, JobState.DEPLOYING):
            return self._explain_ours(job, view)
        return _explain_other(replace(detailed(self._storage, self._adapters, job), moving=moving), view)

    # ------------------------------------------------------------------------------- jobs that the scheduler has

    def _explain_partly(self, job: Job, view: WhyView, *, alternatives: bool) -> WhyView | None:
        """Explain a job that has nodes if some of its learners still wait for theirs, or cannot start. Return None for
        other jobs."""
        is_gang = job.effective_spec.resources.learners > 1
        if not is_gang and not job.pending_reason:
            return None
        partly = self._explain_queued(job, view, alternatives=alternatives and is_gang)
        reason = partly.explanation.reason if partly.explanation is not None else None
        if reason is not None and reason.kind in _OF_LEARNERS:
            return replace(partly, sentence=f"it has its nodes, but {partly.sentence}")
        if reason is None or reason.kind is WaitKind.STARTING or not is_gang:
            return None
        return replace(partly, sentence=f"some of its learners have their nodes, and others wait: {partly.sentence}")

    def _explain_queued(self, job: Job, view: WhyView, *, alternatives: bool) -> WhyView:
        found = self._find_out(job.effective_spec, job.backend, job, alternatives=alternatives)
        history = wait_history(self._storage, job.uid, job.effective_spec, job.backend)
        known, now = found.known, self._storage.clock.now()
        view = replace(
            view,
            waits=True,
            evidence=self._evidence(found, history),
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
            last = f"; its last answer, {when} ago: {job.pending_reason}" if job.pending_reason else ""
            lacks = bool(self._adapters.lacks(job.backend))
            action = "have that mended" if lacks else f"nothing: ask again when {job.backend} answers"
            sentence = f"it is in {job.backend}'s queue; {found.stale}{last}"
            return replace(view, sentence=sentence, actions=(f"{action}; it keeps its place meanwhile",))
        if job.pending_reason and known is not None:
            return replace(view, sentence=f"{job.backend} says: {job.pending_reason}")
        since_s = now - job.updated_at
        if job.state is JobState.QUEUED and 0 <= since_s < _NEW_S:
            seen = f"{job.backend} accepted it {span_text(since_s)} ago, and does not list it as waiting now"
        else:
            seen = f"{job.backend} does not list it as waiting: it is starting, or has just ended"
        last = f"; the last known reason: {job.pending_reason}" if job.pending_reason else ""
        return replace(view, sentence=f"{seen}; ask again in a few seconds{last}")

    def _find_out(self, spec: JobSpec, backend: str, job: Job | None, *, alternatives: bool) -> _Found:
        """Ask the backend about a request, and with `alternatives` try variants of it."""
        adapters = self._adapters
        known, stale = self._ask_backend(spec, backend, job)
        has_left = known is None and job is not None
        if stale or has_left or not alternatives or not isinstance(adapters.get(backend), ForetellsStart):
            return _Found(known, stale=stale)
        reason = known.reason if known is not None else None
        trial = self._try(spec, backend) if reason is None or reason.kind not in _NO_TRIAL else None
        answers = try_all(
            variants_of(spec, adapters.facts(backend), known) if trial is not None or reason is not None else [],
            lambda changed: self._plan(changed, backend),
            self._trials.ask,
            time.monotonic,
        )
        planned = known.expected_start if known is not None else None
        if reason is not None and reason.limit is not None:
            planned = None  # it considers only capacity
        base = Base(planned, trial.at if trial is not None else None)
        return _Found(known, trial, rank(answers, base, self._storage.clock.now()))

    def _ask_backend(self, spec: JobSpec, backend: str, job: Job | None) -> tuple[Explanation | None, str]:
        """Return the backend's explanation, and why it is old or missing ("" if it is new)."""
        adapter = self._adapters.get(backend)
        native = NativeId.parse(job.native_id) if job is not None else None
        try:
            request = WaitingRequest(spec, self._adapters.facts(backend), native)
            with self._adapters.asking(backend):
                (known,) = adapter.explain_waiting([request])
        except SchedulerUnreachable as error:
            return self._recall(backend, job, error)
        if job is not None and known is not None:
            self._trials.remember(job.id, known)
        return known, ""

    def _recall(self, backend: str, job: Job | None, error: SchedulerUnreachable) -> tuple[Explanation | None, str]:
        known = self._trials.recall(job.id) if job is not None else None
        outage, now = self._outage_of(backend), self._storage.clock.now()
        if lacks := self._adapters.lacks(backend):
            why = f"{backend} cannot be asked: {lacks}"
        elif outage is not None and outage.unreachable_since is not None:
            why = f"{backend} has not answered for {span_text(now - outage.unreachable_since)}: {outage.detail}"
        else:
            why = f"{backend} {'was not asked' if isinstance(error, NotNow) else 'did not answer'}: {error}"
        age = f"; the following is its answer from {span_text(now - known.known_at)} ago" if known is not None else ""
        return known, f"{why}{age}"

    def _outage_of(self, backend: str) -> BackendHealth | None:
        return next((one for one in self._adapters.outages() if one.name == backend), None)

    def _try(self, spec: JobSpec, backend: str) -> Foretold | None:
        """Forecast the start of the same request if it were submitted now."""
        plan = self._plan(plain_request(spec), backend)
        if plan is None:
            return None
        try:
            return self._trials.ask(plan)
        except SchedulerUnreachable as error:
            log.debug("no trial on %s: %s", backend, error)
            return None

    def _plan(self, spec: JobSpec, backend: str) -> LaunchPlan | None:
        """Plan a trial; return None if the request could not be submitted."""
        try:
            request = launch_request(self._storage, self._adapters, spec, backend, DRY_RUN_ID, environ={})
            return self._adapters.get(backend).plan(request)
        except (InvalidRequest, UnknownImage):
            return None

    def _evidence(self, found: _Found, history: WaitHistory | None) -> tuple[str, ...]:
        return evidence_of(found.known, found.trial, history, self._storage.clock.now())

    # -------------------------------------------------------------------------- jobs that the daemon still holds

    def _explain_ours(self, job: Job, view: WhyView) -> WhyView:
        """Explain a job that has not been submitted to its scheduler yet."""
        view, now = replace(view, waits=True), self._storage.clock.now()
        outage = self._outage_of(job.backend)
        if outage is not None and outage.unreachable_since is not None:
            since = span_text(now - outage.unreachable_since)
            again = f"; it is asked again {moment_text(outage.asked_again_at, now)}" if outage.asked_again_at else ""
            if lacks := self._adapters.lacks(job.backend):
                mended = "have that mended: it is handed over then"
                return replace(view, sentence=f"it waits here: {lacks}{again}", actions=(mended,))
            text = f"it waits here: {job.backend} has not answered for {since} ({outage.detail}){again}"
            return replace(view, sentence=text, actions=("nothing: it is handed over when the scheduler answers",))
        if job.uncertain_since is not None:
            age = span_text(now - job.uncertain_since)
            text = f"its submission was not answered {age} ago, and the scheduler is searched for it: "
            action = "nothing: it is handed over again if the scheduler does not have it"
            return replace(view, sentence=f"{text}{job.pending_reason}", actions=(action,))
        if job.state is JobState.DEPLOYING:
            return replace(view, sentence=f"it is being handed over to {job.backend} at this moment", actions=("wait",))
        if job.pending_reason:
            again = self._tried_again(job)
            text = f"it waits here, and {job.backend} does not have it yet: {job.pending_reason}{again}"
            return replace(view, sentence=text, actions=(_cure_of(job),))
        return replace(
            view, sentence=f"it is about to be handed over to {job.backend}", actions=("wait a few seconds",)
        )

    def _explain_cancelled(self, job: Job, view: WhyView) -> WhyView:
        """Explain a job that its owner has cancelled and that has not ended yet."""
        has_nodes = job.state in _HAS_NODES
        view = replace(view, waits=not has_nodes, actions=("nothing",))
        sentence = f"{'it is not waiting: ' if has_nodes else ''}it is being cancelled"
        outage = self._outage_of(job.backend)
        if not job.native_id or outage is None or outage.unreachable_since is None:
            return replace(view, sentence=sentence)
        lacks = self._adapters.lacks(job.backend)
        what, do = ("cannot be asked", "have that mended") if lacks else ("does not answer", "nothing")
        sentence += f", and {job.backend} {what}: {outage.detail}"
        return replace(view, sentence=sentence, actions=(f"{do}: the cancel is sent as soon as it answers",))

    def _tried_again(self, job: Job) -> str:
        """Return when a refused job is tried again; "" if it waits for something else."""
        limits = self._adapters.submit_limits
        if limits.why_full(job) != job.pending_reason:
            return ""
        wait_s = limits.wait_s(job)
        if wait_s < 1:
            return "; it is tried again now"
        sooner = "" if limits.wait_s(job, alone=True) else ", or earlier if a job of this daemon ends"
        return f"; it is tried again in {span_text(wait_s)}{sooner}"


def _cure_of(job: Job) -> str:
    if job.pending_reason.startswith("Dependency"):
        return "look at what it depends on (ffdl show); if that cannot happen, cancel it and submit it without"
    return "nothing, unless the reason names what to mend: it is tried again by itself"


def _explain_other(job: JobView, view: WhyView) -> WhyView:
    """Describe a job that runs or has ended."""
    state, at = JobState(job.state), job.timestamps.get(job.state)
    since = f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}" if at is not None else ""
    where = f" on {job.nodes}" if job.nodes else ""
    running = {
        JobState.DOWNLOADING: f"it has its nodes, and its data are being brought{since}{where}",
        JobState.PROCESSING: f"it {'has been running' if since else 'is running'}{since}{where}",
        JobState.STORING: f"its learners have ended, and results and logs are being stored{since}{where}",
    }
    if state in running:
        moving = f"; {job.moving}" if job.moving else ""
        lacks = f"; {job.pending_reason}" if job.pending_reason else ""
        idle = "".join(f"; {one}" for one in job.warnings if one.startswith(IDLE_WARNING))
        return replace(view, sentence=f"it is not waiting: {running[state]}{moving}{lacks}{idle}")
    if state is JobState.COMPLETED:
        return replace(view, sentence="it is not waiting: it has completed")
    if job.continued_by:
        return replace(view, sentence=f"it is not waiting: {job.message}")
    if state is JobState.HALTED:
        return replace(view, sentence="it is not waiting: it was halted", actions=(f"ffdl resume {job.id}",))
    if state is JobState.CANCELLED:
        return replace(view, sentence="it is not waiting: it was cancelled")
    code = f" with {job.error_code}" if job.error_code not in ("", "000") else ""
    message = f": {job.message}" if job.message else ""
    return replace(
        view, sentence=f"it is not waiting: it failed{code}{message}", actions=(job.cure,) if job.cure else ()
    )
