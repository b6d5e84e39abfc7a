"""Everything that is known about a job's current attempt, and what a record of it is still worth. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ffdl_batch.domain.continuation import Interruption
from ffdl_batch.domain.events import Event, EventKind, FinalRecord, GoesOn, Outcome
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.observation import Observation, Phase

LOST_CONTROLLER = frozenset({"S106", "S110"})
"""Fault codes of an attempt that lost a controller or a node."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the attempt's directory tells. `drill` is the interruption that the owner plays ("" = none)."""

    events: Sequence[Event] = ()
    final: FinalRecord | None = None
    drill: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known about a job's current attempt.

    `observation` is None when the scheduler's listing left the job out. `forgotten`: the scheduler *and* its
    accounting answered in full and neither knows the job any more. `settled`: the end was seen long enough ago
    that a final record written before it would be visible on the shared file system. `requeues` is how often the
    history already says that the scheduler started this attempt anew.
    """

    state: JobState
    wish: Wish
    observation: Observation | None
    evidence: Evidence
    now: float
    forgotten: bool = False
    settled: bool = True
    learners: int = 1
    requeues: int = 0

    @property
    def ended(self) -> bool:
        """Whether the scheduler is through with the job."""
        return self.forgotten or (self.observation is not None and self.observation.phase is Phase.ENDED)

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
    def began(self) -> bool:
        """Whether a controller of this attempt ever wrote something."""
        return bool(self.evidence.events) or self.evidence.final is not None

    @property
    def learners_began(self) -> bool:
        """Whether a learner of this attempt was started."""
        return any(event.kind is EventKind.LEARNER_STARTED for event in self.evidence.events)

    @property
    def drill(self) -> Interruption | None:
        """The interruption that a drill plays on this attempt."""
        return _DRILLS.get(self.evidence.drill)

    def _is_stale(self, final: FinalRecord) -> bool:
        if is_last_word(final):
            return False
        if self.observation is not None and self.observation.restarts > final.restart:
            return True
        return any(_is_later_claim(event, final) for event in self.evidence.events)


_DRILLS = {"preempt": Interruption.PREEMPTION, "node-fail": Interruption.NODE_FAILURE}


def is_last_word(final: FinalRecord) -> bool:
    """Whether a run that the scheduler starts after this record has nothing left to do.

    What ended by itself (success, failure, halt, time limit) is told and stays; what was ended from outside, lost a
    controller, or asked to be started anew goes on.
    """
    if final.goes_on is GoesOn.REQUEUE:
        return False
    return final.outcome is not Outcome.CANCELLED and final.error_code not in LOST_CONTROLLER


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
    """Whether every learner ended by itself with 0, unasked, and was stored after that.

    One that was asked for a checkpoint ends with 0 as well when it has only saved; only the head can tell.
    """
    ended: set[object] = set()
    stored: set[object] = set()
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED:
            ended.discard(learner)
            stored.discard(learner)
        elif event.kind is EventKind.LEARNER_ENDED and event.fields.get("exit_code") == 0:
            if not event.fields.get("ended_by") and not event.fields.get("asked"):
                ended.add(learner)
        elif event.kind is EventKind.STORED:
            stored.add(learner)
    return len(ended & stored) >= learners


def _is_later_claim(event: Event, final: FinalRecord) -> bool:
    if event.kind is not EventKind.CLAIMED:
        return False
    restart = event.fields.get("restart")
    return event.at > final.at or (isinstance(restart, int) and restart > final.restart)
