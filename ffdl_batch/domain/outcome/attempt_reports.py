"""What schedulers and controllers report about an attempt: tables of ends, and rules about the controllers' events.

Pure. How the reports are weighed against each other is decided in :mod:`ffdl_batch.domain.outcome.verdict`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import (
    LOST_CONTROLLER,
    Event,
    EventKind,
    Phase,
    released_learners,
)
from ffdl_batch.domain.outcome.observation import EndCause

SCHEDULER_ENDS: dict[EndCause, tuple[str, str, Interruption | None]] = {
    EndCause.TIMEOUT: ("C203", "the time limit was reached", Interruption.TIMEOUT),
    EndCause.OUT_OF_MEMORY: ("C202", "the learner needed more memory than it asked for", Interruption.FAILURE),
    EndCause.OUT_OF_STORAGE: ("C204", "the learner used more disk space than it asked for", Interruption.FAILURE),
    EndCause.KILLED_ITSELF: ("C201", "the learner killed its own controller", Interruption.FAILURE),
    EndCause.NODE_FAIL: ("S110", "a node of the allocation failed", Interruption.NODE_FAILURE),
    EndCause.PREEMPTED: ("S111", "the scheduler preempted the job", Interruption.PREEMPTION),
    EndCause.LAUNCH_FAILED: ("S101", "the scheduler could not start the job", None),
    EndCause.REVOKED: ("S112", "the scheduler revoked the job", None),
    EndCause.NO_IMAGE: ("S105", "no container could be started, because its image could not be had", None),
    EndCause.FAILURE: ("S106", "the job ended before its controller could say why", None),
    EndCause.SUCCESS: ("S106", "the scheduler reports success, but there is no proof that results were stored", None),
    EndCause.CANCELLED: ("S112", "the job was cancelled in the scheduler", None),
}
"""Error code, message and interruption for each end that a scheduler reports."""
UNEXPLAINED = (EndCause.FAILURE, EndCause.SUCCESS)
"""Ends for which the scheduler gives no reason."""
INTERRUPTION_CODES: dict[Interruption, str] = {
    Interruption.TIMEOUT: "C203",
    Interruption.PREEMPTION: "S111",
    Interruption.NODE_FAILURE: "S110",
    Interruption.STAGED: "000",
}
"""Error codes of interruptions for which no report has a more precise code."""
LEARNER_FAILURES = frozenset({"C201", "C202"})
"""Error codes of learners that failed by themselves."""
LOST_BEFORE_START = "S112"
"""Error code of an attempt that the scheduler lost before it started."""
CANCELLED_BY_OWNER = "cancelled by its owner"

_STORE_PHASES = (Phase.STORE_RESULTS.value, Phase.STORE_LOGS.value)
_OUTSIDE_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
"""Signals that also end controllers, so that a learner which died from one of them did not fail by itself."""


def find_interruption(text: str) -> Interruption | None:
    """Return the interruption of that name; None if there is none, as for "" or a name of a newer release."""
    return Interruption(text) if text in {why.value for why in Interruption} else None


def run_number(event: Event) -> int:
    """Return the number of the run that a claim begins, from 0; -1 for all other events."""
    restart = event.fields.get("restart", 0) if event.kind is EventKind.CLAIMED else -1
    return restart if isinstance(restart, int) else 0


def latest_run(events: Sequence[Event], requeues: int = 0) -> Sequence[Event]:
    """Return the events since the latest claim: all runs of an attempt write to the same files.

    Return none if the latest claim is of a run before number `requeues`.
    """
    claims = [event for event in events if event.kind is EventKind.CLAIMED]
    if requeues:
        restart = claims[-1].fields.get("restart", len(claims) - 1) if claims else -1
        if isinstance(restart, int) and restart < requeues:
            return ()
    return [event for event in events if event.at >= claims[-1].at] if len(claims) > 1 else events


def stored_learners(events: Sequence[Event]) -> set[object]:
    """Return the numbers of the learners that were stored after their latest start."""
    stored: set[object] = set()
    for event in events:
        if event.kind is EventKind.LEARNER_STARTED:
            stored.discard(event.fields.get("learner_id"))
        elif event.kind is EventKind.STORED:
            stored.add(event.fields.get("learner_id"))
    return stored


def is_all_stored(events: Sequence[Event], learners: int) -> bool:
    """Return whether every learner exited with status 0 by itself and was stored afterwards.

    For a learner that has left the attempt, only its files matter. The ends of services do not count. A learner that
    was asked for a checkpoint does not count as done: it also exits with status 0 if it has only saved one, and only
    the head controller knows the difference.
    """
    done = _services(events)
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED and not event.fields.get("service"):
            done.discard(learner)
        elif event.kind is EventKind.LEARNER_ENDED and _is_own_end(event) and event.fields.get("exit_code") == 0:
            done.add(learner)
    done |= released_learners(events)
    return set(range(1, learners + 1)) <= done & stored_learners(events)


def is_training_over(events: Sequence[Event], unreported: Mapping[int, int], learners: int) -> bool:
    """Return whether storing is all that is left to do.

    That is so if every learner, except services and learners that have left, exited with status 0 by itself, without a
    checkpoint request. It is also so if one learner failed by itself and storing had begun. Before storing, the failure
    may have the same cause as the end of the controllers. The same is true while the end of another learner is unknown.

    `unreported` has the exit statuses of learners whose end no controller reported.
    """
    ends: dict[object, Event] = {}
    started: set[object] = set()
    released, is_storing = released_learners(events), False
    left = {event.source for event in events if event.fields.get("learner_id") in released}
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED or event.fields.get("restarted"):
            started.add(learner)
            ends.pop(learner, None)
            is_storing = False
        elif event.kind is EventKind.LEARNER_ENDED:
            ends[learner] = event
        elif event.kind is EventKind.PHASE and event.fields.get("phase") in _STORE_PHASES:
            is_storing = is_storing or event.source not in left
    own = {learner: event for learner, event in ends.items() if _is_own_end(event)}
    done = {learner for learner, event in own.items() if event.fields.get("exit_code") == 0}
    done |= {learner for learner, status in unreported.items() if status == 0} | _services(events) | released
    if set(range(1, learners + 1)) <= done:
        return True
    are_all_known = started <= {*ends, *unreported}
    return is_storing and are_all_known and any(_is_own_failure(event) for event in own.values())


def _services(events: Sequence[Event]) -> set[object]:
    """Return the numbers of the services, which wait for the other learners without end."""
    return {event.fields.get("learner_id") for event in events if event.fields.get("service")}


def _is_own_end(event: Event) -> bool:
    """Return whether a learner ended without its controller's doing and without a checkpoint request."""
    return not event.fields.get("ended_by") and not event.fields.get("asked")


