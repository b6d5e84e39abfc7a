"""Read the streams of several jobs at once: one thread for each stream, with a bounded queue of lines."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
_WAITING = 1000


class _Over:
    """The end of a stream, with the error if it failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class ParallelStreams(Generic[T]):
    """Several streams, each with a name."""

    def __init__(self, streams: Mapping[str, Callable[[], Iterator[T]]]) -> None:
        self._streams = dict(streams)
        self._lines: queue.Queue[tuple[str, T | _Over]] = queue.Queue(_WAITING)
        self._closed = threading.Event()

    def lines(self, silence_s: float) -> Iterator[tuple[str, T | None]]:
        """Yield lines as they arrive, with the name of their stream; None after each `silence_s` without a line. Raises
        the error of a stream."""
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
        """Stop reading; each thread ends at its next line."""
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
