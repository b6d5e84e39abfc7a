"""Judge a job's current attempt by the facts about it: which states the job passes, and how the attempt ended. Pure.

The rules, in this order:

1. A job that the scheduler started again by itself returns to QUEUED. A final record of an earlier run does not apply
   to a later one.
2. If the head controller began the next attempt, the job continues with it at once, without waiting for the
   scheduler's end of this one.
3. COMPLETED needs two proofs: the attempt stored everything with success (final record, or the events of all
   learners), and the scheduler reports an end or has provably forgotten the job. A node that fails after everything
   was stored only causes a warning.
4. A cancel that the owner requested before STORING takes precedence over every other end. A halt request turns every
   end into HALTED that is not the training's own failure.
5. A training that is over is not run again, whatever ended its controllers before they had stored everything. The job
   stays in STORING while its upload is pending.
6. For all other ends the more precise report counts. Controllers know what the learners did, the scheduler knows why
   it ended a job: a learner that failed by itself has a reason, controllers that were terminated have none. They were
   cancelled only if the scheduler reports no other end.
7. `unknown` is never an end. States come from events at once; the scheduler's report may be slower.

Whether a next attempt follows is decided in :mod:`ffdl_batch.domain.outcome.continuation`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction, is_legal
from ffdl_batch.domain.outcome.attempt_reports import (
    CANCELLED_BY_OWNER,
    INTERRUPTION_CODES,
    LEARNER_FAILURES,
    LOST_BEFORE_START,
    SCHEDULER_ENDS,
    UNEXPLAINED,
    find_interruption,
    is_all_stored,
    is_training_over,
    latest_run,
    reached_states,
)
from ffdl_batch.domain.outcome.continuation import (
    Checkpoint,
    Interruption,
    describe,
    describe_interruption,
    halted_before,
)
from ffdl_batch.domain.outcome.controller_events import (
    LOST_CONTROLLER,
    LOST_NODE,
    FinalRecord,
    GoesOn,
    Outcome,
    is_final,
)
from ffdl_batch.domain.outcome.error_codes import Fault, Party
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.heartbeat_loss import abandon_reason
from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.host.fast_dataclass import dataclass


class VerdictKind(StrEnum):
    """What happened to the attempt, besides the states that the job passed."""

    NONE = ""
    REQUEUED = "requeued"
    """The scheduler started the attempt again."""
    CONTINUED = "continued"
    """The head controller began the next attempt."""
    UPLOAD_PENDING = "upload_pending"
    """The attempt and its training ended, but not everything is stored."""
    ENDED = "ended"
    """The attempt ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from the facts. All fields after `cause` are about the end of the attempt, or of one run of it."""

    steps: tuple[tuple[JobState, float], ...] = ()
    """The states that the job passes, in order, with times in seconds since the epoch. If the attempt ended, the last
    one is the job's end, provided that no next attempt follows."""
    kind: VerdictKind = VerdictKind.NONE
    cause: Cause = Cause.PROGRESS
    error_code: str = "000"
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    log_tail: tuple[str, ...] = ()
    """The last lines of the log of a learner that failed."""
    warning: str = ""
    interruption: Interruption | None = None
    """What interrupted the attempt; None if it completed, failed for good, or was cancelled."""
    is_simulated: bool = False
    """Whether a drill simulated the interruption."""
    is_decided: bool = False
    """Whether the head controller has already decided that no attempt follows; `message` gives its reason."""
    has_lost_node: bool = False
    """Whether a node failed."""
    is_held: bool = False
    """Whether the scheduler holds the job, so that the daemon has to cancel it there."""


_REQUEUED = "the scheduler restarted the job"
_CANCELLED = "cancelled in the scheduler"


