"""Whether the database takes what is written, as far as those who wrote last know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """Nothing could be written `since` then; `sentence` says why, and what to do."""

    since: float
    sentence: str


class Health:
    """Of one database. Safe in every thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._trouble: Trouble | None = None

    @property
    def trouble(self) -> Trouble | None:
        """None = what was written last was taken."""
        return self._trouble

    def failed(self, sentence: str) -> None:
        """A write was refused."""
        with self._lock:
            since = self._trouble.since if self._trouble is not None else self._now()
            self._trouble = Trouble(since, sentence)

    def succeeded(self) -> None:
        """Rows were written, durably. A transaction that wrote none proves nothing: a read-only disk takes it, too."""
        with self._lock:
            self._trouble = None
