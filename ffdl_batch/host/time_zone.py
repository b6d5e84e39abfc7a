"""Read the rules of this process's time zone as UTC offsets.

Standard library, Python 3.9.
"""

from __future__ import annotations

import time

UtcOffsets = tuple[tuple[int, int], ...]
"""The offset from UTC, in seconds, from each moment on, in seconds since the epoch; the first also counts before."""
_STEP_S = 7 * 86_400
_STEPS = 52 * 5
"""Five years: local times after that are read with the last offset."""


def read_utc_offsets(now: float) -> UtcOffsets:
    """Return the offsets of the zone that TZ or /etc/localtime names (tzset(3)), from `now` on."""
    at = int(now)
    found = [(at, _offset(at))]
    for end in range(at + _STEP_S, at + _STEPS * _STEP_S, _STEP_S):
        if _offset(end) != found[-1][1]:
            found.append((_change(end - _STEP_S, end), _offset(end)))
    return tuple(found)


def _change(before: int, after: int) -> int:
    """Return the first second with the offset of `after`, by bisection."""
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle) == _offset(after):
            after = middle
        else:
            before = middle
    return after


def _offset(at: int) -> int:
    return time.localtime(at).tm_gmtoff
