"""Write to a controller's standard error without failing or waiting long.

The batch system opened standard error as a file on the shared file system, which may be full or hang. Messages there
are additional information: events and records are what readers rely on. Writes wait at most :data:`PATIENCE_S` once
:func:`begin` was called.
"""

from __future__ import annotations

import io
import sys
import threading

from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.worker_thread import Full, WorkerThread

PATIENCE_S = 0.2
MOST_WAITING = 64
"""Maximum number of messages that wait behind a write that hangs."""


class NonblockingStderr(io.TextIOBase):
    """Replaces ``sys.stderr``. It counts messages that cannot be written, and reports their number later."""

    def __init__(self, target: int = 2) -> None:
        super().__init__()
        self._target, self._lost = target, 0
        self._counting = threading.Lock()
        self._worker = WorkerThread("standard-error", MOST_WAITING)

    def begin(self) -> None:
        """Start the thread that writes from now on."""
        self._worker.begin()

    def writable(self) -> bool:
        """See :class:`io.TextIOBase`."""
        return True

    def write(self, text: str) -> int:
        """Write the text, or count it as lost."""
        try:
            self._worker.ask(lambda: self._put(text), None, PATIENCE_S)
        except Full:
            self._lose(1)
        return len(text)

    def _put(self, text: str) -> None:
        lost = self._lost
        missing = f"ffdl-controller: {lost} messages could not be written here\n" if lost else ""
        data = (missing + text).encode("utf-8", "backslashreplace")
        try:
            write_all(self._target, data)
        except OSError:  # full, closed or gone: the error cannot be reported anywhere
            self._lose(1)
        else:
            self._lose(-lost)

    def _lose(self, count: int) -> None:
        with self._counting:
            self._lost += count


class ErrorReporter:
    """Prints the errors of something that is done again and again; the same error twice in a row only once."""

    def __init__(self, outcome: str = "will be tried again") -> None:
        self._outcome, self._last = outcome, ""

    def report(self, error: Exception, what: str = "") -> None:
        """Print the error after `what`, unless it equals the last one."""
        if str(error) != self._last:
            self._last = str(error)
            sys.stderr.write(f"ffdl-controller: {what}{error}{'; ' if self._outcome else ''}{self._outcome}\n")


def install() -> None:
    """Use it as this process's standard error."""
    sys.stderr = NonblockingStderr()


def begin() -> None:
    """Write in a thread from now on. Call this after the learners were started, which are forked."""
    if isinstance(sys.stderr, NonblockingStderr):
        sys.stderr.begin()
