"""The accounting, left alone for a while after it did not answer.

A slurmdbd that hangs must not hold up each job that is looked for; and that it is away says nothing about slurmctld.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ffdl_batch.domain.breaker import Circuit, growing_pause
from ffdl_batch.ports.scheduler import NotNow, SchedulerUnreachable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0


class Accounting:
    """Whether sacct is run. Safe in every thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` tells the time of a monotonic clock, in seconds."""
        self._now = now
        self._lock = threading.Lock()
        self._circuit = Circuit()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """For one question. SchedulerUnreachable from inside comes out as NotNow, which is also raised where it is left
        alone."""
        with self._lock:
            self._circuit, permit = self._circuit.ask(self._now())
            cause = self._circuit.cause
        if permit is None:
            raise NotNow(f"the accounting did not answer a moment ago: {cause}")
        try:
            yield
        except SchedulerUnreachable as error:
            spread = secrets.randbelow(1000) / 1000
            with self._lock:
                pause = growing_pause(self._circuit.failures + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S, spread)
                now = self._now()
                self._circuit = self._circuit.failed(permit, str(error), now, now + pause)
            raise NotNow(str(error)) from error
        except BaseException:
            with self._lock:
                self._circuit = self._circuit.returned(permit)
            raise
        with self._lock:
            self._circuit = self._circuit.succeeded(permit)
