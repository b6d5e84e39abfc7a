"""A limit on the CPU time of one regular expression.

Python's matching engine looks for signals while it backtracks, so a handler that raises ends it. CPU time, not the
clock's: a busy node makes no expression slow. Only the main thread can use it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LIMIT_S = 0.2
"""A match that takes longer is ended, before twice as long."""


class TooSlow(Exception):
    """An expression took longer than LIMIT_S with one text."""


class _Watch:
    matching = False
    ticks = 0


@contextmanager
def watched() -> Iterator[None]:
    """Within it :func:`match` has its limit. One timer for all: one for each would cost more than most matches do."""
    before = signal.signal(signal.SIGVTALRM, _tick)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """`pattern.match(text)`. Raises :class:`TooSlow`."""
    _Watch.ticks = 0
    _Watch.matching = True
    try:
        return pattern.match(text)
    finally:
        _Watch.matching = False


def _tick(_signal: int, _frame: FrameType | None) -> None:
    _Watch.ticks += 1
    if _Watch.matching and _Watch.ticks > 1:
        _Watch.matching = False
        raise TooSlow
