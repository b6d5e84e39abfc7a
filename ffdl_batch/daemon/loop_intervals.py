"""Computes when the loops do their next step. Pure: no clock, no sleep, no thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.fast_dataclass import dataclass

LONGEST_S = 30.0
QUIET_LONGEST_S = 10.0
QUIET_AFTER = 15
"""Number of full polls without a change after which the interval grows."""
GENTLE = 20.0
"""After a full poll of d seconds, the next one comes at the earliest 20·d seconds later: at most 5 % of the scheduler's
time."""
QUIET_GENTLE = 100.0
"""The same factor after many polls without a change: about 1 % of a core and of the scheduler's time."""


@dataclass(slots=True)
class Backoff:
    """Growing pauses after failures, from `first_s` to `longest_s`.

    `random` gives numbers in [0, 1).
    """

    random: Callable[[], float]
    first_s: float = 1.0
    longest_s: float = LONGEST_S
    failures: int = 0

    def failed(self) -> float:
        """Return the seconds to pause after one more failure."""
        self.failures += 1
        return growing_pause(self.failures, self.first_s, self.longest_s, self.random())

    def succeeded(self) -> None:
        """Reset the pause."""
        self.failures = 0


@dataclass(slots=True)
class DeployPace:
    """The deployer's interval: no pause after progress, else one second, growing to five."""

    first_s: float = 1.0
    longest_s: float = 5.0
    pause_s: float = 1.0

    def after(self, done: int) -> float:
        """Return the seconds until the next step."""
        if done:
            self.pause_s = self.first_s
            return 0.0
        pause, self.pause_s = self.pause_s, min(self.longest_s, self.pause_s * 1.5)
        return pause

    def poke(self) -> None:
        """Reset the interval, because a job was submitted or cancelled."""
        self.pause_s = self.first_s


@dataclass(slots=True)
class WatchPace:
    """Decides when the watcher reads only doorbells, and when it also polls the schedulers. Times are monotonic.

    The schedulers are polled every `base_s` while jobs change; less often after many polls without a change (up to
    QUIET_LONGEST_S, because controllers ring a doorbell), and less often if a poll takes long (up to LONGEST_S).
    """

    base_s: float
    doorbell_s: float
    interval_s: float = field(init=False)
    next_full: float = 0.0
    earliest: float = 0.0
    quiet: int = 0

    def __post_init__(self) -> None:
        self.interval_s = self.base_s

    def is_full_due(self, now: float) -> bool:
        """Return whether the next step polls the schedulers."""
        return now >= self.next_full

    def after(self, *, full: bool, changed: int, took_s: float, now: float) -> float:
        """Return the seconds until the next step."""
        if changed:
            self.quiet, self.interval_s = 0, self.base_s
            self.next_full = min(self.next_full, now + self.base_s)
        if full:
            self._plan_full(changed, took_s, now)
        return max(0.01, min(self.doorbell_s, self.next_full - now))

    def poke(self, now: float) -> None:
        """Poll as soon as the last poll's cost allows, because a job was submitted, deployed or cancelled."""
        self.quiet, self.interval_s = 0, self.base_s
        self.next_full = min(self.next_full, max(now, self.earliest))

    def _plan_full(self, changed: int, took_s: float, now: float) -> None:
        if not changed:
            self.quiet += 1
            if self.quiet > QUIET_AFTER:
                self.interval_s = min(max(QUIET_LONGEST_S, self.base_s), self.interval_s * 1.25)
        gentle = min(LONGEST_S, GENTLE * took_s)
        patient = min(LONGEST_S, QUIET_GENTLE * took_s) if self.quiet > QUIET_AFTER else gentle
        self.next_full = now + max(self.interval_s, patient)
        self.earliest = now + max(self.base_s / 4, gentle)
