"""Decide at the end of an attempt whether the job is continued, and submit the next attempt if a head can do that."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Optional

from ffdl_batch.attempt.conclusion import Conclusion
from ffdl_batch.attempt.control_cell import CANCEL, HALT, Control, read_control
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.head.next_attempt import Measured, Refused, next_attempt, requeue, submit_next, was_begun
from ffdl_batch.domain.launch.launch_file import LaunchFile, Succession
from ffdl_batch.domain.outcome.continuation import (
    SIMULATED,
    Interruption,
    Spent,
    decide,
    describe,
    describe_interruption,
)
from ffdl_batch.domain.outcome.controller_events import FinalRecord, GoesOn, Outcome
from ffdl_batch.host.fast_dataclass import dataclass

CONTINUED_BY_HEAD = (Interruption.TIMEOUT.value, Interruption.PREEMPTION.value, Interruption.STAGED.value)
"""Interruptions after which a head continues the job. The daemon decides about all others."""
CODES = {Interruption.TIMEOUT.value: "C203", Interruption.PREEMPTION.value: "S111"}
"""Error codes if the job is not continued, the same as for an end that the scheduler reports."""


@dataclass(frozen=True)
class Arrangement:
    """How the job is continued after the attempt."""

    interruption: str = ""
    simulated: bool = False
    """Whether a drill simulated the interruption."""
    goes_on: GoesOn = GoesOn.NO
    attempt: int = 0
    """Number of the next attempt."""
    spent: Optional[Spent] = None
    message: str = ""
    """"" means the message of the conclusion."""
    error_code: str = ""
    """"" means the code of the conclusion."""


class Continuation:
    """Decides for the head of one attempt how the job is continued."""

    def __init__(self, launch: LaunchFile, native_id: str, earlier: Optional[FinalRecord] = None, run: int = 1) -> None:
        """`earlier` is the final record of an earlier run; this is run number `run` of the attempt."""
        self.launch, self.native_id, self.earlier, self.run = launch, native_id, earlier, run

    @property
    def requested_action(self) -> str:
        """Return the owner's request for this attempt: "", halt or cancel."""
        return self._control().requested_action

    @property
    def simulated(self) -> Optional[Interruption]:
        """Return the interruption that a drill simulates on this run of the attempt."""
        control = self._control()
        return SIMULATED.get(control.drill) if control.run == self.run else None

    @property
    def plays_timeout(self) -> bool:
        """Return whether a drill simulates the time limit now."""
        return self.simulated is Interruption.TIMEOUT

    @property
    def _shrinks(self) -> bool:
        """Return whether the daemon has requested that learners leave. If the request cannot be read, return True,
        because the template of the next attempt still has the old size."""
        try:
            return self.launch.shrinks and read_control(AttemptDir(self.launch.attempt_dir)).learners is not None
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {error}\n")
            return True

    def _control(self) -> Control:
        """Return the control cell; an empty one if it cannot be read."""
        try:
            return read_control(AttemptDir(self.launch.attempt_dir))
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {error}\n")
            return Control()

    @property
    def is_continued(self) -> bool:
        """Return whether the submission of the next attempt has begun.

        Then an earlier run has finished this attempt.
        """
        return was_begun(next_attempt(self.launch))

    def arrange(self, conclusion: Conclusion, gpu_seconds: float, limit_s: Optional[float]) -> Arrangement:
        """Decide how the job is continued, and submit the next attempt if that is the decision. Never raises."""
        if conclusion.interruption not in CONTINUED_BY_HEAD:
            return self._halted(conclusion)
        why, succession = Interruption(conclusion.interruption), self.launch.succession
        kept = Arrangement(why.value, simulated=self.simulated is why)
        if succession is None:
            message = f"{describe_interruption(why, simulated=True)}; {describe(conclusion.checkpoint)}"
            return replace(kept, message=message) if kept.simulated else kept
        request = self.requested_action
        if request == HALT and conclusion.outcome is Outcome.HALTED:
            return replace(kept, interruption=Interruption.HALT.value, simulated=False)
        if request in (HALT, CANCEL):
            return kept
        if self._shrinks:  # only the daemon knows when nodes were released, and so the GPU time
            return replace(kept, goes_on=GoesOn.PLATFORM, attempt=self.launch.attempt + 1)
        before = self._spent_before(succession)
        decision = decide(why, succession.budget, before, conclusion.checkpoint, gpu_seconds, simulated=kept.simulated)
        kept = replace(kept, spent=decision.spent, message=decision.sentence)
        if not decision.goes_on:
            return replace(kept, error_code=CODES[why.value])
        return self._continue(kept, succession, conclusion, limit_s)

    def _halted(self, conclusion: Conclusion) -> Arrangement:
        """Return an arrangement without a next attempt. Its message names the drill if a drill simulated the halt."""
        simulated = conclusion.interruption == HALT and self.simulated is Interruption.HALT
        plain, drilled = (describe_interruption(Interruption.HALT, simulated=by_drill) for by_drill in (False, True))
        message = conclusion.message.replace(plain, drilled, 1) if simulated else ""
        return Arrangement(conclusion.interruption, simulated=simulated, message=message)

    def _continue(
        self, kept: Arrangement, succession: Succession, conclusion: Conclusion, limit_s: Optional[float]
    ) -> Arrangement:
        number = self.launch.attempt + 1
        in_place = succession.requeue and kept.interruption != Interruption.STAGED.value
        if in_place and not self.is_continued:
            return replace(kept, goes_on=GoesOn.REQUEUE, attempt=self.launch.attempt)
        took_s = conclusion.checkpoint.took_s if conclusion.checkpoint.answered else None
        try:
            confirmed = conclusion.checkpoint.newest if conclusion.checkpoint.confirmed else ""
            measured = Measured(kept.spent or Spent(), took_s, limit_s, confirmed)
            submit_next(self.launch, succession, self.native_id, measured)
        except Refused as refused:
            sys.stderr.write(f"ffdl-controller: {refused}\n")
            return replace(kept, goes_on=GoesOn.PLATFORM, attempt=number, message=f"{kept.message}; {refused}")
        return replace(kept, goes_on=GoesOn.SUCCESSOR, attempt=number)

    def requeue(self) -> str:
        """Ask the scheduler to start this attempt again. Return why it refuses; "" if it does not."""
        return requeue(self.launch.succession, self.native_id) if self.launch.succession else "nothing was planned"

    def _spent_before(self, succession: Succession) -> Spent:
        """Return what the job had used of its retry budget before this run. An earlier run of this attempt knows more
        than the launch file."""
        earlier = self.earlier
        if earlier is None:
            return succession.spent
        if earlier.spent is not None:
            return earlier.spent
        return replace(succession.spent, gpu_seconds=succession.spent.gpu_seconds + earlier.gpu_seconds)
