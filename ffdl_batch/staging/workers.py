"""Threads that do the requests of a task. The first failure ends all of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ffdl_batch.staging.faults import Stopped

Job = Callable[[], None]
LOOK_S = 0.2
END_S = 1.0
"""Maximum wait at the end, for all threads that wait for a store."""
AHEAD = 2
"""Waiting jobs per worker. So the number of open files is limited."""


class Workers:
    """`stop` is set as soon as a job has failed. Running jobs end then, and waiting jobs are dropped."""

    def __init__(self, count: int, stop: threading.Event) -> None:
        self._stop = stop
        self._jobs: queue.Queue[Job | None] = queue.Queue(AHEAD * count)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Submit a job. Wait while there are many. Raises what an earlier job raised."""
        while not self._stop.is_set():
            try:
                self._jobs.put(job, timeout=LOOK_S)
                return
            except queue.Full:
                continue
        self.finish()

    def finish(self) -> None:
        """Wait until all jobs are done. Raises what a job raised."""
        with self._jobs.all_tasks_done:
            while self._jobs.unfinished_tasks and self._error is None:
                self._jobs.all_tasks_done.wait(LOOK_S)
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End the threads, also after a failure. Threads that wait for a store end when it replies."""
        self._stop.set()
        while not self._jobs.empty():
            with suppress(queue.Empty):
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        until = time.monotonic() + END_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                if not self._stop.is_set():
                    job()
            except Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - raised to the caller that waits
                with self._lock:
                    self._error = self._error or error
                self._stop.set()
            finally:
                self._jobs.task_done()
