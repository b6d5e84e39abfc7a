"""Whose clock counts. Hosts' clocks may differ by minutes, so two times are compared only where one clock told both.

* What several daemons write into one database has the database's time (:class:`SharedClock`); leases and pauses of a
  daemon that has its database alone are measured by :class:`SteadyClock`.
* How old a file on the shared file system is says the file system's own clock (:func:`file_time`).
* How long something took here says the monotonic clock of this host.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from ffdl_batch.ports.clock import Clock
from ffdl_batch.store import StoreUnavailable

ASK_EVERY_S = 60.0


class SteadyClock:
    """The time at which it was made, by this host's wall clock, and from there on by its monotonic clock: a lease or a
    pause neither ends nor grows when somebody sets the clock."""

    def __init__(self, own: Clock) -> None:
        self._own, self._offset_s = own, own.now() - own.monotonic()

    def now(self) -> float:
        """Seconds since the epoch, UTC, as of then."""
        return self._own.monotonic() + self._offset_s

    def monotonic(self) -> float:
        """This host's monotonic clock."""
        return self._own.monotonic()


class SharedClock:
    """The time of somebody whom several daemons can ask. Between two questions this host's monotonic clock goes on, so
    that a wall clock which is wrong or jumps does not matter.

    `ask` returns seconds since the epoch, or raises StoreUnavailable: the time then goes on from the answer before, and
    the question is put again. The first answer is needed; StoreUnavailable gets through where there is none.
    """

    def __init__(self, ask: Callable[[], float], own: Clock) -> None:
        self._ask, self._own = ask, own
        self._asking = threading.Lock()
        self._offset_s = self._difference()
        self._asked_at = own.monotonic()

    def now(self) -> float:
        """Seconds since the epoch, UTC, by the shared clock."""
        if self._own.monotonic() - self._asked_at >= ASK_EVERY_S and self._asking.acquire(blocking=False):
            try:
                self._asked_at = self._own.monotonic()
                self._offset_s = self._difference()
            except StoreUnavailable:  # whoever needs the database says so; the time goes on as it did
                self._asked_at = self._own.monotonic()
            finally:
                self._asking.release()
        return self._own.monotonic() + self._offset_s

    def monotonic(self) -> float:
        """This host's monotonic clock, as :class:`ffdl_batch.ports.clock.Clock` has it."""
        return self._own.monotonic()

    def _difference(self) -> float:
        """Seconds from the monotonic clock to the shared one; the answer is as old as half of its way."""
        before = self._own.monotonic()
        told = self._ask()
        return told - (before + self._own.monotonic()) / 2


def file_time(directory: str) -> float:
    """Seconds since the epoch by the clock that stamps files in `directory`: a file server's, where there is one.

    Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(prefix=".now-", dir=directory)
    try:
        Path(name).unlink()
        os.utime(descriptor)  # without a time it is the server's to set (RFC 1813: SET_TO_SERVER_TIME)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
