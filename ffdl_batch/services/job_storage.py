"""Gives access to the rows and the files of one user's jobs, and to the clocks of both."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from ffdl_batch.attempt.layout import Root
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.clock import Clock
from ffdl_batch.store import Store, StoreUnavailable

ASK_EVERY_S = 60.0


class SteadyClock:
    """A clock that starts at this host's wall clock and continues with its monotonic clock, so that leases and pauses
    do not change when the wall clock is set."""

    def __init__(self, own: Clock) -> None:
        self._own, self._offset_s = own, own.now() - own.monotonic()

    def now(self) -> float:
        """Return the seconds since the epoch, UTC."""
        return self._own.monotonic() + self._offset_s

    def monotonic(self) -> float:
        """Return the time of this host's monotonic clock."""
        return self._own.monotonic()


class SharedClock:
    """The clock of a server that several daemons use. Between two queries it continues with this host's monotonic
    clock, so that a wall clock that is wrong or jumps does not matter.

    `ask` returns seconds since the epoch. If it raises StoreUnavailable, the clock continues from the last answer and
    queries again later. The first query must succeed; otherwise the constructor raises StoreUnavailable.
    """

    def __init__(self, ask: Callable[[], float], own: Clock) -> None:
        self._ask, self._own = ask, own
        self._asking = threading.Lock()
        self._offset_s = self._difference()
        self._asked_at = own.monotonic()

    def now(self) -> float:
        """Return the seconds since the epoch, UTC, by the shared clock."""
        if self._own.monotonic() - self._asked_at >= ASK_EVERY_S and self._asking.acquire(blocking=False):
            try:
                self._asked_at = self._own.monotonic()
                self._offset_s = self._difference()
            except StoreUnavailable:  # calls that need the database report it; the clock continues
                self._asked_at = self._own.monotonic()
            finally:
                self._asking.release()
        return self._own.monotonic() + self._offset_s

    def monotonic(self) -> float:
        """Return the time of this host's monotonic clock (:class:`ffdl_batch.ports.clock.Clock`)."""
        return self._own.monotonic()

    def _difference(self) -> float:
        """Return the seconds from the monotonic clock to the shared one. The answer is as old as half the query
        took."""
        before = self._own.monotonic()
        answer = self._ask()
        return answer - (before + self._own.monotonic()) / 2


def file_time(directory: str) -> float:
    """Return the seconds since the epoch by the clock that sets the times of files in `directory`, such as a file
    server's.

    Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(prefix=".now-", dir=directory)
    try:
        Path(name).unlink()
        os.utime(descriptor)  # without a time it is the server's to set (RFC 1813: SET_TO_SERVER_TIME)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


PATIENCE_S = 5.0
FRESH_S = 1.0
"""How long an answer is valid."""


class Tree:
    """Checks whether the file system of the job directories answers. Safe in every thread.

    A system call on a file system that hangs cannot be ended. So a request calls :meth:`check` before it touches files:
    only one thread accesses the file system, and only that thread may hang.
    """

    def __init__(self, root: Root, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._root, self._monotonic = root, monotonic
        self._changed = threading.Condition()
        self._asked_at: float | None = None
        """Since when the thread waits for an answer; None while no check is running."""
        self._answered_at = float("-inf")
        self._error: OSError | None = None

    def check(self, patience_s: float = PATIENCE_S, fresh_s: float = FRESH_S) -> None:
        """Raise OSError if the file system is not mounted, fails, or has not answered for `patience_s`.

        An answer that is at most `fresh_s` old is reused.
        """
        with self._changed:
            if self._asked_at is None and self._monotonic() - self._answered_at >= fresh_s:
                self._begin_to_look()
            if self._asked_at is not None:
                left_s = self._asked_at + patience_s - self._monotonic()
                self._changed.wait_for(lambda: self._asked_at is None, max(0.0, left_s))
            if self._asked_at is not None:
                silent_s = self._monotonic() - self._asked_at
                raise OSError(errno.ETIMEDOUT, f"no answer for {silent_s:.0f} s", self._root.path)
            if self._error is not None:
                raise self._error

    def _begin_to_look(self) -> None:
        try:
            threading.Thread(target=self._look, name="tree", daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # no thread can be started; the next question tries again
            raise OSError(errno.EAGAIN, str(error), self._root.path) from error
        self._asked_at = self._monotonic()

    def _look(self) -> None:
        error = self._ask()
        with self._changed:
            self._error, self._answered_at, self._asked_at = error, self._monotonic(), None
            self._changed.notify_all()

    def _ask(self) -> OSError | None:
        """List one of its directories and return the error. No cache can answer that instead of the server."""
        try:
            os.listdir(self._root.doorbell)  # noqa: PTH208 - names are not wanted as paths, nor at all
        except OSError as error:
            return error
        return None


@dataclass(slots=True)
class JobStorage:
    """The rows and files of one user's jobs."""

    store: Store
    root: Root
    clock: Clock
    """The time for entries in the database: the database's own time if several daemons share it."""
    user: str
    uid: int
    is_tenant: bool = False
    """Whether they are those of a tenant without an account, whose members have only names."""
    file_time: Callable[[str], float] = file_time
    """Returns the time for files in a directory of the tree (:func:`file_time`)."""
    tree: Tree = field(init=False)

    def __post_init__(self) -> None:
        self.tree = Tree(self.root)