def _is_own_failure(event: Event) -> bool:
    """Return whether the learner failed, neither because of its node nor by a signal that ends controllers, too."""
    code, number = event.fields.get("exit_code"), event.fields.get("signal")
    if event.fields.get("code") in LOST_CONTROLLER:
        return False
    if event.fields.get("out_of_memory"):
        return True
    if isinstance(code, int):
        return code != 0 and code - 128 not in _OUTSIDE_SIGNALS
    return isinstance(number, int) and number not in _OUTSIDE_SIGNALS


def reached_states(events: Sequence[Event], all_events: Sequence[Event], learners: int) -> dict[JobState, float]:
    """Return the job states that the `events` of one run prove, with the earliest time of each.

    STORING begins when the last learner has ended, because each node stores as soon as its own learners have ended.
    `all_events` are those of all runs, for learners that a later run does not start again.
    """
    reached: dict[JobState, float] = {}
    for event in events:
        state = _state_of(event)
        if state is not None:
            reached.setdefault(JobState.QUEUED, event.at)
            reached[state] = min(event.at, reached.get(state, event.at))
    storing_at, ended_at = reached.pop(JobState.STORING, None), _last_end_at(all_events, learners)
    if storing_at is not None and ended_at is not None:
        reached[JobState.STORING] = max(storing_at, ended_at)
    return reached


def _last_end_at(events: Sequence[Event], learners: int) -> float | None:
    """Return when the last learner ended; None while a learner runs or has not started.

    Return 0 if the end of the only learner is not known.
    """
    ends: dict[object, float | None] = {}
    for event in events:
        if event.kind is EventKind.LEARNER_STARTED or event.fields.get("restarted"):
            ends[event.fields.get("learner_id")] = None
        elif event.kind is EventKind.LEARNER_ENDED:
            ends[event.fields.get("learner_id")] = event.at
    ended = [at for at in ends.values() if at is not None]
    if learners > 1 and (len(ended) < len(ends) or len(ended) < learners):
        return None
    return max(ended, default=0.0)


def _state_of(event: Event) -> JobState | None:
    """Return the job state that begins with the event."""
    if event.kind is EventKind.LEARNER_STARTED:
        return JobState.PROCESSING
    if event.kind is not EventKind.PHASE or event.fields.get("status") != "started":
        return None
    phase = event.fields.get("phase")
    if phase in (Phase.LOAD_MODEL.value, Phase.LOAD_DATA.value):
        return JobState.DOWNLOADING
    return JobState.PROCESSING if phase == Phase.LEARNER.value else JobState.STORING