def judge(facts: AttemptFacts) -> Verdict:
    """Return what follows from the facts; a verdict without steps if nothing new does."""
    if facts.state.is_terminal:
        return Verdict()
    final = facts.valid_record
    if final is not None and final.restart > facts.requeues and facts.is_requeuable:
        return _requeue(facts)  # nothing saw that run start; its end is judged next
    if final is not None and final.goes_on is GoesOn.SUCCESSOR:
        return _continue(facts, final)
    if facts.is_requeued:
        return _requeue(facts)
    if is_upload_pending(facts):
        stored_from = (JobState.STORING, facts.first_known_time(facts.last_sign_at))
        return Verdict(_legal_steps(facts, stored_from), VerdictKind.UPLOAD_PENDING)
    end = _find_end(facts)
    if end is None:
        return Verdict(_legal_steps(facts))
    state, at = end.steps[-1]
    steps = _legal_steps(facts, (state, at))
    if not steps or steps[-1][0] is not state:
        return Verdict(steps)
    if is_cancelled_late(facts):
        steps = (*steps[:-1], (state, max(facts.now, steps[-1][1])))
    log_tail = final.log_tail if final is not None and state is JobState.FAILED else ()
    return replace(end, steps=steps, log_tail=log_tail)


def is_cancelled_late(facts: AttemptFacts) -> bool:
    """Return whether the owner cancelled a job whose attempt had already ended and whose upload was pending."""
    if facts.requested_action is not RequestedAction.CANCEL or facts.state is not JobState.STORING:
        return False
    return is_upload_pending(replace(facts, requested_action=RequestedAction.NONE))


def is_upload_pending(facts: AttemptFacts) -> bool:
    """Return whether attempt and training are over but not everything is stored, because the controllers were killed
    before or could not store it.

    An attempt that was cancelled, by its owner or in the scheduler, stays cancelled.
    """
    seen, final = facts.observation, facts.valid_record
    if not facts.is_ended or not facts.is_storable or facts.uploaded_at is not None:
        return False
    if facts.requested_action is RequestedAction.CANCEL:
        return False
    if seen is not None and seen.end is EndCause.CANCELLED and facts.abandon_mark is None:
        return False
    if final is None and not facts.is_settled:
        return False
    if final is not None and final.stores_later:
        return True
    if final is not None and (final.stored or is_final(final) or final.goes_on is not GoesOn.NO):
        return False
    is_over = is_training_over(facts.events, facts.unreported_exits, facts.learners)
    return is_over and not is_all_stored(facts.events, facts.learners)


# ------------------------------------------------------------------------------------ states, requeues, continuations


def _legal_steps(facts: AttemptFacts, *last: tuple[JobState, float]) -> tuple[tuple[JobState, float], ...]:
    """Return the legal steps among the states that the latest run reached and `last`.

    Their times never decrease and are at most `latest_at`, because clocks of nodes differ.
    """
    reached = reached_states(latest_run(facts.events, facts.requeues), facts.events, facts.learners)
    seen = facts.observation
    if seen is not None and seen.phase is not Phase.UNKNOWN:
        reached[JobState.QUEUED] = seen.submitted_at or facts.now
    steps: list[tuple[JobState, float]] = []
    current, clock = facts.state, 0.0
    for state, at in (*((state, reached[state]) for state in JobState if state in reached), *last):
        if is_legal(current, state):
            clock = max(clock, min(at, facts.latest_at))
            steps.append((state, clock))
            current = state
    return tuple(steps)


def _requeue(facts: AttemptFacts) -> Verdict:
    """Return the verdict on a run that the scheduler has followed with another one."""
    why, final = facts.why_requeued, facts.final_record
    message, is_simulated = _REQUEUED, False
    if final is not None and final.goes_on is GoesOn.REQUEUE:
        message, is_simulated = f"{_REQUEUED}: {final.message}" if why is not None else _REQUEUED, final.simulated
    elif why is Interruption.PREEMPTION:  # Slurm handles a requeue by hand in the same way
        message = f"{_REQUEUED}: it was preempted or requeued"
    elif why is not None:
        message = f"{_REQUEUED}: {describe_interruption(why)}"
    return Verdict(
        ((JobState.QUEUED, facts.requeued_at),),
        VerdictKind.REQUEUED,
        Cause.REQUEUED,
        message=message,
        interruption=why,
        is_simulated=is_simulated,
        has_lost_node=why is Interruption.NODE_FAILURE,
    )


