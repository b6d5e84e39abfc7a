"""How an attempt ended, and whether that was an interruption that a next attempt can follow. Pure.

Controllers know what the learners did, the scheduler knows why it ended a job. Where both speak, the more precise one
is believed: a controller that was told to end (TERM) has no reason to tell, a learner that failed by itself has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Checkpoint as Progress
from ffdl_batch.domain.outcome.continuation import Interruption, describe, describe_interruption, halted_before
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, GivenUp, GoesOn, Outcome
from ffdl_batch.domain.outcome.error_codes import Fault, Party
from ffdl_batch.domain.outcome.facts import (
    LOST_CONTROLLER,
    LOST_NODE,
    Known,
    all_stored,
    is_final,
    is_training_over,
    latest_run,
)
from ffdl_batch.domain.outcome.heartbeat_loss import why_given_up
from ffdl_batch.domain.outcome.observation import EndCause, Observation


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt. `state` is the job's if nothing follows.

    `interruption` None = it was done, failed for good, or was cancelled; `played`: a drill played it. `decided`: the
    head has already found that the chain ends here, and says so in `message`. `lost_node`: a node failed. `held`: the
    scheduler keeps the job, and somebody has to take it away.
    """

    state: JobState
    at: float
    error_code: str = "000"
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    warning: str = ""
    interruption: Interruption | None = None
    played: bool = False
    decided: bool = False
    lost_node: bool = False
    held: bool = False


_SCHEDULER_ENDS: dict[EndCause, tuple[str, str]] = {
    EndCause.TIMEOUT: ("C203", "the time limit was reached"),
    EndCause.OUT_OF_MEMORY: ("C202", "the learner needed more memory than it asked for"),
    EndCause.OUT_OF_STORAGE: ("C204", "the learner used more disk space than it asked for"),
    EndCause.KILLED_ITSELF: ("C201", "the learner killed its own controller"),
    EndCause.NODE_FAIL: ("S110", "a node of the allocation failed"),
    EndCause.PREEMPTED: ("S111", "the scheduler preempted the job"),
    EndCause.LAUNCH_FAILED: ("S101", "the scheduler could not start the job"),
    EndCause.REVOKED: ("S112", "the scheduler revoked the job"),
    EndCause.NO_IMAGE: ("S105", "no container could be started, because its image could not be had"),
    EndCause.FAILURE: ("S106", "the job ended before its controller could say why"),
    EndCause.SUCCESS: ("S106", "the scheduler reports success, but there is no proof that results were stored"),
    EndCause.CANCELLED: ("S112", "the job was cancelled in the scheduler"),
}
_INTERRUPTIONS: dict[EndCause, Interruption] = {
    EndCause.TIMEOUT: Interruption.TIMEOUT,
    EndCause.OUT_OF_MEMORY: Interruption.FAILURE,
    EndCause.OUT_OF_STORAGE: Interruption.FAILURE,
    EndCause.KILLED_ITSELF: Interruption.FAILURE,
    EndCause.NODE_FAIL: Interruption.NODE_FAILURE,
    EndCause.PREEMPTED: Interruption.PREEMPTION,
}
_CODES: dict[Interruption, str] = {
    Interruption.TIMEOUT: "C203",
    Interruption.PREEMPTION: "S111",
    Interruption.NODE_FAILURE: "S110",
    Interruption.STAGED: "000",
}
_OWN_FAILURES = frozenset({"C201", "C202"})
LOST = "S112"
"""The fault code of an attempt that the scheduler lost before it began."""
CANCELLED_BY_OWNER = "cancelled by its owner"


