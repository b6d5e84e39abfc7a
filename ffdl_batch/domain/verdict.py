"""From what is known about an attempt to what is true of its job. Pure; the watcher asks it.

Known are the scheduler's observation (or that it has none), the controllers' events, the head's final record,
and the owner's wish. The rules, in order:

1. COMPLETED needs proof of both kinds: the attempt stored everything with success (final record), and the
   scheduler reports success or has provably forgotten the job. A node that failed a second after everything
   was stored changes nothing but a warning.
2. A cancel that the owner wished before STORING wins over whatever else ended the job.
3. A final record that says failure, with the job ended, is FAILED with the record's code.
4. An end without a final record is the scheduler's: time limit, memory, node failure, preemption...
5. Unknown is never an end. Phases come from events at once, the scheduler's word may be slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ffdl_batch.domain.events import Event, EventKind, FinalRecord, Outcome
from ffdl_batch.domain.events import Phase as ControllerPhase
from ffdl_batch.domain.job_state import Cause, JobState, Wish, is_legal
from ffdl_batch.domain.observation import EndCause, Observation, Phase


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the attempt's directory tells."""

    events: Sequence[Event] = ()
    final: FinalRecord | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known about a job's current attempt.

    `observation` is None when the scheduler's listing left the job out. `forgotten`: the scheduler *and* its
    accounting answered in full and neither knows the job any more. `settled`: the end was seen long enough ago
    that a final record written before it would be visible on the shared file system.
    """

    state: JobState
    wish: Wish
    observation: Observation | None
    evidence: Evidence
    now: float
    forgotten: bool = False
    settled: bool = True

    @property
    def ended(self) -> bool:
        """Whether the scheduler is through with the job."""
        return self.forgotten or (self.observation is not None and self.observation.phase is Phase.ENDED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """States to pass through in order, with times; and, where the last one is an end, why."""

    steps: tuple[tuple[JobState, float], ...] = ()
    cause: Cause = Cause.PROGRESS
    error_code: str = "000"
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    log_tail: tuple[str, ...] = ()
    warning: str = ""


@dataclass(frozen=True, slots=True)
class _End:
    state: JobState
    at: float
    error_code: str = "000"
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    warning: str = ""


_OUTCOMES = {
    Outcome.COMPLETED: JobState.COMPLETED,
    Outcome.FAILED: JobState.FAILED,
    Outcome.HALTED: JobState.HALTED,
    Outcome.CANCELLED: JobState.CANCELLED,
    Outcome.TIMED_OUT: JobState.FAILED,
}
_SCHEDULER_ENDS: dict[EndCause, tuple[str, str]] = {
    EndCause.TIMEOUT: ("C203", "the time limit was reached"),
    EndCause.OUT_OF_MEMORY: ("C202", "the learner needed more memory than it asked for"),
    EndCause.NODE_FAIL: ("S110", "a node of the allocation failed"),
    EndCause.PREEMPTED: ("S111", "the scheduler preempted the job"),
    EndCause.LAUNCH_FAILED: ("S101", "the scheduler could not start the job"),
    EndCause.REVOKED: ("S112", "the scheduler revoked the job"),
    EndCause.FAILURE: ("S106", "the job ended before its controller could say why"),
    EndCause.SUCCESS: ("S106", "the scheduler reports success, but there is no proof that results were stored"),
    EndCause.CANCELLED: ("S112", "the job was cancelled in the scheduler"),
}


def judge(known: Known) -> Verdict:
    """The states that follow from what is known; no steps when nothing new follows."""
    if known.state.is_terminal:
        return Verdict()
    if _requeued(known):
        return Verdict(
            steps=((JobState.QUEUED, known.now),),
            cause=Cause.REQUEUED,
            message="the scheduler started the job anew",
        )
    phases = _phases(known)
    end = _end(known)
    steps = _in_order(known, phases, end)
    if end is None or not steps or steps[-1][0] is not end.state:
        return Verdict(steps=steps)
    final = known.evidence.final
    return Verdict(
        steps=steps,
        error_code=end.error_code,
        message=end.message,
        exit_code=end.exit_code,
        exit_signal=end.exit_signal,
        log_tail=final.log_tail if final else (),
        warning=end.warning,
    )


def _requeued(known: Known) -> bool:
    """The scheduler has the job waiting again although it ran before (Slurm requeues under the same id)."""
    seen = known.observation
    ran = known.state in (JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING)
    return ran and seen is not None and seen.phase is Phase.PENDING and known.evidence.final is None


def _phases(known: Known) -> list[tuple[JobState, float]]:
    """Live states that events and observation prove, with the earliest time of each, of the latest run."""
    events = _latest_run(known.evidence.events)
    found: dict[JobState, float] = {}
    seen = known.observation
    if seen is not None and seen.phase is not Phase.UNKNOWN:
        found[JobState.QUEUED] = seen.submitted_at or known.now
    for event in events:
        state = _state_of(event)
        if state is not None:
            found.setdefault(JobState.QUEUED, event.at)
            found[state] = min(event.at, found.get(state, event.at))
    return sorted(found.items(), key=lambda item: list(JobState).index(item[0]))


def _latest_run(events: Sequence[Event]) -> Sequence[Event]:
    """Events since the head claimed the attempt last (a requeued job writes on in the same files)."""
    starts = [e.at for e in events if e.kind is EventKind.CLAIMED]
    return [e for e in events if e.at >= starts[-1]] if len(starts) > 1 else events


def _state_of(event: Event) -> JobState | None:
    if event.kind is EventKind.LEARNER_STARTED:
        return JobState.PROCESSING
    if event.kind is not EventKind.PHASE or event.fields.get("status") != "started":
        return None
    phase = event.fields.get("phase")
    if phase in (ControllerPhase.LOAD_MODEL.value, ControllerPhase.LOAD_DATA.value):
        return JobState.DOWNLOADING
    if phase == ControllerPhase.LEARNER.value:
        return JobState.PROCESSING
    return JobState.STORING


def _end(known: Known) -> _End | None:
    seen = known.observation
    if not known.ended:
        return None
    at = (seen.ended_at if seen else None) or known.now
    final = known.evidence.final
    if final is None and not known.settled:
        return None
    if final is not None and final.outcome is Outcome.COMPLETED and final.stored:
        return _End(JobState.COMPLETED, max(final.at, 0.0), exit_code=0, warning=_late_trouble(seen))
    if known.wish is Wish.CANCEL:
        return _End(JobState.CANCELLED, at, message="cancelled by its owner")
    if seen is not None and seen.end in (EndCause.TIMEOUT, EndCause.OUT_OF_MEMORY):
        return _by_scheduler(seen, seen.end, at, final)
    if final is not None and final.outcome is Outcome.CANCELLED:
        return _from_outside(seen, final, at)
    return _by_final(final) if final is not None else _without_record(seen, at)


def _without_record(seen: Observation | None, at: float) -> _End:
    if seen is None:
        return _End(JobState.FAILED, at, "S106", "scheduler and accounting have forgotten the job and it left no proof")
    if seen.end is EndCause.CANCELLED:
        return _End(JobState.CANCELLED, at, message="cancelled in the scheduler")
    return _by_scheduler(seen, seen.end or EndCause.FAILURE, at, None)


def _by_final(final: FinalRecord) -> _End:
    state = _OUTCOMES[final.outcome]
    if state is JobState.COMPLETED:  # success, but not everything was stored
        return _End(JobState.FAILED, final.at, "S303", final.message or "results or logs could not be stored")
    return _End(state, final.at, final.error_code, final.message, final.exit_code, final.exit_signal)


def _from_outside(seen: Observation | None, final: FinalRecord, at: float) -> _End:
    """The controllers were told to end and saw no more than the signal; the scheduler may know the reason."""
    if seen is not None and seen.end in (EndCause.NODE_FAIL, EndCause.PREEMPTED, EndCause.REVOKED):
        return _by_scheduler(seen, seen.end, at, None)
    cancelled = seen is not None and seen.end is EndCause.CANCELLED
    message = "cancelled in the scheduler" if cancelled else final.message or "ended from outside"
    return _End(JobState.CANCELLED, at, message=message)


def _by_scheduler(seen: Observation, end: EndCause, at: float, final: FinalRecord | None) -> _End:
    code, sentence = _SCHEDULER_ENDS[end]
    if seen.reason and seen.reason.lower() not in ("none", sentence.lower()):
        sentence += f" ({seen.native_state}: {seen.reason})"
    exit_code = final.exit_code if final else seen.exit_code
    exit_signal = final.exit_signal if final else seen.exit_signal
    return _End(JobState.FAILED, at, code, sentence, exit_code or None, exit_signal or None)


def _late_trouble(seen: Observation | None) -> str:
    if seen is None or seen.end in (None, EndCause.SUCCESS):
        return ""
    return f"everything was stored; the scheduler reports {seen.native_state} afterwards"


def _in_order(
    known: Known, phases: list[tuple[JobState, float]], end: _End | None
) -> tuple[tuple[JobState, float], ...]:
    """Only legal steps, with times that neither go backwards nor lie ahead of us (clocks of nodes differ)."""
    steps: list[tuple[JobState, float]] = []
    wanted = phases + ([(end.state, end.at)] if end else [])
    current, clock = known.state, 0.0
    for state, at in wanted:
        if is_legal(current, state):
            clock = max(clock, min(at, known.now))
            steps.append((state, clock))
            current = state
    return tuple(steps)
