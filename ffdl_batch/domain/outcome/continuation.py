"""Whether another attempt follows an interrupted one: one rule for head controllers and the daemon.

Pure, and runs on Python 3.9. The head asks it when a time limit is near and the daemon may be down; the daemon asks
it for everything else. Each kind of interruption has a budget of its own, and a chain of attempts that makes no
progress ends.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Dict, FrozenSet, Optional

from ffdl_batch.host.fast_dataclass import dataclass


class Interruption(str, Enum):
    """What ended an attempt before its training was done."""

    HALT = "halt"
    TIMEOUT = "timeout"
    PREEMPTION = "preemption"
    NODE_FAILURE = "node_failure"
    FAILURE = "failure"
    STAGED = "staged"
    """It brought the data alone; the next one trains."""


class DrillEvent(str, Enum):
    """The events that ``ffdl drill`` can simulate, as its argument and in ``control.json``."""

    HALT = "halt"
    TIMEOUT = "timeout"
    PREEMPT = "preempt"
    NODE_FAIL = "node-fail"

    __str__ = str.__str__


@dataclass(frozen=True)
class Checkpoint:
    """What one attempt did about checkpoints. Times are epoch seconds by the shared file system's clock."""

    asked: bool = False
    """Whether the learners were asked for a checkpoint."""
    confirmed: bool = False
    """Whether they wrote one after the request and ended by themselves."""
    answered: bool = False
    """Whether they ended by themselves after the request, with or without a checkpoint."""
    took_s: Optional[float] = None
    """Seconds from the request to their end."""
    saved_at: Optional[float] = None
    """When this attempt wrote the newest file of `$CHECKPOINT_DIR` (None = it wrote none)."""
    newest: str = ""
    """The name of that file."""
    unseen: bool = False
    """Whether the controllers died before they could look, and the daemon cannot see the directory."""
    missing: str = ""
    """Numbers of the learners that did not confirm it although others did, separated by commas."""


@dataclass(frozen=True)
class Budget:
    """How often a job is continued after each kind of interruption."""

    timeouts: int = 50
    preemptions: int = 50
    node_failures: int = 5
    failures: int = 0
    gpu_seconds: Optional[float] = None
    """None = no limit."""
    saved_is_enough: bool = False
    """Whether, after a time limit, files count as progress that were saved without a request."""


@dataclass(frozen=True)
class Spent:
    """What a job has used of its retry budget since its submission or its last resume."""

    timeouts: int = 0
    preemptions: int = 0
    node_failures: int = 0
    failures: int = 0
    gpu_seconds: float = 0.0
    fruitless: int = 0
    """Number of latest attempts in a row that left no new checkpoint."""
    resizes: int = 0
    """How often a scaler changed the size. It has no limit."""


@dataclass(frozen=True)
class Decision:
    """Whether another attempt follows."""

    goes_on: bool
    spent: Spent
    sentence: str
    """The reason, for the history and the owner."""


_COUNTERS: Dict[Interruption, str] = {
    Interruption.TIMEOUT: "timeouts",
    Interruption.PREEMPTION: "preemptions",
    Interruption.NODE_FAILURE: "node_failures",
    Interruption.FAILURE: "failures",
}
_DESCRIPTIONS: Dict[Interruption, str] = {
    Interruption.HALT: "halted on request",
    Interruption.TIMEOUT: "the time limit was reached",
    Interruption.PREEMPTION: "the scheduler preempted the job",
    Interruption.NODE_FAILURE: "a node or controller failed",
    Interruption.FAILURE: "the learner failed",
    Interruption.STAGED: "the data are in place; the training itself follows",
}
_DRILL_DESCRIPTIONS: Dict[Interruption, str] = {
    Interruption.HALT: "a drill simulated a halt",
    Interruption.TIMEOUT: "a drill simulated a time limit",
    Interruption.PREEMPTION: "a drill simulated a preemption",
    Interruption.NODE_FAILURE: "a drill simulated a node failure",
}
SIMULATED: Dict[str, Interruption] = {
    DrillEvent.HALT: Interruption.HALT,
    DrillEvent.TIMEOUT: Interruption.TIMEOUT,
    DrillEvent.PREEMPT: Interruption.PREEMPTION,
    DrillEvent.NODE_FAIL: Interruption.NODE_FAILURE,
}
"""The interruption that each event of a drill causes."""
UNFIT_NODE = frozenset({"S107", "S108"})
"""Fault codes of a node that is not prepared for the job. What follows is tried on other nodes, or not at all."""
GPU_HOURS = "gpu_hours"
FRUITLESS_IN_A_ROW = 3
"""Attempts without a new checkpoint after which preemptions, node failures and failures end the chain."""