def ending_of(known: Known) -> Ending | None:
    """How the attempt ended; None while it has not, while its last word may still become visible, or while what it left
    is not stored."""
    seen, final = known.observation, known.final
    if not known.ended:
        return _held(known) if known.held and known.requested_action is RequestedAction.NONE else None
    if final is None and not known.settled:
        return None
    stored_at = known.evidence.uploaded_at or 0.0 if final is not None and final.stores_later else 0.0
    at = known.when(seen.ended_at if seen else None, final.at if final else None, known.last_sign)
    if final is not None and final.outcome is Outcome.COMPLETED and (final.stored or _stored_later(known, final)):
        return Ending(JobState.COMPLETED, max(final.at, stored_at), exit_code=0, warning=_late_warning(known))
    if final is None and all_stored(known.evidence.events, known.learners):
        warning = "everything was stored; the head controller left no final record"
        return Ending(JobState.COMPLETED, at, exit_code=0, warning=warning)
    if known.requested_action is RequestedAction.CANCEL:
        return Ending(JobState.CANCELLED, at, message=CANCELLED_BY_OWNER)
    if is_upload_pending(known):
        return None
    ending = _given_up(known, _of_itself(known, at))
    ending = _halted(known, ending) if known.requested_action is RequestedAction.HALT else ending
    return replace(ending, at=max(ending.at, stored_at))


def is_upload_pending(known: Known) -> bool:
    """Whether the attempt is over and so is its training, but nobody has stored what it left: its controllers were
    killed over that, or could not. Whoever stores it has the last word in the head's place. What somebody else
    cancelled stays cancelled.
    """
    seen, final = known.observation, known.final
    if (
        not known.ended
        or known.requested_action is RequestedAction.CANCEL
        or known.evidence.uploaded_at is not None
        or not known.evidence.storable
    ):
        return False
    if seen is not None and seen.end is EndCause.CANCELLED and known.evidence.given_up is None:
        return False
    if final is None and not known.settled:
        return False
    if final is not None and final.stores_later:
        return True
    if final is not None and (final.stored or is_final(final) or final.goes_on is not GoesOn.NO):
        return False
    events = known.evidence.events
    return is_training_over(events, known.evidence.found, known.learners) and not all_stored(events, known.learners)


def _stored_later(known: Known, final: FinalRecord) -> bool:
    return final.stores_later and known.evidence.uploaded_at is not None


def why_requeued(known: Known) -> Interruption | None:
    """Why the scheduler started the attempt anew, as far as its files tell; None = it had not begun."""
    final = known.evidence.final
    restarts = known.observation.restarts if known.observation is not None else 0
    if final is None or final.restart < restarts - 1:
        return Interruption.NODE_FAILURE if known.began else None
    if final.restart > 0 and final.restart >= restarts:  # the later run's record; the interrupted run's is gone
        return Interruption.PREEMPTION if _was_asked_before(known.evidence.events) else Interruption.NODE_FAILURE
    if final.goes_on is GoesOn.REQUEUE:
        return _named(final.interruption) or Interruption.TIMEOUT
    # A head that was told to end had the time to say so: a preemption, or a requeue by hand.
    return Interruption.PREEMPTION if final.outcome is Outcome.CANCELLED else Interruption.NODE_FAILURE


def _was_asked_before(events: Sequence[Event]) -> bool:
    """Whether the learners of an earlier run were asked to end: a node that fails does not ask."""
    latest = latest_run(events)
    return any(event.kind is EventKind.ASKED and event not in latest for event in events)


def _of_itself(known: Known, at: float) -> Ending:
    """The end as it would be had the owner requested nothing."""
    seen, final = known.observation, known.final
    ended = seen.end if seen is not None else None
    if seen is not None and ended is EndCause.OUT_OF_STORAGE:  # its controllers saw the end of their pod alone
        return _by_scheduler(known, seen, ended, at, final)
    is_lost = final is not None and final.error_code in LOST_CONTROLLER  # a controller that was started again says so
    if seen is not None and ended is EndCause.KILLED_ITSELF and is_lost:
        return _by_scheduler(known, seen, ended, at, None)
    if (
        seen is not None
        and ended in (EndCause.TIMEOUT, EndCause.OUT_OF_MEMORY)
        and (final is None or not (final.interruption or final.error_code == _SCHEDULER_ENDS[ended][0]))
    ):
        return _by_scheduler(known, seen, ended, at, final)
    if final is None:
        return _without_record(known, at)
    if final.outcome is Outcome.CANCELLED:
        return _from_outside(known, final, at)
    if final.outcome in (Outcome.HALTED, Outcome.TIMED_OUT) or final.goes_on is not GoesOn.NO:
        return _interrupted(known, final, at)
    return _failed(known, final)


