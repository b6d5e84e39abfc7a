"""Everything that is known about a job's current attempt, and what a record of it is still worth. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import PLAYED, UNFIT_NODE, Interruption
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, GivenUp, GoesOn, Outcome
from ffdl_batch.domain.outcome.controller_events import Phase as ControllerPhase
from ffdl_batch.domain.outcome.observation import Observation, Phase

LOST_NODE = UNFIT_NODE | {"S110"}
"""Fault codes of an attempt that lost a node, or came to one that was not fit for it."""
LOST_CONTROLLER = LOST_NODE | {"S106"}
"""These, and that of an attempt that lost a controller."""
_STORE_PHASES = (ControllerPhase.STORE_RESULTS.value, ControllerPhase.STORE_LOGS.value)
_OUTSIDE_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
WHOLE_SECOND_S = 1.0
"""Schedulers tell times in whole seconds, cut off: what they say may be so much later."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the attempt's directory tells. `drill` is the event that the owner plays on the latest run ("" = none,
    else a key of :data:`ffdl_batch.domain.outcome.continuation.PLAYED`), `heard` when the newest heartbeat was written.

    `given_up` is the platform's mark that it has given the latest run up (None = it has not).

    `found` has the status of each learner whose end no controller saw, by its number, and `found_at` is when the last
    of these ended, by the file system's clock; `paid` is when everything was stored that the attempt owed when it ended
    (None = it was not). `storable` is whether what it left is somewhere from where it can be stored, and is to be. They
    are read of attempts alone that have ended."""

    events: Sequence[Event] = ()
    final: FinalRecord | None = None
    drill: str = ""
    last_heartbeat_at: float | None = None
    found: Mapping[int, int] = field(default_factory=dict)
    found_at: float | None = None
    uploaded_at: float | None = None
    storable: bool = True
    given_up: GivenUp | None = None
    damaged: tuple[str, ...] = ()
    """A sentence for each damaged file."""
    printed: tuple[str, ...] = ()
    """The last lines of the batch log of an attempt that ended without an event."""


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known about a job's current attempt.

    `observation` is None when the scheduler's listing left the job out. `forgotten`: the scheduler *and* its
    accounting answered in full and neither knows the job any more. `settled`: the end was seen long enough ago
    that a final record written before it would be visible on the shared file system. `requeues` is how often the
    history already says that the scheduler started this attempt anew. `quiet`: no controller of the attempt was heard
    of for so long that none is left that may still have something to say. `unending`: it was given up long ago, and the
    scheduler still cannot end it (a process that not even KILL ends): nothing of it is waited for. `lost`: it is
    forgotten, though nobody ended it. `attempt` is its number.
    """

    state: JobState
    requested_action: RequestedAction
    observation: Observation | None
    evidence: Evidence
    now: float
    forgotten: bool = False
    settled: bool = True
    learners: int = 1
    requeues: int = 0
    quiet: bool = True
    unending: bool = False
    lost: bool = False
    attempt: int = 1

    @property
    def ended(self) -> bool:
        """Whether the scheduler is through with the job, or cannot be."""
        return (
            self.forgotten or self.unending or (self.observation is not None and self.observation.phase is Phase.ENDED)
        )

    @property
    def held(self) -> bool:
        """Whether the scheduler will not start the job again by itself (MaxBatchRequeue's hold)."""
        return self.observation is not None and self.observation.held_for_good

    @property
    def final(self) -> FinalRecord | None:
        """The head's last word, unless it is about a run after which there was another."""
        final = self.evidence.final
        return None if final is None or self._is_stale(final) else final

    @property
    def has_reported_all(self) -> bool:
        """Whether nothing more is to be heard of the run that the scheduler ended to start the attempt anew: until it
        is killed, its head may still write why."""
        final = self.evidence.final
        told = final is not None and final.restart >= self.requeues
        return told or self.quiet or any(_run_of(event) > self.requeues for event in self.evidence.events)

    @property
    def latest(self) -> float:
        """Nothing of the attempt happened after this, whatever a node's clock says: now, or the scheduler's end, unless
        something was stored after that."""
        seen = self.observation
        if (
            seen is None
            or seen.phase is not Phase.ENDED
            or seen.ended_at is None
            or self.evidence.uploaded_at is not None
        ):
            return self.now
        return min(self.now, seen.ended_at + WHOLE_SECOND_S)

    @property
    def last_sign(self) -> float | None:
        """When the attempt was last heard of: its newest event or heartbeat, or the end of a learner that outlived its
        controllers."""
        beside = (at for at in (self.evidence.last_heartbeat_at, self.evidence.found_at) if at is not None)
        return max([*(event.at for event in self.evidence.events), *beside], default=None)

    def when(self, *told: float | None) -> float:
        """The first of these times that is known, and not later than it can be; where none is, now: when we noticed."""
        return min(next((at for at in told if at is not None), self.now), self.latest)

    @property
    def began(self) -> bool:
        """Whether a controller of this attempt ever wrote something."""
        return bool(self.evidence.events) or self.evidence.final is not None

    @property
    def waits_for(self) -> str:
        """What the head of the latest run says that it waits for before it starts the learners ("" = nothing)."""
        told = [event for event in latest_run(self.evidence.events, self.requeues) if event.kind is EventKind.WAITING]
        return str(told[-1].fields.get("message", "")) if told and self.final is None else ""

    @property
    def learners_began(self) -> bool:
        """Whether a learner of this attempt was started."""
        return any(event.kind is EventKind.LEARNER_STARTED for event in self.evidence.events)

    @property
    def drill(self) -> Interruption | None:
        """The interruption that a drill plays by ending the controllers, which cannot tell then.

        A time limit is played by a warning, and the head says in its final record whether that was the end. A halt is
        played by the owner's request.
        """
        played = PLAYED.get(self.evidence.drill)
        return None if played in (Interruption.TIMEOUT, Interruption.HALT) else played

    @property
    def plays_halt(self) -> bool:
        """Whether the request to halt is a drill's."""
        return PLAYED.get(self.evidence.drill) is Interruption.HALT

    def _is_stale(self, final: FinalRecord) -> bool:
        if is_final(final):
            return False
        if self.observation is not None and self.observation.restarts > final.restart:
            return True
        return any(_is_later_claim(event, final) for event in self.evidence.events)