def describe_interruption(why: Interruption, *, simulated: bool = False) -> str:
    """The interruption in a sentence's words. `simulated`: a drill simulated it."""
    return _DRILL_DESCRIPTIONS.get(why, _DESCRIPTIONS[why]) if simulated else _DESCRIPTIONS[why]


def halted_before(attempt: int) -> str:
    """That the owner's halt came before the attempt of that number started, in a sentence's words."""
    return f"halted before {what_begins(attempt)} started"


def what_begins(attempt: int) -> str:
    """What an attempt of that number begins: the job, or that attempt of it."""
    return "it" if attempt <= 1 else f"attempt {attempt}"


def decide(
    why: Interruption,
    budget: Budget,
    spent: Spent,
    progress: Checkpoint,
    gpu_seconds: float,
    *,
    simulated: bool = False,
) -> Decision:
    """Return whether another attempt follows. `spent` excludes this attempt; `gpu_seconds` are this attempt's.

    An interruption that a drill `simulated` uses GPU time only, and never ends a job that would otherwise be continued.
    The sentence says if a real one would have.
    """
    if why is Interruption.STAGED:
        return Decision(True, spent, describe_interruption(why))
    after = _add(why, spent, progress, gpu_seconds, budget)
    said = f"{describe_interruption(why, simulated=simulated)}; {describe(progress)}"
    if why is Interruption.HALT:
        return Decision(False, after, said)
    used_up, capped, stuck = _exhausted(why, budget, after), _over_cap(budget, after), _stuck(why, after, progress)
    if simulated:
        after = replace(spent, gpu_seconds=after.gpu_seconds, fruitless=min(after.fruitless, spent.fruitless))
        if capped:
            return Decision(False, after, f"{said}; {capped}")
        ended = used_up or stuck
        return Decision(True, after, f"{said}; in earnest the chain would have ended: {ended}" if ended else said)
    if used_up or capped:
        return Decision(False, after, f"{said}; {used_up or capped}")
    if stuck:
        return Decision(False, after, f"{said}; {stuck}, so the chain ends here")
    return Decision(True, after, said)


def used_up(budget: Budget, spent: Spent) -> FrozenSet[str]:
    """The budgets that a chain has used up, by their names in the manifest's ``batch.retry``."""
    counters = {name for name in _COUNTERS.values() if getattr(spent, name) > getattr(budget, name)}
    return frozenset(counters | {GPU_HOURS} if _over_cap(budget, spent) else counters)


def _exhausted(why: Interruption, budget: Budget, after: Spent) -> str:
    """Which budget of interruptions is used up; "" = none."""
    counter = _COUNTERS[why]
    allowed = getattr(budget, counter)
    return f"batch.retry.{counter} allows {allowed}" if getattr(after, counter) > allowed else ""


def _over_cap(budget: Budget, after: Spent) -> str:
    """How the chain's GPU time is used up; "" = it is not."""
    if budget.gpu_seconds is None or after.gpu_seconds < budget.gpu_seconds:
        return ""
    used_h, cap_h = after.gpu_seconds / 3600, budget.gpu_seconds / 3600
    used = f"{used_h:.2f}" if used_h >= 1 else f"{used_h:.2g}"
    return f"{used} GPU-hours are used, batch.retry.gpu_hours is {cap_h:g}"


def _stuck(why: Interruption, after: Spent, progress: Checkpoint) -> str:
    """Return why another attempt would make no progress, as far as is known; "" = it may."""
    if after.fruitless <= _patience(why, progress):
        return ""
    if progress.saved_at is not None:  # the manifest does not say whether it can continue from it
        return "after a time limit a saved one counts only where the manifest gives batch.retry.timeouts"
    return "it would start from the same point again"


def is_progress(why: Interruption, budget: Budget, progress: Checkpoint) -> bool:
    """Return whether the next attempt can continue from what this one left, as far as is known.

    An interruption from outside is not the training's fault; its own budget limits it if the checkpoint is unknown.
    """
    if progress.confirmed:
        return True
    if progress.unseen:
        return why is not Interruption.TIMEOUT
    return progress.saved_at is not None and (why is not Interruption.TIMEOUT or budget.saved_is_enough)


def describe(progress: Checkpoint) -> str:
    """The checkpoint in words."""
    if progress.confirmed:
        took = f" after {progress.took_s:.1f} s" if progress.took_s is not None else ""
        return f"checkpoint confirmed{took}{f' (newest file: {progress.newest})' if progress.newest else ''}"
    if progress.missing:
        some = "s" if "," in progress.missing else ""
        return f"no checkpoint was confirmed by all learners: learner{some} {progress.missing} did not"
    if progress.saved_at is not None:
        return "no checkpoint was confirmed, but one was saved" if progress.asked else "a checkpoint was saved"
    if progress.unseen:
        return "whether a checkpoint was saved is not known"
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
