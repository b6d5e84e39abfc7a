"""A thread that does what may take for ever, so that whoever must not wait goes on without it.

A system call on a file system that hangs cannot be ended by anybody. So the thread that watches learners hands such
work over, waits for a bounded time, and then goes on as if the answer were not known.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Callable, Deque, Generic, Optional, TypeVar

T = TypeVar("T")


class Full(Exception):
    """No more work is taken: too much of it waits. Nothing will be done."""


class _Piece(Generic[T]):
    """One piece of work and what came of it."""

    def __init__(self, work: Callable[[], T], otherwise: T) -> None:
        self.work, self.result = work, otherwise
        self.error: Optional[Exception] = None
        self.done = threading.Event()
        self.is_given_up = False

    def do(self) -> None:
        """In the thread."""
        try:
            self.result = self.work()
        except Exception as error:  # noqa: BLE001 - for whoever asked, if anybody still waits; the thread must live on
            self.error = error
        finally:
            self.done.set()


class WorkerThread:
    """Does one piece of work after the other, in order. Before :meth:`begin` whoever asks does it alone.

    What it has taken it does, however long that takes. At most `most_waiting` pieces wait (None = any number, for
    askers whose requests have an end). Begin after the learners were started: they are forked.
    """

    def __init__(self, name: str, most_waiting: Optional[int] = None) -> None:
        self._name, self._most_waiting = name, most_waiting
        self._pieces: "Deque[_Piece[object]]" = deque()
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._working = False

    def begin(self) -> None:
        """Start the thread; call :func:`signals.hold_signals` before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    @property
    def is_behind(self) -> bool:
        """Whether something that was handed over is not done yet."""
        return self._working or bool(self._pieces)

    def ask(self, work: Callable[[], T], otherwise: T, patience_s: float) -> T:
        """What `work` gives, or `otherwise` where that is not known within `patience_s`; the work is done all the same.

        Raises what `work` raises, where that came in time, and :class:`Full`.
        """
        if self._thread is None:
            return work()
        piece = _Piece(work, otherwise)
        with self._changed:
            if self._most_waiting is not None and len(self._pieces) >= self._most_waiting:
                raise Full(f"{self._name}: {len(self._pieces)} pieces of work wait already")
            self._pieces.append(piece)  # type: ignore[arg-type]  # the thread asks no piece for its result
            self._changed.notify()
        if not piece.done.wait(patience_s):
            piece.is_given_up = True
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
            if piece.error is not None and piece.is_given_up:
                sys.stderr.write(f"ffdl-controller: {self._name}: {type(piece.error).__name__}: {piece.error}\n")
