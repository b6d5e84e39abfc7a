"""A limit on the CPU time of one regular expression.

Python's matching engine looks for signals while it backtracks, so a handler that raises ends it. CPU time, not the
clock's: a busy node makes no expression slow. Only the main thread can use it.
"""

from __future__ import annotations

import re
import signal
from types import FrameType

LIMIT_S = 0.2
_SIGNAL, _TIMER = signal.SIGVTALRM, signal.ITIMER_VIRTUAL


class TooSlow(Exception):
    """An expression took longer than LIMIT_S with one text."""


class _Watch:
    armed = False


def match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """`pattern.match(text)`. Raises :class:`TooSlow`."""
    if signal.getsignal(_SIGNAL) is not _over:
        signal.signal(_SIGNAL, _over)
    try:
        _Watch.armed = True
        signal.setitimer(_TIMER, LIMIT_S)
        found = pattern.match(text)
        _Watch.armed = False
    finally:
        _Watch.armed = False
        signal.setitimer(_TIMER, 0)
    return found


def _over(_signal: int, _frame: FrameType | None) -> None:
    if _Watch.armed:
        _Watch.armed = False
        raise TooSlow
