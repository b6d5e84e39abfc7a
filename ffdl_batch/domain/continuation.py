"""Whether a training goes on after an attempt was interrupted: one rule for head controllers and the daemon.

Pure, and runs on Python 3.9. The head asks it when a time limit is near and the daemon may be down; the daemon asks
it for everything else. Each kind of interruption has a budget of its own, and a chain of attempts that makes no
progress ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Dict, Optional


class Interruption(str, Enum):
    """What ended an attempt before its training was done."""

    HALT = "halt"
    TIMEOUT = "timeout"
    PREEMPTION = "preemption"
    NODE_FAILURE = "node_failure"
    FAILURE = "failure"


@dataclass(frozen=True)
class Checkpoint:
    """What one attempt did about checkpoints. Times are epoch seconds by the shared file system's clock.

    `asked`: the learners were asked for one. `confirmed`: they wrote one after that and ended by themselves, `took_s`
    after they were asked. `answered`: they ended by themselves when asked, with or without one. `saved_at`: when the
    newest file of `$CHECKPOINT_DIR` that this attempt wrote was written (None = it wrote none); `newest` is its name.
    """

    asked: bool = False
    confirmed: bool = False
    answered: bool = False
    took_s: Optional[float] = None
    saved_at: Optional[float] = None
    newest: str = ""


@dataclass(frozen=True)
class Budget:
    """How often a chain of attempts goes on after each kind of interruption; GPU time in seconds (None = no cap).

    `saved_is_enough`: after a time limit, files that were saved without being asked for count as progress.
    """

    timeouts: int = 50
    preemptions: int = 50
    node_failures: int = 5
    failures: int = 0
    gpu_seconds: Optional[float] = None
    saved_is_enough: bool = False


@dataclass(frozen=True)
class Spent:
    """What a chain has used up, since its submission or the last resume. `fruitless`: attempts in a row, up to the
    last, that left no new checkpoint."""

    timeouts: int = 0
    preemptions: int = 0
    node_failures: int = 0
    failures: int = 0
    gpu_seconds: float = 0.0
    fruitless: int = 0


@dataclass(frozen=True)
class Decision:
    """Whether the training goes on. `sentence` says why, for the history and the owner."""

    goes_on: bool
    spent: Spent
    sentence: str


_COUNTERS: Dict[Interruption, str] = {
    Interruption.TIMEOUT: "timeouts",
    Interruption.PREEMPTION: "preemptions",
    Interruption.NODE_FAILURE: "node_failures",
    Interruption.FAILURE: "failures",
}
_WORDS: Dict[Interruption, str] = {
    Interruption.HALT: "halted on request",
    Interruption.TIMEOUT: "the time limit was reached",
    Interruption.PREEMPTION: "the scheduler preempted the job",
    Interruption.NODE_FAILURE: "a node or controller failed",
    Interruption.FAILURE: "the learner failed",
}
FRUITLESS_IN_A_ROW = 3
"""Attempts without a new checkpoint after which preemptions, node failures and failures end the chain."""


def words(why: Interruption) -> str:
    """The interruption in a sentence's words."""
    return _WORDS[why]


def decide(why: Interruption, budget: Budget, spent: Spent, progress: Checkpoint, gpu_seconds: float) -> Decision:
    """Whether the next attempt follows. `spent` is before this attempt, `gpu_seconds` what this attempt used."""
    after = _add(why, spent, progress, gpu_seconds, budget)
    said = f"{_WORDS[why]}; {describe(progress)}"
    if why is Interruption.HALT:
        return Decision(False, after, said)
    counter = _COUNTERS[why]
    allowed, used = getattr(budget, counter), getattr(after, counter)
    if used > allowed:
        return Decision(False, after, f"{said}; batch.retry.{counter} allows {allowed}")
    if budget.gpu_seconds is not None and after.gpu_seconds >= budget.gpu_seconds:
        used_h, cap_h = after.gpu_seconds / 3600, budget.gpu_seconds / 3600
        return Decision(False, after, f"{said}; {used_h:.2f} GPU-hours are used, batch.retry.gpu_hours is {cap_h:g}")
    patience = _patience(why, progress)
    if after.fruitless > patience:
        return Decision(False, after, f"{said}; it would start from the same point again, so the chain ends here")
    return Decision(True, after, said)


def is_progress(why: Interruption, budget: Budget, progress: Checkpoint) -> bool:
    """Whether the attempt left something that the next one can go on from."""
    if progress.confirmed:
        return True
    return progress.saved_at is not None and (why is not Interruption.TIMEOUT or budget.saved_is_enough)


def describe(progress: Checkpoint) -> str:
    """The checkpoint in words."""
    if progress.confirmed:
        took = f" after {progress.took_s:.1f} s" if progress.took_s is not None else ""
        return f"checkpoint confirmed{took}"
    if progress.saved_at is not None:
        return "no checkpoint was confirmed, but one was saved" if progress.asked else "a checkpoint was saved"
    return "no checkpoint was confirmed" if progress.asked else "no checkpoint was saved"


def _patience(why: Interruption, progress: Checkpoint) -> int:
    """How many fruitless attempts in a row are borne."""
    if why is not Interruption.TIMEOUT:
        return FRUITLESS_IN_A_ROW - 1
    # A learner that ended by itself when asked may just have been done; the next attempt shows it.
    return 1 if progress.answered else 0


def _add(why: Interruption, spent: Spent, progress: Checkpoint, gpu_seconds: float, budget: Budget) -> Spent:
    fruitless = 0 if is_progress(why, budget, progress) else spent.fruitless + 1
    after = replace(spent, gpu_seconds=spent.gpu_seconds + gpu_seconds, fruitless=fruitless)
    counter = _COUNTERS.get(why)
    return after if counter is None else replace(after, **{counter: getattr(after, counter) + 1})
