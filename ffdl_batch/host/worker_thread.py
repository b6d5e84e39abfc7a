"""A thread for work that may take for ever, such as access to a file system that hangs.

Such a system call cannot be interrupted. So the thread that watches learners hands the work over, waits for a bounded
time, and then continues as if the result were unknown.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Callable, Deque, Generic, Optional, TypeVar

T = TypeVar("T")


class Full(Exception):
    """Too much work is waiting already. The work will not be done."""


class _Piece(Generic[T]):
    """One piece of work and its result."""

    def __init__(self, work: Callable[[], T], otherwise: T) -> None:
        self.work, self.result = work, otherwise
        self.error: Optional[Exception] = None
        self.done = threading.Event()
        self.is_abandoned = False
        """Whether the caller has stopped waiting."""

    def do(self) -> None:
        """Do the work, in the thread."""
        try:
            self.result = self.work()
        except Exception as error:  # noqa: BLE001 - raised in the caller if it still waits; the thread must continue
            self.error = error
        finally:
            self.done.set()


class WorkerThread:
    """Does pieces of work one after the other. Before :meth:`begin` the caller does them itself.

    Work that was accepted is done, however long it takes.
    """

    def __init__(self, name: str, most_waiting: Optional[int] = None) -> None:
        """`most_waiting` is the maximum number of waiting pieces; None means no limit."""
        self._name, self._most_waiting = name, most_waiting
        self._pieces: "Deque[_Piece[object]]" = deque()
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._working = False

    def begin(self) -> None:
        """Start the thread. Call :func:`signals.hold_signals` before, and start learners before, which are forked."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    @property
    def is_behind(self) -> bool:
        """Return whether some accepted work is not done yet."""
        return self._working or bool(self._pieces)

    def ask(self, work: Callable[[], T], otherwise: T, patience_s: float) -> T:
        """Return the result of `work`, or `otherwise` after `patience_s` seconds; then the work continues.

        Raises what `work` raises, if it does so in time, and :class:`Full`.
        """
        if self._thread is None:
            return work()
        piece = _Piece(work, otherwise)
        with self._changed:
            if self._most_waiting is not None and len(self._pieces) >= self._most_waiting:
                raise Full(f"{self._name}: {len(self._pieces)} pieces of work wait already")
            self._pieces.append(piece)  # type: ignore[arg-type]  # the thread does not use the result
            self._changed.notify()
        if not piece.done.wait(patience_s):
            piece.is_abandoned = True
            if not piece.done.is_set():
                return otherwise
        if piece.error is not None:
            raise piece.error
        return piece.result

    def _run(self) -> None:
        while True:
            with self._changed:
                self._working = False
                self._changed.wait_for(lambda: bool(self._pieces))
                self._working = True
                piece = self._pieces.popleft()
            piece.do()
            if piece.error is not None and piece.is_abandoned:
                sys.stderr.write(f"ffdl-controller: {self._name}: {type(piece.error).__name__}: {piece.error}\n")
