"""Run the calls of an :class:`~ffdl_batch.AsyncClient` in threads.

Each thread has its own client, because a client may be used by one thread only. They are daemon threads, so that a
program can end while a call waits.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar, cast

from ffdl_batch.client.api import Client
from ffdl_batch.client.errors import ClientError
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem

if TYPE_CHECKING:
    from ffdl_batch.client.attach import Helper
    from ffdl_batch.client.connection.daemon_start import Dialling
    from ffdl_batch.client.connection.http_client import Wire

R = TypeVar("R")
_END = object()


class _InterruptibleClient(Client):
    """A client whose calls another thread can interrupt."""

    _progress_s = 1.0

    def __init__(self, dialling: Dialling) -> None:
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()
        self._helpers: weakref.WeakSet[Helper] = weakref.WeakSet()
        self._lock, self._is_interrupted = threading.Lock(), False
        super().__init__(dialling=dialling)

    def _open_wire(self) -> Wire:
        wire = super()._open_wire()
        with self._lock:
            self._wires.add(wire)
            if self._is_interrupted:
                wire.interrupt()
        return wire

    def open_helpers(self, job_id: str, learner: int | None = None) -> Iterator[Helper]:
        for helper in super().open_helpers(job_id, learner):
            with self._lock:
                self._helpers.add(helper)
                is_interrupted = self._is_interrupted
            if is_interrupted:
                helper.interrupt()
            yield helper

    def _progressed(self) -> None:
        if self._is_interrupted:
            raise ClientError(Problem("S302", "the copy was cancelled", int(ExitCode.FAILED)))

    def interrupt(self) -> None:
        """End what the client waits for: requests, commands in learners, copies of files."""
        with self._lock:
            self._is_interrupted = True
            wires, helpers = list(self._wires), list(self._helpers)
            for wire in wires:
                wire.interrupt()
        for helper in helpers:
            helper.interrupt()


class _Worker:
    """A thread with a client. It runs one call at a time."""

    def __init__(self, dialling: Dialling) -> None:
        self.client = _InterruptibleClient(dialling)
        self.is_of_use = True
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="ffdl client", daemon=True).start()

    async def do(self, work: Callable[[], R]) -> R:
        """Run `work` in the thread and return its value. If the caller is cancelled, its requests are interrupted."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def settle(value: R | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(cast(R, value))
            else:
                future.set_exception(error)

        def task() -> None:
            value, error = None, None
            try:
                value = work()
            except BaseException as raised:  # noqa: BLE001 - raised again in the caller's task
                error = raised
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settle, value, error)

        self._tasks.put(task)
        try:
            return await future
        except asyncio.CancelledError:
            self.is_of_use = False
            self.client.interrupt()
            raise

    def stop(self) -> None:
        """End the thread after its current work, and close its client."""
        self._tasks.put(None)

    def _run(self) -> None:
        with closing(self.client):
            while (task := self._tasks.get()) is not None:
                task()


class Workers:
    """The threads of one :class:`~ffdl_batch.AsyncClient`: at most `parallel` at a time."""

    def __init__(self, dialling: Dialling, parallel: int) -> None:
        self.last: Client | None = None
        """The client that was used last."""
        self._dialling = dialling
        self._places = asyncio.Semaphore(parallel)
        self._idle: list[_Worker] = []

    async def run(self, work: Callable[[Client], R]) -> R:
        """Run `work` with a client in a thread and return its value."""
        async with self._borrow() as worker:
            return await worker.do(lambda: work(worker.client))

    async def iterate(self, start: Callable[[Client], Iterator[R]]) -> AsyncIterator[R]:
        """Yield the values of an iterator. One thread reads all of them."""
        async with self._borrow() as worker:
            values = await worker.do(lambda: start(worker.client))
            try:
                while (value := await worker.do(lambda: next(values, _END))) is not _END:
                    yield cast(R, value)
            finally:
                close = getattr(values, "close", None)
                if close is not None and worker.is_of_use:
                    await worker.do(close)

    def close(self) -> None:
        """End all threads; busy ones end after their current call. A later call starts new threads."""
        idle, self._idle = self._idle, []
        for worker in idle:
            worker.stop()

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[_Worker]:
        async with self._places:
            idle = self._idle
            worker = idle.pop() if idle else _Worker(self._dialling)
            try:
                yield worker
            finally:
                self.last = worker.client
                if worker.is_of_use and idle is self._idle:
                    idle.append(worker)
                else:
                    worker.stop()