def _given_up(known: Known, ending: Ending) -> Ending:
    """What becomes of `ending` where the platform had given the attempt up: the cancel that the scheduler reports was
    its own. What learners or their head ended of themselves stays that."""
    mark, final = known.evidence.given_up, known.final
    if mark is None or ending.interruption is Interruption.FAILURE or (final is not None and is_final(final)):
        return ending
    return _lost_in_silence(mark, ending.at)


def _lost_in_silence(mark: GivenUp, at: float) -> Ending:
    why = Interruption.NODE_FAILURE
    return Ending(JobState.FAILED, at, _CODES[why], why_given_up(mark), interruption=why, lost_node=True)


def _halted(known: Known, ending: Ending) -> Ending:
    """What becomes of `ending` when the owner had requested a halt."""
    own_failure = ending.interruption is Interruption.FAILURE or (ending.interruption is None and _is_failure(known))
    if own_failure:
        return ending
    played = known.plays_halt
    if ending.state is JobState.HALTED:
        return replace(ending, interruption=Interruption.HALT, played=played)
    message = halted_before(known.attempt)
    if known.learners_began:
        progress = known.final.checkpoint if known.final is not None else Progress()
        message = (
            f"{describe_interruption(Interruption.HALT, played=played)}; {describe(replace(progress, asked=True))}"
        )
    return Ending(JobState.HALTED, ending.at, message=message, interruption=Interruption.HALT, played=played)


def _is_failure(known: Known) -> bool:
    """Whether the head's last word is a failure of the training or of its data, or done work that was not stored."""
    final = known.final
    if final is None:
        return False
    by_user = Fault(final.error_code, "").kind.caused_by is Party.USER
    return final.outcome is Outcome.COMPLETED or (final.outcome is Outcome.FAILED and by_user)


def _held(known: Known) -> Ending:
    """Slurm starts a job anew only so often (MaxBatchRequeue), then it holds it (JobHoldMaxRequeue)."""
    seen = known.observation
    assert seen is not None
    why = why_requeued(known) or Interruption.NODE_FAILURE
    lost = why is Interruption.NODE_FAILURE
    reason = seen.reason or seen.native_state
    final = known.evidence.final
    return Ending(
        JobState.FAILED,
        known.when(final.at if final is not None and final.restart >= seen.restarts - 1 else None),
        _CODES[why],
        f"the scheduler holds the job and will not start it again ({reason})",
        interruption=why,
        lost_node=lost,
        held=True,
    )


def _without_record(known: Known, at: float) -> Ending:
    seen = known.observation
    lost = Interruption.NODE_FAILURE if known.began else None
    if seen is None and known.lost and not known.began:
        sentence = "the scheduler has lost the job, which it was to start"
        return Ending(JobState.FAILED, at, LOST, sentence, interruption=Interruption.NODE_FAILURE)
    if seen is None:
        sentence = "the scheduler has no record of the job any more, and its controllers left no result"
        return Ending(JobState.FAILED, at, "S106", sentence, interruption=lost)
    if seen.end is EndCause.CANCELLED:
        return _cancelled(known, at, "cancelled in the scheduler")
    return _by_scheduler(known, seen, seen.end or EndCause.FAILURE, at, None)


def _cancelled(known: Known, at: float, message: str) -> Ending:
    if known.drill is not None:
        return _played(known.drill, at)
    return Ending(JobState.CANCELLED, at, message=message)


def _played(why: Interruption, at: float) -> Ending:
    """A drill ended the controllers: what they and the scheduler saw of that explains nothing."""
    return Ending(
        JobState.FAILED, at, _CODES[why], describe_interruption(why, played=True), interruption=why, played=True
    )


