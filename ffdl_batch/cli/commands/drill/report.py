"""The result of a drill, from the job's record and its state changes, and how it is printed."""

from __future__ import annotations

from collections.abc import Sequence

from ffdl_batch.cli.render.formatting import format_time, print_line
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import AttemptView, EventView, JobView
from ffdl_batch.domain.job_state import TERMINAL, Cause, JobState
from ffdl_batch.domain.launch.limits import Lead, LeadFrom, needed_lead_s
from ffdl_batch.domain.outcome.continuation import DrillEvent
from ffdl_batch.host.fast_dataclass import dataclass

_STARTED = frozenset({JobState.PROCESSING, JobState.STORING, JobState.COMPLETED})


@dataclass(frozen=True, slots=True)
class Simulation:
    """The event of a drill."""

    event: str
    attempt: int
    at: float
    """The time of the event, in seconds since the epoch."""
    after: int
    """The number of the last state change before the event."""


@dataclass(frozen=True, slots=True)
class DrillReport:
    """The result of a drill. `asked`, `confirmed`, `answered`, `took_s` and `saved_at` are those of
    :class:`~ffdl_batch.domain.job.views.AttemptView`."""

    job_id: str
    event: str
    attempt: int
    trial: bool
    state: str
    interruption: str
    """The kind of interruption that ended the attempt."""
    simulated: bool
    """Whether the drill caused this interruption."""
    message: str
    asked: bool
    confirmed: bool
    answered: bool
    took_s: float | None
    lead_needed_s: int | None
    """None if nothing was measured."""
    lead_s: int | None
    """The lead of the job from now on; for a trial run, the first lead of a job of its manifest. None if the job gets
    no warning before a time limit, or if the lead is not known (`lead_known`)."""
    lead_from: str
    """What decided the lead."""
    lead_known: bool
    saved_at: float | None
    saved_age_s: float | None
    """The age of the newest checkpoint at the event: the work that would be lost."""
    next_attempt: int | None
    next_started_after_s: float | None
    """The time from the attempt's end, or from the resume after a halt, to the learners' next start; None if they did
    not start, or if the drill stopped waiting (`gave_up`)."""
    gave_up: bool
    passed: bool

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command. After a node failure, the result is unknown until the next attempt starts."""
        if self.passed:
            return ExitCode.OK
        unknown = self.event == DrillEvent.NODE_FAIL and self.gave_up and self.saved_at is not None
        return ExitCode.TIMEOUT if unknown else ExitCode.FAILED

    @property
    def lead_is_short(self) -> bool:
        """Whether a checkpoint takes longer than the lead before the time limit."""
        return self.lead_known and self.lead_needed_s is not None and (self.lead_s or 0) < self.lead_needed_s


def is_end(event: EventView) -> bool:
    """Return whether an attempt, or a run of it, ended with this state change."""
    return event.cause == Cause.REQUEUED or event.state in {state.value for state in TERMINAL}


def is_start(event: EventView) -> bool:
    """Return whether learners had started by this state change. Polling may miss PROCESSING itself."""
    return event.state in {state.value for state in _STARTED}


def make_report(
    simulation: Simulation,
    job: JobView,
    events: Sequence[EventView],
    lead: Lead | None,
    *,
    trial: bool = False,
    gave_up: bool = False,
) -> DrillReport:
    """Return the report when the attempt has ended, and the next one has started, will not start, or is not waited for.
    `lead` None: it is not known."""
    attempt = next((each for each in job.attempts if each.number == simulation.attempt), None)
    attempt = attempt or AttemptView(simulation.attempt, job.native_id, job.backend, job.submitted_at)
    started = _next_start(simulation, events, attempt.ended_at)
    saved_at = attempt.checkpoint_saved_at
    measured = attempt.checkpoint_took_s if attempt.checkpoint_confirmed else None
    return DrillReport(
        job_id=job.id,
        event=simulation.event,
        attempt=simulation.attempt,
        trial=trial,
        state=job.state,
        interruption=attempt.interruption,
        simulated=attempt.simulated,
        message=next((event.message for event in events if event.seq > simulation.after and is_end(event)), ""),
        asked=attempt.checkpoint_asked,
        confirmed=attempt.checkpoint_confirmed,
        answered=attempt.checkpoint_answered,
        took_s=attempt.checkpoint_took_s,
        lead_needed_s=None if measured is None else needed_lead_s(measured),
        lead_s=lead.seconds if lead is not None else None,
        lead_from=lead.origin.value if lead is not None else "",
        lead_known=lead is not None,
        saved_at=saved_at,
        saved_age_s=None if saved_at is None else max(0.0, simulation.at - saved_at),
        next_attempt=None if started is None else started[0].attempt,
        next_started_after_s=None if started is None else started[1],
        gave_up=gave_up,
        passed=_passed(simulation.event, attempt, started=started is not None),
    )


def _next_start(
    simulation: Simulation, events: Sequence[EventView], attempt_ended_at: float | None
) -> tuple[EventView, float] | None:
    """Return the first start after the attempt's end, and the time between them. After a halt, the time counts from the
    resume.

    The daemon may have noticed the end late, because it was down or polls every few seconds.
    """
    ended_at: float | None = None
    for event in events:
        if event.seq <= simulation.after:
            continue
        if ended_at is not None and is_start(event):
            return event, max(0.0, event.at - ended_at)
        if event.cause == Cause.RESUMED:
            ended_at = event.at
        elif ended_at is None and is_end(event):
            ended_at = event.at if attempt_ended_at is None else min(event.at, attempt_ended_at)
    return None


def _passed(event: str, attempt: AttemptView, *, started: bool) -> bool:
    if event == DrillEvent.NODE_FAIL:
        return attempt.checkpoint_saved_at is not None and started
    return attempt.checkpoint_confirmed


def print_report(report: DrillReport) -> None:
    """Print the report."""
    print_line("Drill", f"{report.event} on attempt {report.attempt} of {report.job_id}")
    print_line("Ended because", report.message)
    if report.interruption and not report.simulated:
        print_line("", "(not because of the drill: something else interrupted it first)")
    print_line("Checkpoint", _checkpoint(report))
    if report.saved_at is not None and report.saved_age_s is not None:
        age = f", {report.saved_age_s:.1f} s before the event" if report.event == DrillEvent.NODE_FAIL else ""
        print_line("Newest file", f"{format_time(report.saved_at)}{age}")
    if report.event != DrillEvent.NODE_FAIL:
        print_line("Lead", _lead(report))
        print_line("Warning", _warning(report))
    print_line("Next attempt", _next(report))
    print_line("Result", _result(report))
    print_line("What to do", _cure(report))


def _checkpoint(report: DrillReport) -> str:
    if report.event == DrillEvent.NODE_FAIL:
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
    """Return the lead that is needed, and the lead that the job has."""
    needed = "nothing was measured" if report.lead_needed_s is None else f"{report.lead_needed_s} s needed"
    whose = "a job of this manifest" if report.trial else "this job"
    if not report.lead_known:
        return f"{needed}; the lead of {whose} is not known, because its directory cannot be read here"
    if report.lead_s is None:
        return f"{needed}; {whose} has none"
    return f"{needed}; {whose} has {report.lead_s} s (from: {report.lead_from or 'unknown'})"


def _warning(report: DrillReport) -> str:
    """Return a warning if the lead before the time limit is missing or too short; "" if not."""
    if report.lead_known and report.lead_s is None:
        return (
            "it gets no warning before a time limit; to get one, leave out batch.signal (--signal) and "
            "batch.checkpoint.lead_s: 0"
        )
    if not report.lead_is_short:
        return ""
    late = f"{report.lead_s} s before a time limit is too late to save"
    if report.lead_from == LeadFrom.TIME_LIMIT.value:
        at_least = 2 * (report.lead_needed_s or 0)
        return f"{late}; the lead is at most half of the time limit: request {at_least} s or more (batch: time: …)"
    return f"{late}; set batch: checkpoint: lead_s: {report.lead_needed_s} in the manifest"


def _next(report: DrillReport) -> str:
    if report.next_attempt is not None and report.next_started_after_s is not None:
        since = "the resume" if report.event == DrillEvent.HALT else "the attempt's end"
        return f"{report.next_attempt}, PROCESSING {report.next_started_after_s:.1f} s after {since}"
    if report.state not in {state.value for state in TERMINAL}:
        return f"the job is {report.state}; the drill stopped waiting (--queue-timeout)"
    if report.state == "HALTED":
        return f"none; to continue: ffdl resume {report.job_id}"
    return f"none; the job is {report.state}"


def _result(report: DrillReport) -> str:
    if report.event != DrillEvent.NODE_FAIL:
        return "a checkpoint was confirmed" if report.passed else "no checkpoint was confirmed"
    if report.passed:
        return "a checkpoint exists, and the next attempt started"
    if report.saved_at is None:
        return "no saved checkpoint is known"
    return "a checkpoint exists; the next attempt has not started" + (" yet" if report.gave_up else "")


def _cure(report: DrillReport) -> str:
    """Return what to change in a training that failed the drill."""
    if report.passed:
        return ""
    if report.event == DrillEvent.NODE_FAIL:
        return (
            "save regularly below $CHECKPOINT_DIR: a node failure comes without a checkpoint request"
            if report.saved_at is None
            else ""
        )
    if not report.asked:
        return ""
    if report.answered:
        return (
            "at a checkpoint request, write a new file below $CHECKPOINT_DIR, even if nothing is new, then exit with 0"
        )
    return (
        "catch the checkpoint signal (batch.checkpoint.signal, USR2 by default) or look for $JOB_STATE_DIR/halt, save "
        "below $CHECKPOINT_DIR, then exit with 0"
    )
