"""When the daemon abandons an attempt whose controllers are silent although the scheduler reports it as running.

Frozen processes, a driver that hangs or a node without its file system would hold the allocation until its time limit.
Two clocks must agree: the shared file system's clock measures how long a node was silent, and the daemon's monotonic
clock measures the time between two checks. So neither a clock that is set nor a host that slept causes an attempt to be
abandoned. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from enum import StrEnum

from ffdl_batch.domain.outcome.controller_events import AbandonMark
from ffdl_batch.domain.outcome.observation import Phase
from ffdl_batch.host.fast_dataclass import dataclass

WARNING_SHARE = 0.5
"""The owner is warned after this share of the time."""
FEWEST_BEATS = 6
"""At least this many heartbeats must be missing, whatever is configured."""
CHECKS = 3
"""Number of checks before a silence has lasted long enough."""
LONGEST_LOOK_S = 300.0
SILENCE = "nothing was heard of the controllers"
"""The beginning of every sentence about a silence."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The last heartbeat of one node's controller, by the file system's clock."""

    node: str
    at: float


class Step(StrEnum):
    """What follows for an attempt."""

    NONE = ""
    """There were heartbeats, or it is not known now whether there could be."""
    WARN = "warn"
    """Warn the owner."""
    HOLD = "hold"
    """Warn the owner, and wait while so many other controllers are silent too."""
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class Finding:
    """What follows from the silence of some nodes."""

    step: Step
    nodes: tuple[str, ...] = ()
    since: float = 0.0
    """Time of their last heartbeat."""
    at: float = 0.0
    """When the attempt is abandoned at the earliest."""

    @property
    def sentence(self) -> str:
        """The warning for the owner."""
        said = f"{SILENCE} on {', '.join(self.nodes)} since {moment(self.since)}"
        if self.step is Step.HOLD:
            return f"{said}, nor of most others: that looks like the file system, so the attempt is not abandoned"
        if self.step is Step.ABANDON:
            return f"{said}: the attempt is abandoned, and the scheduler is asked to cancel it"
        return f"{said}; the attempt will be abandoned at {moment(self.at)}"


def look_every_s(silent_s: float) -> float:
    """Seconds between two looks."""
    return min(LONGEST_LOOK_S, silent_s / CHECKS)


def patience_s(configured_s: float, heartbeat_s: float) -> float:
    """Return the seconds of silence after which an attempt is abandoned."""
    return max(configured_s, FEWEST_BEATS * heartbeat_s)


def quiet(beats: Collection[Beat], now: float, silent_s: float) -> tuple[Beat, ...]:
    """Return the beats of nodes that have been silent for long enough for a warning, sorted."""
    return tuple(
        sorted((b for b in beats if now - b.at >= silent_s * WARNING_SHARE), key=lambda beat: (beat.node, beat.at))
    )


def decide(
    silent: Sequence[Beat], phase: Phase, now: float, silent_s: float, unchanged_s: float | None, *, is_widespread: bool
) -> Finding:
    """What follows for an attempt. `silent` are its :func:`quiet` nodes, `phase` the scheduler's word of now.

    `unchanged_s`: how long ago the same silence was first seen (None = at this look); `is_widespread`: whether
    too many others are silent (:func:`is_widespread`).
    """
    if not silent or phase is not Phase.RUNNING:
        return Finding(Step.NONE)
    every_s = look_every_s(silent_s)
    over = [beat for beat in silent if now - beat.at >= silent_s]
    named = over or silent
    nodes, since = tuple(sorted({beat.node for beat in named})), max(beat.at for beat in named)
    if is_widespread:
        return Finding(Step.HOLD, nodes, since)
    if over and unchanged_s is not None and unchanged_s >= every_s:
        return Finding(Step.ABANDON, nodes, since, now)
    left_s = max(0.0, every_s - (unchanged_s or 0.0))
    return Finding(Step.WARN, nodes, since, max(min(beat.at for beat in silent) + silent_s, now + left_s))


def is_widespread(silent: Collection[Collection[Beat]], running: int) -> bool:
    """Whether so many of the `running` attempts of a backend are silent at once that their file system is, not their
    nodes: most of them, and several, on several nodes. `silent` has the silent nodes of each attempt."""
    nodes = {beat.node for beats in silent for beat in beats}
    return len(silent) > 1 and 2 * len(silent) > running and len(nodes) > 1


def abandon_reason(mark: AbandonMark) -> str:
    """How the attempt ended, in a sentence's words."""
    return f"{SILENCE} on {', '.join(mark.nodes)} since {moment(mark.since)}, and the attempt was abandoned"


def moment(at: float) -> str:
    """A time as the commands print it: local, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
