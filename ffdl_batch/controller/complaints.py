"""Standard error of a controller: a file of the job's on the shared file system, as the batch system opened it.

It may be full or may hang, and what is said there is a courtesy: events and records are what counts. So writing to it
never fails, and never waits for long once :func:`begin` was called.
"""

from __future__ import annotations

import io
import os
import sys

from ffdl_batch.controller.handover import Hand

PATIENCE_S = 0.2


class Complaints(io.TextIOBase):
    """Takes the place of ``sys.stderr``. What could not be written is counted, and said when there is room again."""

    def __init__(self, target: int = 2) -> None:
        super().__init__()
        self._target, self._lost = target, 0
        self._hand = Hand("complaints")

    def begin(self) -> None:
        """From here on a thread writes."""
        self._hand.begin()

    def writable(self) -> bool:
        """See :class:`io.TextIOBase`."""
        return True

    def write(self, text: str) -> int:
        """Write it, or do without."""
        self._hand.ask(lambda: self._put(text), None, PATIENCE_S)
        return len(text)

    def _put(self, text: str) -> None:
        missing = f"ffdl-controller: {self._lost} complaints could not be written here\n" if self._lost else ""
        data = (missing + text).encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[os.write(self._target, data) :]
        except OSError:  # full, closed, gone: there is nobody to complain to
            self._lost += 1
        else:
            self._lost = 0


def install() -> None:
    """Use it in this process."""
    sys.stderr = Complaints()


def begin() -> None:
    """No complaint holds up anything from here on. Call after the learners were started."""
    if isinstance(sys.stderr, Complaints):
        sys.stderr.begin()
