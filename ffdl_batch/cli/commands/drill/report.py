"""What a drill found out: pure, from the job's record and its changes of state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import AttemptView, EventView, JobView
from ffdl_batch.domain.job_state import TERMINAL, Cause, JobState
from ffdl_batch.domain.launch.limits import Lead, needed_lead_s

EVENTS = ("halt", "timeout", "preempt", "node-fail")
HALT, NODE_FAIL = "halt", "node-fail"
_STARTED = frozenset({JobState.PROCESSING, JobState.STORING, JobState.COMPLETED})


@dataclass(frozen=True, slots=True)
class Played:
    """What was played, on what, and when (seconds since the epoch). `after` is the number of the last change before."""

    event: str
    attempt: int
    at: float
    after: int


@dataclass(frozen=True, slots=True)
class DrillReport:
    """One drill. Times are seconds, `saved_at` is seconds since the epoch.

    `interruption` is what the attempt's end was taken for, and `played` says that this was the drill's. `asked`,
    `confirmed`, `answered`, `took_s` and `saved_at` are those of :class:`~ffdl_batch.domain.job.views.AttemptView`;
    `saved_age_s` is how old the newest saved checkpoint was when the event was played: what would be lost.
    `lead_needed_s` is None where nothing was measured; `lead_s` is what the job keeps from now on (a trial run: what a
    job of its manifest begins with; None = nobody warns, unless not `lead_known`), `lead_from` what decided that.
    `next_started_after_s` is the time from the attempt's end (after a halt: from the resume) to the learners' next
    start; None: there was none, or it was not waited for any longer (`gave_up`).
    """

    job_id: str
    event: str
    attempt: int
    trial: bool
    state: str
    interruption: str
    played: bool
    message: str
    asked: bool
    confirmed: bool
    answered: bool
    took_s: float | None
    lead_needed_s: int | None
    lead_s: int | None
    lead_from: str
    lead_known: bool
    saved_at: float | None
    saved_age_s: float | None
    next_attempt: int | None
    next_started_after_s: float | None
    gave_up: bool
    passed: bool

    @property
    def exit_code(self) -> ExitCode:
        """Of the command. A checkpoint after a node failure proves nothing while the next attempt is waited for."""
        if self.passed:
            return ExitCode.OK
        unknown = self.event == NODE_FAIL and self.gave_up and self.saved_at is not None
        return ExitCode.TIMEOUT if unknown else ExitCode.FAILED

    @property
    def lead_is_short(self) -> bool:
        """Whether a checkpoint would not be done when the time limit comes."""
        return self.lead_known and self.lead_needed_s is not None and (self.lead_s or 0) < self.lead_needed_s


def is_end(event: EventView) -> bool:
    """Whether an attempt (or a run of it) ended with this change of state."""
    return event.cause == Cause.REQUEUED or event.state in {state.value for state in TERMINAL}


def is_start(event: EventView) -> bool:
    """Whether learners were started by then. Polling may miss PROCESSING, what comes after it says as much."""
    return event.state in {state.value for state in _STARTED}


def make_report(
    played: Played,
    job: JobView,
    events: Sequence[EventView],
    lead: Lead | None,
    *,
    trial: bool = False,
    gave_up: bool = False,
) -> DrillReport:
    """The report, once the attempt has ended and the next one has started, will not, or is not waited for any longer.
    `lead` None: it is not known."""
    attempt = next((each for each in job.attempts if each.number == played.attempt), None)
    attempt = attempt or AttemptView(played.attempt, job.native_id, job.backend, job.submitted_at)
    started = _next_start(played, events, attempt.ended_at)
    saved_at = attempt.checkpoint_saved_at
    measured = attempt.checkpoint_took_s if attempt.checkpoint_confirmed else None
    return DrillReport(
        job_id=job.id,
        event=played.event,
        attempt=played.attempt,
        trial=trial,
        state=job.state,
        interruption=attempt.interruption,
        played=attempt.played,
        message=next((event.message for event in events if event.seq > played.after and is_end(event)), ""),
        asked=attempt.checkpoint_asked,
        confirmed=attempt.checkpoint_confirmed,
        answered=attempt.checkpoint_answered,
        took_s=attempt.checkpoint_took_s,
        lead_needed_s=None if measured is None else needed_lead_s(measured),
        lead_s=lead.seconds if lead is not None else None,
        lead_from=lead.origin.value if lead is not None else "",
        lead_known=lead is not None,
        saved_at=saved_at,
        saved_age_s=None if saved_at is None else max(0.0, played.at - saved_at),
        next_attempt=None if started is None else started[0].attempt,
        next_started_after_s=None if started is None else started[1],
        gave_up=gave_up,
        passed=_passed(played.event, attempt, started=started is not None),
    )


def _next_start(
    played: Played, events: Sequence[EventView], attempt_ended_at: float | None
) -> tuple[EventView, float] | None:
    """The first start after the attempt's end, and how long after; a halted job is waiting until it is resumed.

    The daemon may have noticed the end later than it came (it was down, or looks every few seconds).
    """
    ended_at: float | None = None
    for event in events:
        if event.seq <= played.after:
            continue
        if ended_at is not None and is_start(event):
            return event, max(0.0, event.at - ended_at)
        if event.cause == Cause.RESUMED:
            ended_at = event.at
        elif ended_at is None and is_end(event):
            ended_at = event.at if attempt_ended_at is None else min(event.at, attempt_ended_at)
    return None


def _passed(event: str, attempt: AttemptView, *, started: bool) -> bool:
    if event == NODE_FAIL:
        return attempt.checkpoint_saved_at is not None and started
    return attempt.checkpoint_confirmed
