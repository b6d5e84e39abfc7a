"""Trying again: which pause after which try, and an end to it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import Fault, Passing, Stopped

T = TypeVar("T")
LONGEST_PAUSE_S = 60.0


def pause_s(failed: int, first_s: float, share: float) -> float:
    """After so many failed tries in a row; `share` of 0 to 1 spreads those who failed at the same time."""
    return min(LONGEST_PAUSE_S, first_s * 2.0 ** (failed - 1)) * (0.75 + 0.5 * share)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a failure is borne with. `tell` hears of each try that is to come: why, in how many seconds,
    and why without the name."""

    tries: int
    first_s: float
    tell: Callable[[str, float, str], None]
    stop: threading.Event

    def bear(self, failed: int, why: Passing, key: str = "") -> None:
        """Pause after that many failures in a row. Raises Fault where that was the last try, and Stopped."""
        if failed >= self.tries:
            count = f" ({failed} tries)" if failed > 1 else ""
            raise Fault(FaultClass.NETWORK, f"{why}{count}", key) from why
        wait_s = pause_s(failed, self.first_s, random.random())  # noqa: S311 - no secret is made of it
        self.tell(f"{key}: {why}" if key else str(why), wait_s, str(why))
        if self.stop.wait(wait_s):
            raise Stopped from why

    def with_tries(self, action: Callable[[], T], key: str = "") -> T:
        """What the action returns at last. Raises Fault, Stopped and what else it raises."""
        failed = 0
        while True:
            if self.stop.is_set():
                raise Stopped
            try:
                return action()
            except Passing as why:
                failed += 1
                self.bear(failed, why, key)