def _from_outside(known: Known, final: FinalRecord, at: float) -> Ending:
    """The controllers were told to end and saw no more than the signal; the scheduler may know the reason."""
    seen = known.observation
    platforms = (
        EndCause.NODE_FAIL, EndCause.PREEMPTED, EndCause.REVOKED, EndCause.LAUNCH_FAILED, EndCause.NO_IMAGE,
    )  # fmt: skip
    if seen is not None and seen.end in platforms:
        return _by_scheduler(known, seen, seen.end, at, None)
    cancelled = seen is not None and seen.end is EndCause.CANCELLED
    return _cancelled(known, at, "cancelled in the scheduler" if cancelled else final.message or "ended from outside")


def _interrupted(known: Known, final: FinalRecord, at: float) -> Ending:
    """The head saw a warning, a time limit, or the owner's request."""
    why = _named(final.interruption)
    if why is None and final.outcome is Outcome.TIMED_OUT:
        why = Interruption.TIMEOUT
    if why in (None, Interruption.HALT):
        return Ending(JobState.HALTED, final.at, final.error_code, final.message, interruption=Interruption.HALT)
    if known.observation is not None and known.observation.end is EndCause.CANCELLED:
        return _cancelled(known, at, "cancelled in the scheduler")
    assert why is not None
    code = final.error_code if final.error_code != "000" else _CODES.get(why, "C201")
    return Ending(
        JobState.FAILED,
        final.at,
        code,
        final.message,
        final.exit_code or None,
        final.exit_signal,
        interruption=why,
        played=final.played,
        decided=final.spent is not None and final.goes_on is GoesOn.NO,
    )


def _failed(known: Known, final: FinalRecord) -> Ending:
    if final.outcome is Outcome.COMPLETED:  # success, but not everything was stored
        return Ending(JobState.FAILED, final.at, "S303", final.message or "results or logs could not be stored")
    why: Interruption | None = None
    if final.error_code in LOST_CONTROLLER:
        if known.drill is not None:
            return _played(known.drill, final.at)
        why = Interruption.NODE_FAILURE
    elif final.error_code in _OWN_FAILURES:
        why = Interruption.FAILURE
    seen = known.observation
    node_failed = seen is not None and seen.end is EndCause.NODE_FAIL
    return Ending(
        JobState.FAILED,
        final.at,
        final.error_code,
        final.message,
        final.exit_code,
        final.exit_signal,
        interruption=why,
        lost_node=why is Interruption.NODE_FAILURE and (node_failed or final.error_code in LOST_NODE),
    )


def _by_scheduler(known: Known, seen: Observation, end: EndCause, at: float, final: FinalRecord | None) -> Ending:
    code, sentence = _SCHEDULER_ENDS[end]
    unexplained = end in (EndCause.FAILURE, EndCause.SUCCESS) and known.began
    if unexplained and known.drill is not None:
        return _played(known.drill, at)
    if seen.reason and seen.reason.lower() not in ("none", sentence.lower()):
        sentence += f" ({seen.native_state}: {seen.reason})"
    if end in (EndCause.FAILURE, EndCause.SUCCESS) and known.evidence.printed:
        sentence += f"; its batch log ends with: {' '.join(line.strip() for line in known.evidence.printed[-3:])}"
    exit_code = final.exit_code if final else seen.exit_code
    exit_signal = final.exit_signal if final else seen.exit_signal
    why = _INTERRUPTIONS.get(end)
    if unexplained or (end is EndCause.LAUNCH_FAILED and (known.began or seen.nodes)):
        why = Interruption.NODE_FAILURE
    lost = end in (EndCause.NODE_FAIL, EndCause.LAUNCH_FAILED) and why is Interruption.NODE_FAILURE
    return Ending(
        JobState.FAILED, at, code, sentence, exit_code or None, exit_signal or None, interruption=why, lost_node=lost
    )


def _late_warning(known: Known) -> str:
    """What the scheduler has to say against success; where that was before everything was stored, somebody did so in
    the controllers' place."""
    seen = known.observation
    if seen is None or seen.end in (None, EndCause.SUCCESS):
        return ""
    if known.evidence.uploaded_at is not None:
        return f"the scheduler reports {seen.native_state}; what was still to be stored was stored after that"
    return f"everything was stored; the scheduler reports {seen.native_state} afterwards"


def _named(text: str) -> Interruption | None:
    return Interruption(text) if text in {why.value for why in Interruption} else None
