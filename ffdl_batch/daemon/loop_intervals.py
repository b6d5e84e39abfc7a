"""When the loops do their next step. Values in, values out: no clock, no sleeping, no thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ffdl_batch.host.backoff import growing_pause

LONGEST_S = 30.0
QUIET_LONGEST_S = 10.0
QUIET_AFTER = 15
"""Full looks without a change after which the next ones come slower."""
GENTLE = 20.0
"""A full look that took d seconds is followed by at least 20·d seconds of peace: at most 5 % of the scheduler."""
QUIET_GENTLE = 100.0
"""The same after many looks without news, where the next one comes by itself: about 1 % of a core and the scheduler."""


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
        """Seconds to pause after one more failure."""
        self.failures += 1
        return growing_pause(self.failures, self.first_s, self.longest_s, self.random())

    def succeeded(self) -> None:
        """Forget the failures."""
        self.failures = 0


@dataclass(slots=True)
class DeployPace:
    """Progress asks for the next step at once; without any, a second, growing to five."""

    first_s: float = 1.0
    longest_s: float = 5.0
    pause_s: float = 1.0

    def after(self, done: int) -> float:
        """Seconds until the next step."""
        if done:
            self.pause_s = self.first_s
            return 0.0
        pause, self.pause_s = self.pause_s, min(self.longest_s, self.pause_s * 1.5)
        return pause

    def poke(self) -> None:
        """Somebody submitted or cancelled."""
        self.pause_s = self.first_s


@dataclass(slots=True)
class WatchPace:
    """When to listen for doorbells only and when to ask the schedulers too. Times are a monotonic clock's seconds.

    The schedulers are asked every `base_s` while things change; slower after many looks without news (up to
    QUIET_LONGEST_S: what matters rings a doorbell), and slower where a look costs them much (up to LONGEST_S).
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
        """Whether the next step asks the schedulers."""
        return now >= self.next_full

    def after(self, *, full: bool, changed: int, took_s: float, now: float) -> float:
        """Seconds until the next step."""
        if changed:
            self.quiet, self.interval_s = 0, self.base_s
            self.next_full = min(self.next_full, now + self.base_s)
        if full:
            self._plan_full(changed, took_s, now)
        return max(0.01, min(self.doorbell_s, self.next_full - now))

    def poke(self, now: float) -> None:
        """A job was submitted, deployed or cancelled: look as soon as the last look's peace is over."""
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
