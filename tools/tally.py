"""Counts what the tiers of a test run did; on CI a skipped test counts as a failure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What one tier did."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    cpu_s: float = 0
    """Seconds of a core, of processes that were waited for."""
    troubles: list[str] = field(default_factory=list)
    """Sentences for the end of the run."""

    def add(self, other: Tally) -> None:
        """Count another tier in."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.cpu_s += other.cpu_s
        self.troubles += other.troubles

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def refuse(sentence: str) -> Tally:
    """Report something that could not run: a failure on CI, elsewhere a note."""
    return Tally(failed=1 if on_ci() else 0, troubles=[sentence])


def on_ci() -> bool:
    """Whether this is the run that must leave nothing out."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")
