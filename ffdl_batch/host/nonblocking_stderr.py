"""Standard error of a controller: a file of the job's on the shared file system, as the batch system opened it.

It may be full or may hang, and what is said there is a courtesy: events and records are what counts. So writing to it
never fails, and never waits for long once :func:`begin` was called.
"""

from __future__ import annotations

import io
import os
import sys
import threading

from ffdl_batch.host.worker_thread import Full, WorkerThread

PATIENCE_S = 0.2
MOST_WAITING = 64
"""NonblockingStderr that wait behind a write that hangs: nobody says how many there will be."""


class NonblockingStderr(io.TextIOBase):
    """Takes the place of ``sys.stderr``. What could not be written is counted, and said when there is room again."""

    def __init__(self, target: int = 2) -> None:
        super().__init__()
        self._target, self._lost = target, 0
        self._counting = threading.Lock()
        self._worker = WorkerThread("complaints", MOST_WAITING)

    def begin(self) -> None:
        """From here on a thread writes."""
        self._worker.begin()

    def writable(self) -> bool:
        """See :class:`io.TextIOBase`."""
        return True

    def write(self, text: str) -> int:
        """Write it, or do without."""
        try:
            self._worker.ask(lambda: self._put(text), None, PATIENCE_S)
        except Full:
            self._lose(1)
        return len(text)

    def _put(self, text: str) -> None:
        lost = self._lost
        missing = f"ffdl-controller: {lost} complaints could not be written here\n" if lost else ""
        data = (missing + text).encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[os.write(self._target, data) :]
        except OSError:  # full, closed, gone: there is nobody to complain to
            self._lose(1)
        else:
            self._lose(-lost)

    def _lose(self, count: int) -> None:
        with self._counting:
            self._lost += count


def install() -> None:
    """Use it in this process."""
    sys.stderr = NonblockingStderr()


def begin() -> None:
    """No complaint holds up anything from here on. Call after the learners were started."""
    if isinstance(sys.stderr, NonblockingStderr):
        sys.stderr.begin()
