"""From what is known about an attempt to what is true of its job. Pure; the watcher asks it.

Known are the scheduler's observation (or that it has none), the controllers' events, the head's final record,
and the owner's request. The rules, in order:

1. A scheduler that started the attempt anew by itself is adopted: the job waits again. A final record of an earlier run
   says nothing about a later one.
2. A head that began the next attempt is followed at once, without waiting for the scheduler's end.
3. COMPLETED needs proof of both kinds: the attempt stored everything with success (final record, or the events of all
   learners), and the scheduler reports an end or has provably forgotten the job. A node that failed a second after
   everything was stored changes nothing but a warning.
4. A cancel that the owner requested before STORING wins over whatever else ended the job; a request to halt makes
every end
   HALTED that was not the training's own.
5. A training that is over is not run again, whatever ended its controllers before they had stored what it left: the job
   stays in STORING until somebody has, who then has the last word in the head's place.
6. Every other end is :mod:`ffdl_batch.domain.outcome.ending`'s, which says what interrupted it; whether a next attempt
follows    is decided elsewhere.
7. Unknown is never an end. Phases come from events at once, the scheduler's word may be slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction, is_legal
from ffdl_batch.domain.outcome.continuation import Interruption, describe_interruption
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, GoesOn
from ffdl_batch.domain.outcome.controller_events import Phase as ControllerPhase
from ffdl_batch.domain.outcome.ending import ending_of, is_upload_pending, why_requeued
from ffdl_batch.domain.outcome.facts import Evidence, Known, latest_run, requeued_at
from ffdl_batch.domain.outcome.observation import Phase

__all__ = ["Evidence", "Known", "Move", "Verdict", "judge"]


class Move(StrEnum):
    """What a verdict is about, beside states that were passed."""

    NONE = ""
    REQUEUED = "requeued"
    """The scheduler started the attempt anew."""
    SUCCEEDED = "succeeded"
    """The head began the next attempt."""
    UPLOAD_PENDING = "upload_pending"
    """The attempt ended and so did its training, but what it left is not stored."""
    ENDED = "ended"
    """The attempt ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """States to pass through in order, with times; and, where the last one is an end, why.

    `interruption`, `played`, `decided`, `lost_node` and `held` are those of
    :class:`ffdl_batch.domain.outcome.ending.Ending`.
    """

    steps: tuple[tuple[JobState, float], ...] = ()
    cause: Cause = Cause.PROGRESS
    error_code: str = "000"
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    log_tail: tuple[str, ...] = ()
    warning: str = ""
    move: Move = Move.NONE
    interruption: Interruption | None = None
    played: bool = False
    decided: bool = False
    lost_node: bool = False
    held: bool = False


_WAITS = (JobState.QUEUED, JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING)
_REQUEUED = "the scheduler started the job anew"
_WHY_REQUEUED = {Interruption.PREEMPTION: "it was preempted or requeued"}
"""Slurm does to a job that somebody requeues by hand what it does to one that it preempts."""


def judge(known: Known) -> Verdict:
    """The states that follow from what is known; no steps when nothing new follows."""
    if known.state.is_terminal:
        return Verdict()
    final = known.final
    if final is not None and final.restart > known.requeues and known.state in _WAITS:
        return _requeue(known)  # nobody saw that start; what the run came to is judged next
    if final is not None and final.goes_on is GoesOn.SUCCESSOR:
        why = Interruption(final.interruption) if final.interruption else Interruption.TIMEOUT
        steps = _in_order(known)
        return Verdict(
            steps,
            Cause.REQUEUED,
            message=final.message,
            move=Move.SUCCEEDED,
            interruption=why,
            played=final.played,
        )
    if _requeued(known):
        return _requeue(known)
    if is_upload_pending(known):
        return Verdict(_in_order(known, (JobState.STORING, known.when(known.last_sign))), move=Move.UPLOAD_PENDING)
    ending = ending_of(known)
    steps = _in_order(known, (ending.state, ending.at)) if ending is not None else _in_order(known)
    if ending is None or not steps or steps[-1][0] is not ending.state:
        return Verdict(steps=steps)
    if is_cancelled_late(known):
        steps = (*steps[:-1], (ending.state, max(known.now, steps[-1][1])))
    return Verdict(
        steps=steps,
        error_code=ending.error_code,
        message=ending.message,
        exit_code=ending.exit_code,
        exit_signal=ending.exit_signal,
        log_tail=final.log_tail if final and ending.state is JobState.FAILED else (),
        warning=ending.warning,
        move=Move.ENDED,
        interruption=ending.interruption,
        played=ending.played,
        decided=ending.decided,
        lost_node=ending.lost_node,
        held=ending.held,
    )


