"""A clock that tests turn."""

from __future__ import annotations


class FakeClock:
    """Both clocks show the same time; it goes on only by `tick`."""

    def __init__(self, at: float = 1_700_000_000.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    def tick(self, seconds: float) -> None:
        self.at += seconds
