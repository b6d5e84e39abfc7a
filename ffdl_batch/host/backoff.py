"""Calculate the pause before a retry. Pure: no clock, no sleeping."""

from __future__ import annotations

_SPREAD = 0.25


def growing_pause(failures: int, first_s: float, longest_s: float, random: float = 0.5) -> float:
    """Return the seconds to pause after so many failures in a row (from 1): doubling from `first_s` to `longest_s`.

    `random` is a number in [0, 1) that spreads the pause by ±25 %, so that processes that failed together do not try
    again together. The default does not spread it.
    """
    pause = min(longest_s, first_s * 2.0 ** min(failures - 1, 16))
    return pause * (1.0 - _SPREAD + 2.0 * _SPREAD * random)
