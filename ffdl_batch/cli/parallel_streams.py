"""Streams of several jobs at once: a thread reads each, and hands over a bounded number of lines."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
_WAITING = 1000


class _Over:
    """A stream has ended; `error` where it failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Together(Generic[T]):
    """The streams by the name of each."""

    def __init__(self, streams: Mapping[str, Callable[[], Iterator[T]]]) -> None:
        self._streams = dict(streams)
        self._lines: queue.Queue[tuple[str, T | _Over]] = queue.Queue(_WAITING)
        self._closed = threading.Event()

    def lines(self, silence_s: float) -> Iterator[tuple[str, T | None]]:
        """As they come, with their stream's name; None after so long without any. Raises what a stream raises."""
        for name in self._streams:
            threading.Thread(target=self._read, args=(name,), name=f"stream {name}", daemon=True).start()
        open_ = set(self._streams)
        while open_:
            try:
                name, line = self._lines.get(timeout=silence_s)
            except queue.Empty:
                yield "", None
                continue
            if not isinstance(line, _Over):
                yield name, line
            elif line.error is not None:
                raise line.error
            else:
                open_.discard(name)

    def close(self) -> None:
        """Nobody reads any more; the threads end with the next line of theirs."""
        self._closed.set()

    def _read(self, name: str) -> None:
        over = _Over(None)
        try:
            for line in self._streams[name]():
                self._put(name, line)
                if self._closed.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - raised again where the lines are read
            over = _Over(error)
        self._put(name, over)

    def _put(self, name: str, line: T | _Over) -> None:
        while not self._closed.is_set():
            try:
                self._lines.put((name, line), timeout=0.5)
            except queue.Full:
                continue
            return