def _continue(facts: AttemptFacts, final: FinalRecord) -> Verdict:
    """Return the verdict on an attempt whose head controller has begun the next one."""
    return Verdict(
        _legal_steps(facts),
        VerdictKind.CONTINUED,
        Cause.REQUEUED,
        message=final.message,
        interruption=find_interruption(final.interruption) or Interruption.TIMEOUT,
        is_simulated=final.simulated,
    )


# --------------------------------------------------------------------------------------------------------------- ends


def _end(
    state: JobState, at: float, error_code: str = "000", message: str = "", why: Interruption | None = None
) -> Verdict:
    """Return a verdict whose only step is the end."""
    return Verdict(((state, at),), VerdictKind.ENDED, error_code=error_code, message=message, interruption=why)


def _find_end(facts: AttemptFacts) -> Verdict | None:
    """Return how the attempt ended, with the end as the only step.

    Return None if it has not ended, or if its final record may still become visible.
    """
    seen, final = facts.observation, facts.valid_record
    if not facts.is_ended:
        return _held(facts) if facts.is_held and facts.requested_action is RequestedAction.NONE else None
    if final is None and not facts.is_settled:
        return None
    at = facts.first_known_time(seen.ended_at if seen else None, final.at if final else None, facts.last_sign_at)
    uploaded_at = facts.uploaded_at if final is not None and final.stores_later else None
    if final is not None and final.outcome is Outcome.COMPLETED and (final.stored or uploaded_at is not None):
        end = _end(JobState.COMPLETED, max(final.at, uploaded_at or 0.0))
        return replace(end, exit_code=0, warning=_late_warning(facts))
    if final is None and is_all_stored(facts.events, facts.learners):
        warning = "everything was stored; the head controller left no final record"
        return replace(_end(JobState.COMPLETED, at), exit_code=0, warning=warning)
    if facts.requested_action is RequestedAction.CANCEL:
        return _end(JobState.CANCELLED, at, message=CANCELLED_BY_OWNER)
    end = _unless_abandoned(facts, _end_without_request(facts, at))
    if facts.requested_action is RequestedAction.HALT:
        end = _halted(facts, end)
    state, ended_at = end.steps[0]
    return replace(end, steps=((state, max(ended_at, uploaded_at or 0.0)),))


def _late_warning(facts: AttemptFacts) -> str:
    """Return what the scheduler reports against success; "" if it reports nothing else."""
    seen = facts.observation
    if seen is None or seen.end in (None, EndCause.SUCCESS):
        return ""
    if facts.uploaded_at is not None:
        return f"the scheduler reports {seen.native_state}; what was still to be stored was stored after that"
    return f"everything was stored; the scheduler reports {seen.native_state} afterwards"


def _held(facts: AttemptFacts) -> Verdict:
    """Return the end of a job that Slurm holds after its last permitted requeue (MaxBatchRequeue,
    JobHoldMaxRequeue)."""
    seen, final = facts.observation, facts.final_record
    assert seen is not None
    why = facts.why_requeued or Interruption.NODE_FAILURE
    recorded_at = final.at if final is not None and final.restart >= seen.restarts - 1 else None
    message = f"the scheduler holds the job and will not start it again ({seen.reason or seen.native_state})"
    end = _end(JobState.FAILED, facts.first_known_time(recorded_at), INTERRUPTION_CODES[why], message, why)
    return replace(end, has_lost_node=why is Interruption.NODE_FAILURE, is_held=True)


def _unless_abandoned(facts: AttemptFacts, end: Verdict) -> Verdict:
    """Return the end, or a node failure if the daemon had abandoned the attempt: then the cancel that the scheduler
    reports was the daemon's own. What learners or the head controller ended by themselves stays as it is."""
    mark, final = facts.abandon_mark, facts.valid_record
    if mark is None or end.interruption is Interruption.FAILURE or (final is not None and is_final(final)):
        return end
    why = Interruption.NODE_FAILURE
    lost = _end(JobState.FAILED, end.steps[0][1], INTERRUPTION_CODES[why], abandon_reason(mark), why)
    return replace(lost, has_lost_node=True)


