"""How long schedulers take to answer. Safe in every thread."""

from __future__ import annotations

import copy
import threading

from ffdl_batch.domain.metrics.prometheus_text import Histogram

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Latencies:
    """By backend, and whether it answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], Histogram] = {}

    def observe(self, backend: str, seconds: float, *, answered: bool) -> None:
        """One question or request."""
        with self._lock:
            key = (backend, "answered" if answered else "failed")
            self._found.setdefault(key, Histogram(BOUNDS_S)).observe(max(0.0, seconds))

    def read(self) -> dict[tuple[str, str], Histogram]:
        """As of now."""
        with self._lock:
            return copy.deepcopy(self._found)
