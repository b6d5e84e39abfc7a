"""The facts about a job's current attempt, from which :mod:`ffdl_batch.domain.outcome.verdict` judges it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.attempt_reports import find_interruption, latest_run, run_number
from ffdl_batch.domain.outcome.continuation import SIMULATED, Interruption
from ffdl_batch.domain.outcome.controller_events import (
    AbandonMark,
    Event,
    EventKind,
    FinalRecord,
    GoesOn,
    Outcome,
    is_final,
)
from ffdl_batch.domain.outcome.observation import Observation, Phase
from ffdl_batch.host.fast_dataclass import dataclass

_REQUEUABLE = (JobState.QUEUED, JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING)
WHOLE_SECOND_S = 1.0
"""Schedulers report times in whole seconds, rounded down; the true time may be up to this much later."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """All facts about a job's current attempt: its job's row, the scheduler's observation, and the attempt's files.

    Times are seconds since the epoch.
    """

    state: JobState
    """The job's state in the database."""
    requested_action: RequestedAction
    now: float
    attempt: int = 1
    """The number of the attempt."""
    learners: int = 1
    """The number of learners that the attempt started with. Some may have left since."""
    resizes: Sequence[tuple[float, int]] = ()
    """When that number changed in place, and to what number, oldest first."""
    requeues: int = 0
    """How often the history already records that the scheduler started this attempt again."""

    observation: Observation | None = None
    """The attempt as the scheduler lists it; None if the listing omits it."""
    is_forgotten: bool = False
    """Whether the scheduler and its accounting both answered in full and neither knows the attempt any more."""
    is_lost: bool = False
    """Whether the scheduler has forgotten the attempt although nothing ended it."""
    is_unkillable: bool = False
    """Whether the attempt was abandoned long ago and the scheduler still cannot end it (a process survives KILL)."""
    is_settled: bool = True
    """Whether the end was seen so long ago that a final record written before it would be visible by now."""
    is_silent: bool = True
    """Whether heartbeats have been missing for so long that no controller is left that could still write."""

    events: Sequence[Event] = ()
    """The events of all controllers, of all runs of the attempt."""
    final_record: FinalRecord | None = None
    """The head controller's final record, which may be about an earlier run; see `valid_record`."""
    last_heartbeat_at: float | None = None
    """When the newest heartbeat of a node controller was written."""
    drill_event: str = ""
    """The event that a drill simulates on the latest run, a key of ``SIMULATED`` in `continuation`; "" = none."""
    abandon_mark: AbandonMark | None = None
    """The mark of the daemon that abandoned the latest run because of missing heartbeats."""
    damaged_files: tuple[str, ...] = ()
    """A sentence for each damaged file."""

    unreported_exits: Mapping[int, int] = field(default_factory=dict)
    """Exit statuses of learners whose end no controller reported, by learner number. Read only of ended attempts."""
    unreported_exit_at: float | None = None
    """When the last of these learners ended, by the file system's clock."""
    uploaded_at: float | None = None
    """When the pending upload of the ended attempt was finished; None if it was not."""
    is_storable: bool = True
    """Whether what the ended attempt left can and should be stored from the outside."""
    batch_log_tail: tuple[str, ...] = ()
    """The last lines of the batch log of an attempt that ended without an event."""

    @property
    def is_ended(self) -> bool:
        """Whether the scheduler has ended the attempt, has forgotten it, or cannot end it."""
        has_end = self.observation is not None and self.observation.phase is Phase.ENDED
        return self.is_forgotten or self.is_unkillable or has_end

    @property
    def is_held(self) -> bool:
        """Whether the scheduler will not start the job again by itself (MaxBatchRequeue's hold)."""
        return self.observation is not None and self.observation.held_for_good

    @property
    def has_begun(self) -> bool:
        """Whether a controller of the attempt has written anything."""
        return bool(self.events) or self.final_record is not None

    @property
    def has_started_learners(self) -> bool:
        """Whether a learner of the attempt was started."""
        return any(event.kind is EventKind.LEARNER_STARTED for event in self.events)

    @property
    def has_reported_all(self) -> bool:
        """Whether the run before a requeue will report nothing more. Until that run's head controller is killed, it may
        still write why it ended."""
        final = self.final_record
        has_record = final is not None and final.restart >= self.requeues
        return has_record or self.is_silent or any(run_number(event) > self.requeues for event in self.events)

    @property
    def valid_record(self) -> FinalRecord | None:
        """The final record; None if there is none or if a later run has made it obsolete."""
        final = self.final_record
        if final is None or is_final(final):
            return final
        is_restarted = self.observation is not None and self.observation.restarts > final.restart
        return None if is_restarted or any(_is_claim_after(event, final) for event in self.events) else final

    @property
    def latest_at(self) -> float:
        """The latest time at which anything of the attempt can have happened, whatever the nodes' clocks show: the
        scheduler's end of it, or now if something was stored after that."""
        seen = self.observation
        if seen is None or seen.phase is not Phase.ENDED or seen.ended_at is None or self.uploaded_at is not None:
            return self.now
        return min(self.now, seen.ended_at + WHOLE_SECOND_S)

    @property
    def last_sign_at(self) -> float | None:
        """The time of the newest event or heartbeat, or of the end of a learner that outlived its controllers."""
        others = (at for at in (self.last_heartbeat_at, self.unreported_exit_at) if at is not None)
        return max([*(event.at for event in self.events), *others], default=None)

    def first_known_time(self, *times: float | None) -> float:
        """Return the first of these times that is known, but at most `latest_at`. Return now if none is known."""
        return min(next((at for at in times if at is not None), self.now), self.latest_at)

    @property
    def is_requeuable(self) -> bool:
        """Whether the job is in a state that a requeue can follow."""
        return self.state in _REQUEUABLE

    @property
    def is_requeued(self) -> bool:
        """Whether the scheduler has started the attempt again and the history does not record it yet.

        Slurm requeues under the same id. If the scheduler does not count its starts, a job that ran and is pending
        again was requeued.
        """
        seen = self.observation
        if seen is None or seen.phase is Phase.UNKNOWN or not self.is_requeuable:
            return False
        if self.valid_record is not None or not self.has_reported_all:
            return False
        if self.is_held and self.requested_action is RequestedAction.NONE:
            return False  # the scheduler will not start it; its end is judged
        is_pending = seen.phase is Phase.PENDING
        is_counted = seen.restarts > self.requeues and (self.has_begun or is_pending)
        return is_counted or (is_pending and self.state is not JobState.QUEUED)

    @property
    def why_requeued(self) -> Interruption | None:
        """Why the scheduler started the attempt again, as far as its files show; None if it had not begun."""
        final = self.final_record
        restarts = self.observation.restarts if self.observation is not None else 0
        if final is None or final.restart < restarts - 1:
            return Interruption.NODE_FAILURE if self.has_begun else None
        if final.restart > 0 and final.restart >= restarts:
            # The record is the later run's. A node that fails does not ask the learners for a checkpoint.
            latest = latest_run(self.events)
            was_asked = any(event.kind is EventKind.ASKED and event not in latest for event in self.events)
            return Interruption.PREEMPTION if was_asked else Interruption.NODE_FAILURE
        if final.goes_on is GoesOn.REQUEUE:
            return find_interruption(final.interruption) or Interruption.TIMEOUT
        # A head controller that was terminated had the time to record it: a preemption, or a requeue by hand.
        return Interruption.PREEMPTION if final.outcome is Outcome.CANCELLED else Interruption.NODE_FAILURE

    @property
    def requeued_at(self) -> float:
        """When the run ended that the scheduler started again.

        In order of preference: the scheduler's time of submission, which a requeue renews; the final record; the claim
        of the next run.
        """
        seen, final = self.observation, self.final_record
        is_latest = seen is not None and seen.restarts <= self.requeues + 1
        submitted_at = seen.submitted_at if seen is not None and is_latest else None
        began = [event.at for event in self.events if run_number(event) == self.requeues]
        began = began or [event.at for event in self.events]
        if submitted_at is not None and began and submitted_at <= began[0]:
            submitted_at = None  # the time of the first submission
        recorded_at = final.at if final is not None and final.restart <= self.requeues else None
        claimed_at = next((event.at for event in self.events if run_number(event) > self.requeues), None)
        return self.first_known_time(submitted_at, recorded_at, claimed_at)

    @property
    def head_waits_for(self) -> str:
        """What the head controller of the latest run waits for before it starts the learners; "" = nothing."""
        waits = [event for event in latest_run(self.events, self.requeues) if event.kind is EventKind.WAITING]
        return str(waits[-1].fields.get("message", "")) if waits and self.valid_record is None else ""

    @property
    def simulated_interruption(self) -> Interruption | None:
        """The interruption that a drill simulates by ending the controllers, which then cannot report it.

        A time limit is simulated by a warning, and the final record shows whether that was the end. A halt is
        simulated by the owner's request.
        """
        simulated = SIMULATED.get(self.drill_event)
        return None if simulated in (Interruption.TIMEOUT, Interruption.HALT) else simulated

    @property
    def is_halt_simulated(self) -> bool:
        """Whether a drill requested the halt."""
        return SIMULATED.get(self.drill_event) is Interruption.HALT


def _is_claim_after(event: Event, final: FinalRecord) -> bool:
    """Return whether the event claims the attempt for a later run than the record's."""
    if event.kind is not EventKind.CLAIMED:
        return False
    restart = event.fields.get("restart")
    return restart > final.restart if isinstance(restart, int) else event.at > final.at