def _halted(facts: AttemptFacts, end: Verdict) -> Verdict:
    """Return the end of an attempt whose owner had requested a halt."""
    if end.interruption is Interruption.FAILURE or (end.interruption is None and _is_failure(facts.valid_record)):
        return end
    is_simulated, why = facts.is_halt_simulated, Interruption.HALT
    state, at = end.steps[0]
    if state is JobState.HALTED:
        return replace(end, interruption=why, is_simulated=is_simulated)
    message = halted_before(facts.attempt)
    if facts.has_started_learners:
        progress = facts.valid_record.checkpoint if facts.valid_record is not None else Checkpoint()
        message = f"{describe_interruption(why, simulated=is_simulated)}; {describe(replace(progress, asked=True))}"
    return replace(_end(JobState.HALTED, at, message=message, why=why), is_simulated=is_simulated)


def _is_failure(final: FinalRecord | None) -> bool:
    """Return whether the record reports a failure of the training or its data, or work that is done but not stored."""
    if final is None:
        return False
    is_users = Fault(final.error_code, "").kind.caused_by is Party.USER
    return final.outcome is Outcome.COMPLETED or (final.outcome is Outcome.FAILED and is_users)


def _end_without_request(facts: AttemptFacts, at: float) -> Verdict:
    """Return the end as it would be if the owner had requested nothing."""
    seen, final = facts.observation, facts.valid_record
    cause = seen.end if seen is not None else None
    if seen is not None and cause is EndCause.OUT_OF_STORAGE:  # its controllers only saw their pod end
        return _ended_by_scheduler(facts, seen, cause, at, final)
    has_lost_controller = final is not None and final.error_code in LOST_CONTROLLER  # reported after a new start of it
    if seen is not None and cause is EndCause.KILLED_ITSELF and has_lost_controller:
        return _ended_by_scheduler(facts, seen, cause, at, None)
    if seen is not None and cause in (EndCause.TIMEOUT, EndCause.OUT_OF_MEMORY):
        is_reported = final is not None and (final.interruption or final.error_code == SCHEDULER_ENDS[cause][0])
        if not is_reported:
            return _ended_by_scheduler(facts, seen, cause, at, final)
    if final is None:
        return _ended_without_record(facts, at)
    if final.outcome is Outcome.CANCELLED:
        return _ended_from_outside(facts, final, at)
    if final.outcome in (Outcome.HALTED, Outcome.TIMED_OUT) or final.goes_on is not GoesOn.NO:
        return _interrupted(facts, final, at)
    return _failed(facts, final)


def _ended_without_record(facts: AttemptFacts, at: float) -> Verdict:
    seen = facts.observation
    why = Interruption.NODE_FAILURE
    if seen is None and facts.is_lost and not facts.has_begun:
        message = "the scheduler has lost the job, which it was to start"
        return _end(JobState.FAILED, at, LOST_BEFORE_START, message, why)
    if seen is None:
        message = "the scheduler has no record of the job any more, and its controllers left no result"
        return _end(JobState.FAILED, at, "S106", message, why if facts.has_begun else None)
    if seen.end is EndCause.CANCELLED:
        return _cancelled(facts, at, _CANCELLED)
    return _ended_by_scheduler(facts, seen, seen.end or EndCause.FAILURE, at, None)


def _cancelled(facts: AttemptFacts, at: float, message: str) -> Verdict:
    if facts.simulated_interruption is not None:
        return _simulated(facts.simulated_interruption, at)
    return _end(JobState.CANCELLED, at, message=message)


def _simulated(why: Interruption, at: float) -> Verdict:
    """Return the end of an attempt whose controllers a drill ended; what they and the scheduler report does not
    count."""
    message = describe_interruption(why, simulated=True)
    return replace(_end(JobState.FAILED, at, INTERRUPTION_CODES[why], message, why), is_simulated=True)