def is_cancelled_late(known: Known) -> bool:
    """Whether its owner cancelled a job whose attempt was over before: all that it waited for was to be stored."""
    is_owed = known.state is JobState.STORING and is_upload_pending(
        replace(known, requested_action=RequestedAction.NONE)
    )
    return known.requested_action is RequestedAction.CANCEL and is_owed


def _requeued(known: Known) -> bool:
    """The scheduler has started the attempt anew, and the history does not say so yet (Slurm requeues under the same
    id). Where it does not count its starts, a job that waits again although it ran tells it."""
    seen = known.observation
    if seen is None or seen.phase is Phase.UNKNOWN or known.state not in _WAITS or known.final is not None:
        return False
    if known.held and known.requested_action is RequestedAction.NONE:
        return False  # nothing starts it again; its end is judged
    anew = seen.restarts > known.requeues and (known.began or seen.phase is Phase.PENDING)
    back = known.state is not JobState.QUEUED and seen.phase is Phase.PENDING
    return (anew or back) and known.has_reported_all


def _requeue(known: Known) -> Verdict:
    why = why_requeued(known)
    final = known.evidence.final
    message = _REQUEUED
    asked = final if final is not None and final.goes_on is GoesOn.REQUEUE else None
    if why is not None:
        message += f": {asked.message if asked is not None else _WHY_REQUEUED.get(why) or describe_interruption(why)}"
    return Verdict(
        steps=((JobState.QUEUED, requeued_at(known)),),
        cause=Cause.REQUEUED,
        message=message,
        move=Move.REQUEUED,
        interruption=why,
        played=asked is not None and asked.played,
        lost_node=why is Interruption.NODE_FAILURE,
    )


def _phases(known: Known) -> list[tuple[JobState, float]]:
    """Live states that events and observation prove, with the earliest time of each, of the latest run."""
    found: dict[JobState, float] = {}
    seen = known.observation
    if seen is not None and seen.phase is not Phase.UNKNOWN:
        found[JobState.QUEUED] = seen.submitted_at or known.now
    for event in latest_run(known.evidence.events, known.requeues):
        state = _state_of(event)
        if state is not None:
            found.setdefault(JobState.QUEUED, event.at)
            found[state] = min(event.at, found.get(state, event.at))
    storing_at, over_at = found.pop(JobState.STORING, None), _learners_over_at(known)
    if storing_at is not None and over_at is not None:
        found[JobState.STORING] = max(storing_at, over_at)
    return sorted(found.items(), key=lambda item: list(JobState).index(item[0]))


def _learners_over_at(known: Known) -> float | None:
    """When the last learner ended (0 = not known of a job with a single one); None while one is at work or is still to
    begin. A node stores as soon as its own learners have ended."""
    ends: dict[object, float | None] = {}
    for event in known.evidence.events:
        if event.kind is EventKind.LEARNER_STARTED or event.fields.get("restarted"):
            ends[event.fields.get("learner_id")] = None
        elif event.kind is EventKind.LEARNER_ENDED:
            ends[event.fields.get("learner_id")] = event.at
    ended = [at for at in ends.values() if at is not None]
    if known.learners > 1 and (len(ended) < len(ends) or len(ended) < known.learners):
        return None
    return max(ended, default=0.0)


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


def _in_order(known: Known, *last: tuple[JobState, float]) -> tuple[tuple[JobState, float], ...]:
    """Only legal steps, with times that neither go backwards nor lie behind the end (clocks of nodes differ)."""
    steps: list[tuple[JobState, float]] = []
    current, clock = known.state, 0.0
    for state, at in (*_phases(known), *last):
        if is_legal(current, state):
            clock = max(clock, min(at, known.latest))
            steps.append((state, clock))
            current = state
    return tuple(steps)
