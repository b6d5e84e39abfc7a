"""Whether a learner still gives signs of life, by what it writes and what it computes."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Deque, Optional, Sequence, Tuple

IDLE_SHARE = 0.01
"""Of one core: who uses less does nothing. Threads of libraries that wait wake up now and then."""
RHYTHM_SIGNS, RHYTHM = 10, 10.0
"""A learner that computes is only called hung where it has shown a rhythm: so many signs, and now a silence so many
times as long as the longest one between them. A collective operation that never ends looks like hard work."""
REMEMBERED = 64
"""How many samples of processor time are kept of the time in which it must be idle."""

Shown = Tuple[Optional[Tuple[int, int]], ...]
"""Of each file that a learner writes while it is well: size and time of change (ns), None where it is not there."""


@dataclass(frozen=True)
class Silence:
    """For `silent_s` seconds nothing was written. `idle`: nor was anything computed."""

    silent_s: float
    idle: bool


class Pulse:
    """Of one learner. Times are of any clock that does not go back, in seconds."""

    def __init__(self, hang_s: float) -> None:
        """`hang_s` is the shortest silence that counts."""
        self._hang_s = hang_s
        self._shown: Optional[Shown] = None
        self._since, self._longest, self._signs = 0.0, 0.0, 0
        self._told = False
        self._work: Deque[Tuple[float, float]] = deque()

    def feel(self, now: float, shown: Shown, cpu_s: Optional[float]) -> Optional[Silence]:
        """What a sample says: a silence that has become too long, once each; None where all is well."""
        self._remember(now, cpu_s)
        if shown != self._shown:
            if self._shown is not None:
                self._longest, self._signs = max(self._longest, now - self._since), self._signs + 1
            self._shown, self._since, self._told = shown, now, False
            return None
        silent_s = now - self._since
        if self._told or silent_s < self._hang_s:
            return None
        idle = self._is_idle(now)
        if not idle and (self._signs < RHYTHM_SIGNS or silent_s < RHYTHM * self._longest):
            return None
        self._told = True
        return Silence(silent_s, idle)

    def _remember(self, now: float, cpu_s: Optional[float]) -> None:
        """A sample a moment after the last one is as good as it. The oldest one that stays is of `hang_s` ago."""
        if cpu_s is None:
            self._work.clear()
            return
        if not self._work or now - self._work[-1][0] >= self._hang_s / REMEMBERED:
            self._work.append((now, cpu_s))
        else:
            self._work[-1] = (self._work[-1][0], cpu_s)
        while len(self._work) > 1 and self._work[1][0] <= now - self._hang_s:
            self._work.popleft()

    def _is_idle(self, now: float) -> bool:
        """Whether it computed next to nothing in the last `hang_s`; not, where nobody knows."""
        if not self._work or self._work[0][0] > now - self._hang_s:
            return False
        return self._work[-1][1] - self._work[0][1] < IDLE_SHARE * self._hang_s


def shown_by(paths: Sequence[str]) -> Shown:
    """What the files at `paths` are like now. Raises OSError where the file system does not say."""
    return tuple(_look(path) for path in paths)


def _look(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns
