"""The machine's clocks, and a clock that excludes the time for which this process is stopped.

A stopped process (SIGSTOP, ``scontrol suspend``) can neither answer nor read a control cell, so that time counts
neither for grace periods nor for fencing.
"""

from __future__ import annotations

import threading
import time

STOPPED_S = 5.0
"""If the clock was not read for longer than this, the process is assumed to have been stopped."""
BEAT_S = 1.0


class RunningTime:
    """Counts the seconds that this process ran.

    Between :meth:`begin` and :meth:`finish` a thread reads the clock once a second, so that waiting for a file system
    that hangs does not look like a stop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = time.monotonic()
        self._lost = 0.0
        self._done = threading.Event()

    def now(self) -> float:
        """Return the time in seconds. Compare it only with other times of this clock."""
        with self._lock:
            at = time.monotonic()
            if at - self._seen > STOPPED_S:
                self._lost += at - self._seen
            self._seen = at
            return at - self._lost

    def begin(self) -> None:
        """Start the thread. Call this after the learners were started, which are forked."""
        self.now()
        threading.Thread(target=self._beat, name="running-time", daemon=True).start()

    def finish(self) -> None:
        """Stop the thread."""
        self._done.set()

    def _beat(self) -> None:
        while not self._done.wait(BEAT_S):
            self.now()


class SystemClock:
    """The machine's clocks; see :class:`ffdl_batch.ports.clock.Clock`."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return the seconds since some moment; never decreases."""
        return time.monotonic()
