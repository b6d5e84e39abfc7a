"""Reads streams in threads and hands their bytes to the event loop.

A stream that has caught up with its files continues in a thread that it shares with all others of its kind: a hundred
threads that wake up, read a few lines each and wake the event loop would cost several times as much. A stream that is
behind, because much is written or its reader is slow, has a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator

from ffdl_batch.services.queries.followed_jobs import Pause

log = logging.getLogger(__name__)

BUFFER_BYTES = 1 << 20
RETRY_S = 1.0
"""Pause of a stream that needs a thread of its own, if none can be started."""
Lines = Iterator[bytes | Pause | None]


class LogPump:
    """Runs a blocking iterator of lines in a thread and hands over what has come since the last look."""

    def __init__(
        self,
        lines: Lines,
        stopped: threading.Event,
        failure_line: Callable[[Exception], bytes],
        turns: SharedTurns | None = None,
    ) -> None:
        """Prepare to send `lines`. `stopped` is set when the reader has disconnected; `lines` checks it while no lines
        arrive. `failure_line` returns what is sent if `lines` raises; if that is nothing, the stream breaks off. After
        a pause, `lines` continue in `turns`, else in their own thread."""
        self._lines, self._stopped, self._failure_line, self._turns = lines, stopped, failure_line, turns
        self.loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._space = threading.Condition()
        self._buffer: deque[bytes] = deque()
        self._size = 0
        self.ended = False
        self.failed = False

    def start(self, at_end: Callable[[], None] = lambda: None) -> None:
        """Start reading. `at_end` is called in the event loop when no more is read."""
        self._at_end = at_end
        self._start_thread()

    def stop(self) -> None:
        """Stop reading as soon as the iterator checks `stopped` or yields a line."""
        with self._space:
            self._stopped.set()
            self._space.notify()

    async def take(self, timeout_s: float) -> bytes:
        """Return the lines that have arrived; nothing after `timeout_s` without lines, or when the lines have ended."""
        if not self._buffer and not self.ended:
            self._waiter = self.loop.create_future()
            timer = self.loop.call_later(timeout_s, self.notify)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        with self._space:
            taken = b"".join(self._buffer)
            self._buffer.clear()
            self._size = 0
            self._space.notify()
        return taken

    def notify(self) -> None:
        """End a :meth:`take` that waits. Call in the event loop."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def notify_of_lines(self) -> None:
        """End a :meth:`take` that waits, unless the lines were taken already. Call in the event loop."""
        if self._buffer:
            self.notify()

    def take_turn(self) -> Pause | None:
        """Read until the next pause, and return it. Return None if the pump does not continue in the shared thread.
        The caller notifies the pump."""
        pause = self._read(waits=False)
        if pause is None and not self.ended:
            try:
                self._start_thread()
            except RuntimeError:  # no thread can be started now
                return Pause(RETRY_S)
        return pause

    def _start_thread(self) -> None:
        # A daemon thread, so that a hanging file server does not keep the process from ending.
        threading.Thread(target=self._run, name="logs", daemon=True).start()

    def _run(self) -> None:
        while (pause := self._read(waits=True)) is not None:
            if self._turns is not None:
                with contextlib.suppress(RuntimeError):  # no thread can be started now
                    self._turns.add(self, pause)
                    return
            time.sleep(pause)

    def _read(self, *, waits: bool) -> Pause | None:
        """Read until the next pause, and return it; None at the end, or if the buffer is full and this may not
        wait."""
        try:
            for line in self._lines:
                if isinstance(line, Pause):
                    return line
                if line is not None:
                    self._put(line, waits=waits)
                if self._stopped.is_set():
                    break
                if not waits and self._size >= BUFFER_BYTES:
                    return None
        except Exception as error:  # the outermost frame of the stream
            said = self._failure_line(error)
            if said:
                self._put(said, waits=waits)
            else:  # the reader sees the stream break off
                self.failed = True
                if not self._stopped.is_set():
                    log.exception("a log stream failed")
        self._end()
        return None

    def _end(self) -> None:
        if isinstance(self._lines, Generator):
            self._lines.close()
        self.ended = True
        _call(self.loop, self.notify, self._at_end)

    def _put(self, line: bytes, *, waits: bool) -> None:
        with self._space:
            if waits:
                self._space.wait_for(lambda: self._stopped.is_set() or self._size < BUFFER_BYTES)
            was_empty = not self._buffer
            self._buffer.append(line)
            self._size += len(line)
        if was_empty and waits:
            _call(self.loop, self.notify_of_lines)
        elif was_empty and self._turns is not None:
            self._turns.came(self)


class SharedTurns:
    """One thread in which pumps that have caught up continue. It runs while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, LogPump]] = []
        self._numbers = itertools.count()
        self._is_running = False
        self._news: list[LogPump] = []

    def add(self, pump: LogPump, pause: Pause) -> None:
        """Continue a pump after the pause, at a multiple of its length: so that all pumps with the same pause continue
        at once, and wake thread and event loop once. Raises RuntimeError if the thread cannot be started."""
        due = (time.monotonic() // pause + 1) * pause
        with self._changed:
            if not self._is_running:
                threading.Thread(target=self._run, name="followed-logs", daemon=True).start()
                self._is_running = True
            heapq.heappush(self._waiting, (due, next(self._numbers), pump))
            self._changed.notify()

    def came(self, pump: LogPump) -> None:
        """Note during its turn that a pump has lines for an empty buffer."""
        self._news.append(pump)

    def _run(self) -> None:
        while pumps := self._await_due():
            for pump in pumps:
                pause = pump.take_turn()
                if pause is not None:
                    self.add(pump, pause)
            news, self._news = self._news, []
            for loop in {pump.loop for pump in news}:
                _call(loop, *(pump.notify_of_lines for pump in news if pump.loop is loop))

    def _await_due(self) -> list[LogPump]:
        """Wait for pumps whose pause is over, and return them; none when no pump is left."""
        with self._changed:
            while self._waiting:
                left = self._waiting[0][0] - time.monotonic()
                if left <= 0:
                    due = self._waiting[0][0]
                    pumps = []
                    while self._waiting and self._waiting[0][0] <= due:
                        pumps.append(heapq.heappop(self._waiting)[2])
                    return pumps
                self._changed.wait(left)
            self._is_running = False
            return []


def _call(loop: asyncio.AbstractEventLoop, *calls: Callable[[], None]) -> None:
    """Make calls in the event loop, and wake it once."""

    def call_all() -> None:
        for call in calls:
            call()

    with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon has ended
        loop.call_soon_threadsafe(call_all)