def is_final(final: FinalRecord) -> bool:
    """Whether a run that the scheduler starts after this record has nothing left to do.

    What ended by itself (success, failure, halt, time limit) is told and stays; what was ended from outside, lost a
    controller, or asked to be started anew goes on.
    """
    if final.goes_on is GoesOn.REQUEUE:
        return False
    return final.outcome is not Outcome.CANCELLED and final.error_code not in LOST_CONTROLLER


def requeued_at(known: Known) -> float:
    """When the run that the scheduler started anew had ended: by the scheduler, which takes a requeue for a submission;
    by the head's last word; at the latest when the next run claimed the attempt."""
    seen, final, events = known.observation, known.evidence.final, known.evidence.events
    counted = seen is not None and seen.restarts <= known.requeues + 1
    again = seen.submitted_at if seen is not None and counted else None
    began = [event.at for event in events if _run_of(event) == known.requeues] or [event.at for event in events]
    if again is not None and began and again <= began[0]:
        again = None  # when the attempt was submitted first
    told = final.at if final is not None and final.restart <= known.requeues else None
    return known.when(again, told, next((e.at for e in events if _run_of(e) > known.requeues), None))


def _run_of(event: Event) -> int:
    """The run that a claim begins, counted from 0; -1 for all other events."""
    restart = event.fields.get("restart", 0) if event.kind is EventKind.CLAIMED else -1
    return restart if isinstance(restart, int) else 0


def latest_run(events: Sequence[Event], requeues: int = 0) -> Sequence[Event]:
    """Events since the head claimed the attempt last (a job that is started anew writes on in the same files).

    None, where that is a run before the one that `requeues` speaks of.
    """
    claims = [e for e in events if e.kind is EventKind.CLAIMED]
    if requeues:
        restart = claims[-1].fields.get("restart", len(claims) - 1) if claims else -1
        if isinstance(restart, int) and restart < requeues:
            return ()
    return [e for e in events if e.at >= claims[-1].at] if len(claims) > 1 else events


def all_stored(events: Sequence[Event], learners: int) -> bool:
    """Whether every learner ended by itself with 0, unasked, and was stored after that. How a service ended says
    nothing.

    One that was asked for a checkpoint ends with 0 as well when it has only saved; only the head can tell.
    """
    ended = services_of(events)
    stored: set[object] = set()
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED:
            if not event.fields.get("service"):
                ended.discard(learner)
            stored.discard(learner)
        elif event.kind is EventKind.LEARNER_ENDED and event.fields.get("exit_code") == 0:
            if not event.fields.get("ended_by") and not event.fields.get("asked"):
                ended.add(learner)
        elif event.kind is EventKind.STORED:
            stored.add(learner)
    return len(ended & stored) >= learners


def services_of(events: Sequence[Event]) -> set[object]:
    """The learners that wait for the others for ever."""
    return {event.fields.get("learner_id") for event in events if event.fields.get("service")}


def is_training_over(events: Sequence[Event], found: Mapping[int, int], learners: int) -> bool:
    """Whether nothing but storing is left to do: every learner but the services ended of itself with 0, unasked; or one
    failed of itself, and what they left was being stored (before that, what ended the controllers may have ended it;
    and where the end of another one is not known, what ended that one's controller).
    """
    endings: dict[object, Event] = {}
    begun: set[object] = set()
    storing = False
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED or event.fields.get("restarted"):
            begun.add(learner)
            endings.pop(learner, None)
            storing = False
        elif event.kind is EventKind.LEARNER_ENDED:
            endings[learner] = event
        elif event.kind is EventKind.PHASE and event.fields.get("phase") in _STORE_PHASES:
            storing = True
    own = {n: e for n, e in endings.items() if not e.fields.get("ended_by") and not e.fields.get("asked")}
    done = {n for n, e in own.items() if e.fields.get("exit_code") == 0}
    done |= {learner for learner, status in found.items() if status == 0} | services_of(events)
    all_seen = begun <= {*endings, *found}
    return len(done) >= learners or (storing and all_seen and any(_failed_of_itself(event) for event in own.values()))


def _failed_of_itself(event: Event) -> bool:
    """Whether the learner failed, and not by its node, or by a signal that ends controllers too."""
    code, number = event.fields.get("exit_code"), event.fields.get("signal")
    if event.fields.get("code") in LOST_CONTROLLER:
        return False
    if event.fields.get("out_of_memory"):
        return True
    if isinstance(code, int):
        return code != 0 and code - 128 not in _OUTSIDE_SIGNALS
    return isinstance(number, int) and number not in _OUTSIDE_SIGNALS


def _is_later_claim(event: Event, final: FinalRecord) -> bool:
    if event.kind is not EventKind.CLAIMED:
        return False
    restart = event.fields.get("restart")
    return restart > final.restart if isinstance(restart, int) else event.at > final.at
