"""The Protocol of a clock, which tests replace."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall-clock and monotonic time in seconds."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        ...
