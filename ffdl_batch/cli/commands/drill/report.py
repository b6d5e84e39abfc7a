"""What a drill found out: pure, from the job's record and its changes of state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ffdl_batch.cli.render.formatting import format_time, print_line
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import AttemptView, EventView, JobView
from ffdl_batch.domain.job_state import TERMINAL, Cause, JobState
from ffdl_batch.domain.launch.limits import Lead, LeadFrom, needed_lead_s

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


def print_report(report: DrillReport) -> None:
    """The report."""
    print_line("Drill", f"{report.event} on attempt {report.attempt} of {report.job_id}")
    print_line("Ended because", report.message)
    if report.interruption and not report.played:
        print_line("", "(not by what was played: something else interrupted it first)")
    print_line("Checkpoint", _checkpoint(report))
    if report.saved_at is not None and report.saved_age_s is not None:
        age = f", {report.saved_age_s:.1f} s before the event" if report.event == NODE_FAIL else ""
        print_line("Newest file", f"{format_time(report.saved_at)}{age}")
    if report.event != NODE_FAIL:
        print_line("Lead", _lead(report))
        print_line("Warning", _warning(report))
    print_line("Next attempt", _next(report))
    print_line("Result", _result(report))
    print_line("What to do", _cure(report))


def _checkpoint(report: DrillReport) -> str:
    if report.event == NODE_FAIL:
        return "saved earlier" if report.saved_at is not None else "none was saved"
    if not report.asked:
        return "the learners were not asked for one"
    took = "" if report.took_s is None else f" after {report.took_s:.1f} s"
    if report.confirmed:
        return f"asked for, confirmed{took}"
    if report.answered:
        return f"asked for; the learners ended by themselves{took}, but left no new checkpoint"
    return "asked for; the learners did not react and were ended"


def _lead(report: DrillReport) -> str:
    """What is needed, and what is there."""
    needed = "nothing was measured" if report.lead_needed_s is None else f"{report.lead_needed_s} s needed"
    whose = "a job of this manifest" if report.trial else "this job"
    if not report.lead_known:
        return f"{needed}; what {whose} keeps is not known here, its directory cannot be read"
    if report.lead_s is None:
        return f"{needed}; {whose} keeps none"
    return f"{needed}; {whose} keeps {report.lead_s} s (from: {report.lead_from or 'unknown'})"


def _warning(report: DrillReport) -> str:
    """What the time limit would do to it, and the cure; "" where it is well."""
    if report.lead_known and report.lead_s is None:
        return (
            "nobody warns it before a time limit; leave out batch.signal (--signal) and batch.checkpoint.lead_s: 0 "
            "to have it warned"
        )
    if not report.lead_is_short:
        return ""
    late = f"{report.lead_s} s before a time limit is too late to save"
    if report.lead_from == LeadFrom.TIME_LIMIT.value:
        at_least = 2 * (report.lead_needed_s or 0)
        return f"{late}; the lead is half of the time limit at most: ask for {at_least} s or more (batch: time: …)"
    return f"{late}; write into the manifest batch: checkpoint: lead_s: {report.lead_needed_s}"


def _next(report: DrillReport) -> str:
    if report.next_attempt is not None and report.next_started_after_s is not None:
        since = "the resume" if report.event == "halt" else "the attempt's end"
        return f"{report.next_attempt}, PROCESSING {report.next_started_after_s:.1f} s after {since}"
    if report.state not in {state.value for state in TERMINAL}:
        return f"the job is {report.state}; it was not waited for any longer (--queue-timeout)"
    if report.state == "HALTED":
        return f"none; ffdl resume {report.job_id} goes on"
    return f"none; the job is {report.state}"


def _result(report: DrillReport) -> str:
    if report.event != NODE_FAIL:
        return "a checkpoint was confirmed" if report.passed else "no checkpoint was confirmed"
    if report.passed:
        return "there is a checkpoint to go on from, and the next attempt started"
    if report.saved_at is None:
        return "no saved checkpoint is known"
    return "there is a checkpoint to go on from; the next attempt has not started" + (" yet" if report.gave_up else "")


def _cure(report: DrillReport) -> str:
    """What a training that failed the drill has to do."""
    if report.passed:
        return ""
    if report.event == NODE_FAIL:
        return "save regularly below $CHECKPOINT_DIR: a lost node does not ask" if report.saved_at is None else ""
    if not report.asked:
        return ""
    if report.answered:
        return "write a new file below $CHECKPOINT_DIR when asked, also where nothing is new, then exit with 0"
    return (
        "catch the checkpoint signal (batch.checkpoint.signal, USR2 by default) or look for $JOB_STATE_DIR/halt, save "
        "below $CHECKPOINT_DIR, then exit with 0"
    )
