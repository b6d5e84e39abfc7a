"""Whether the file system of the job directories answers.

Nobody can end a system call on a file system that hangs. So before a request touches files it is asked here: one
thread looks, and only that thread waits for as long as it takes.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable

from ffdl_batch.attempt.layout import Root

PATIENCE_S = 5.0
FRESH_S = 1.0
"""For so long an answer stands for the next one."""


class Tree:
    """The tree of job directories. Safe in every thread."""

    def __init__(self, root: Root, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._root, self._monotonic = root, monotonic
        self._news = threading.Condition()
        self._asked_at: float | None = None
        """Since when the thread waits for an answer; None while nobody asks."""
        self._answered_at = float("-inf")
        self._error: OSError | None = None

    def check(self, patience_s: float = PATIENCE_S, fresh_s: float = FRESH_S) -> None:
        """Raise OSError where it is not there, fails, or has not answered for `patience_s`.

        An answer that is not older than `fresh_s` will do.
        """
        with self._news:
            if self._asked_at is None and self._monotonic() - self._answered_at >= fresh_s:
                self._begin_to_look()
            if self._asked_at is not None:
                left_s = self._asked_at + patience_s - self._monotonic()
                self._news.wait_for(lambda: self._asked_at is None, max(0.0, left_s))
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
        with self._news:
            self._error, self._answered_at, self._asked_at = error, self._monotonic(), None
            self._news.notify_all()

    def _ask(self) -> OSError | None:
        """What a listing of one of its own directories came to: no cache answers for the server then."""
        try:
            os.listdir(self._root.doorbell)  # noqa: PTH208 - names are not wanted as paths, nor at all
        except OSError as error:
            return error
        return None