def _ended_from_outside(facts: AttemptFacts, final: FinalRecord, at: float) -> Verdict:
    """Return the end of an attempt whose controllers only saw a signal.

    It was cancelled if the scheduler reports that or reports no end. If the scheduler reports another end, the platform
    ended the controllers, and the job can continue: a node that shuts down terminates them, and so does Slurm (seen
    with 26.05) with a late message about an earlier run of the same job.
    """
    seen = facts.observation
    if seen is None or seen.end is None:
        return _cancelled(facts, at, final.message)
    if seen.end is EndCause.CANCELLED:
        return _cancelled(facts, at, _CANCELLED)
    end = _ended_by_scheduler(facts, seen, seen.end, at, None)
    if seen.end in UNEXPLAINED and not end.is_simulated:
        return replace(end, message=f"{final.message}; the scheduler reports {seen.native_state} and no reason")
    return end


def _interrupted(facts: AttemptFacts, final: FinalRecord, at: float) -> Verdict:
    """Return the end of an attempt whose head controller saw a warning, a time limit, or the owner's request."""
    why = find_interruption(final.interruption)
    if why is None and final.outcome is Outcome.TIMED_OUT:
        why = Interruption.TIMEOUT
    if why is None or why is Interruption.HALT:
        return _end(JobState.HALTED, final.at, final.error_code, final.message, Interruption.HALT)
    if facts.observation is not None and facts.observation.end is EndCause.CANCELLED:
        return _cancelled(facts, at, _CANCELLED)
    code = final.error_code if final.error_code != "000" else INTERRUPTION_CODES.get(why, "C201")
    return replace(
        _end(JobState.FAILED, final.at, code, final.message, why),
        exit_code=final.exit_code or None,
        exit_signal=final.exit_signal,
        is_simulated=final.simulated,
        is_decided=final.spent is not None and final.goes_on is GoesOn.NO,
    )


def _failed(facts: AttemptFacts, final: FinalRecord) -> Verdict:
    """Return the end of an attempt whose head controller recorded a failure."""
    if final.outcome is Outcome.COMPLETED:
        return _end(JobState.FAILED, final.at, "S303", final.message or "results or logs could not be stored")
    seen, why = facts.observation, None
    if final.error_code in LOST_CONTROLLER:
        if facts.simulated_interruption is not None:
            return _simulated(facts.simulated_interruption, final.at)
        why = Interruption.NODE_FAILURE
    elif final.error_code in LEARNER_FAILURES:
        why = Interruption.FAILURE
    is_node_fail = seen is not None and seen.end is EndCause.NODE_FAIL
    return replace(
        _end(JobState.FAILED, final.at, final.error_code, final.message, why),
        exit_code=final.exit_code,
        exit_signal=final.exit_signal,
        has_lost_node=why is Interruption.NODE_FAILURE and (is_node_fail or final.error_code in LOST_NODE),
    )


def _ended_by_scheduler(
    facts: AttemptFacts, seen: Observation, cause: EndCause, at: float, final: FinalRecord | None
) -> Verdict:
    """Return the end as the scheduler reports it, with the exit status of `final` if that is given."""
    code, message, why = SCHEDULER_ENDS[cause]
    is_unexplained = cause in UNEXPLAINED
    if is_unexplained and facts.has_begun and facts.simulated_interruption is not None:
        return _simulated(facts.simulated_interruption, at)
    if seen.reason and seen.reason.lower() not in ("none", message.lower()):
        message += f" ({seen.native_state}: {seen.reason})"
    if is_unexplained and facts.batch_log_tail:
        message += f"; its batch log ends with: {' '.join(line.strip() for line in facts.batch_log_tail[-3:])}"
    is_launch_failure = cause is EndCause.LAUNCH_FAILED
    if (is_unexplained and facts.has_begun) or (is_launch_failure and (facts.has_begun or seen.nodes)):
        why = Interruption.NODE_FAILURE
    is_node_lost = why is Interruption.NODE_FAILURE and (is_launch_failure or cause is EndCause.NODE_FAIL)
    return replace(
        _end(JobState.FAILED, at, code, message, why),
        exit_code=(final.exit_code if final else seen.exit_code) or None,
        exit_signal=(final.exit_signal if final else seen.exit_signal) or None,
        has_lost_node=is_node_lost,
    )
