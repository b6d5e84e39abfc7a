"""Decides, at the end of an attempt, whether the training goes on, and arranges it as far as a head can."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Optional

from ffdl_batch.attempt.conclusion import Conclusion
from ffdl_batch.attempt.control_cell import CANCEL, HALT, Control, read_control
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.head.next_attempt import Measured, Refused, next_attempt, requeue, submit_next, was_begun
from ffdl_batch.domain.launch.launch_file import LaunchFile, Succession
from ffdl_batch.domain.outcome.continuation import PLAYED, Interruption, Spent, decide, describe, describe_interruption
from ffdl_batch.domain.outcome.controller_events import FinalRecord, GoesOn, Outcome

OURS = (Interruption.TIMEOUT.value, Interruption.PREEMPTION.value, Interruption.STAGED.value)
"""What a head goes on after alone; everything else is the platform's to judge."""
CODES = {Interruption.TIMEOUT.value: "C203", Interruption.PREEMPTION.value: "S111"}
"""Codes of chains that end; those of the verdict on a scheduler's ends."""


@dataclass(frozen=True)
class Arrangement:
    """How it goes on. `attempt` is the number of the one that follows; "" and None leave the conclusion's word.
    `played`: the interruption was a drill's."""

    interruption: str = ""
    played: bool = False
    goes_on: GoesOn = GoesOn.NO
    attempt: int = 0
    spent: Optional[Spent] = None
    message: str = ""
    error_code: str = ""


class Continuation:
    """The attempts of one job, as the head of this one sees them. `earlier`: what an earlier run's head left; this is
    number `run` of the attempt."""

    def __init__(self, launch: LaunchFile, native_id: str, earlier: Optional[FinalRecord] = None, run: int = 1) -> None:
        self.launch, self.native_id, self.earlier, self.run = launch, native_id, earlier, run

    @property
    def requested_action(self) -> str:
        """What the owner wants of this attempt: "" | halt | cancel."""
        return self._control().requested_action

    @property
    def played(self) -> Optional[Interruption]:
        """The interruption that a drill plays on this run of the attempt."""
        control = self._control()
        return PLAYED.get(control.drill) if control.run == self.run else None

    @property
    def plays_timeout(self) -> bool:
        """Whether a drill plays the time limit now."""
        return self.played is Interruption.TIMEOUT

    def _control(self) -> Control:
        """The cell; one that cannot be read says nothing."""
        try:
            return read_control(AttemptDir(self.launch.attempt_dir))
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {error}\n")
            return Control()

    @property
    def is_continued(self) -> bool:
        """Whether the next attempt's submission was begun: an earlier run of this one has said all it had to."""
        return was_begun(next_attempt(self.launch))

    def arrange(self, conclusion: Conclusion, gpu_seconds: float, limit_s: Optional[float]) -> Arrangement:
        """Decide, and submit the next attempt where that is what follows. Never raises."""
        if conclusion.interruption not in OURS:
            return self._halted(conclusion)
        why, succession = Interruption(conclusion.interruption), self.launch.succession
        kept = Arrangement(why.value, played=self.played is why)
        if succession is None:
            said = f"{describe_interruption(why, played=True)}; {describe(conclusion.checkpoint)}"
            return replace(kept, message=said) if kept.played else kept
        request = self.requested_action
        if request == HALT and conclusion.outcome is Outcome.HALTED:
            return replace(kept, interruption=Interruption.HALT.value, played=False)
        if request in (HALT, CANCEL):
            return kept
        before = self._spent_before(succession)
        decision = decide(why, succession.budget, before, conclusion.checkpoint, gpu_seconds, played=kept.played)
        kept = replace(kept, spent=decision.spent, message=decision.sentence)
        if not decision.goes_on:
            return replace(kept, error_code=CODES[why.value])
        return self._continue(kept, succession, conclusion, limit_s)

    def _halted(self, conclusion: Conclusion) -> Arrangement:
        """Nothing follows. A halt that a drill played is told as one."""
        played = conclusion.interruption == HALT and self.played is Interruption.HALT
        said = describe_interruption(Interruption.HALT)
        message = (
            conclusion.message.replace(said, describe_interruption(Interruption.HALT, played=True), 1) if played else ""
        )
        return Arrangement(conclusion.interruption, played=played, message=message)

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
        """Ask the scheduler to start this attempt anew; why it did not, "" if it will."""
        return requeue(self.launch.succession, self.native_id) if self.launch.succession else "nothing was planned"

    def _spent_before(self, succession: Succession) -> Spent:
        """What the chain had used up before this run: an earlier run's count is newer than the launch file."""
        earlier = self.earlier
        if earlier is None:
            return succession.spent
        if earlier.spent is not None:
            return earlier.spent
        return replace(succession.spent, gpu_seconds=succession.spent.gpu_seconds + earlier.gpu_seconds)
