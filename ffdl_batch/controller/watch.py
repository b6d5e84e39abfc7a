"""A node controller's second thread: everything that touches the shared file system again and again.

A file system that hangs stops this thread, not the one that watches the learners; the other one sees by
`last_read` that nothing was readable for too long, and ends them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Dict, List, Tuple

from ffdl_batch.controller.files import read_cell, touch
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile

INTERVAL_S = 1.0


class Watch:
    """Polls the cells, marks the logs' growth, beats the heart. Attributes are read by the other thread."""

    def __init__(self, launch: LaunchFile, node_rank: int, learner_ids: List[int]) -> None:
        self.launch, self.node_rank = launch, node_rank
        self.attempt = AttemptDir(launch.attempt_dir)
        self.logs = [(self.attempt.training_log(n), self.attempt.marks(n)) for n in learner_ids]
        self.stop: Dict[str, Any] = {}
        self.newer_attempt = 0
        self.last_read = time.monotonic()
        self._sizes: Dict[str, int] = {}
        self._last_beat = 0.0
        self._complained = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def begin(self) -> None:
        """Start the thread; call :func:`processes.hold_signals` before."""
        self._thread.start()

    def finish(self) -> None:
        """Stop it; a thread that hangs in the file system is left behind."""
        self._done.set()
        self._thread.join(timeout=2 * INTERVAL_S)

    @property
    def fenced(self) -> str:
        """Why the learners must not go on; "" while they may."""
        if self.newer_attempt > self.launch.attempt:
            return f"attempt {self.newer_attempt} of this job has been started"
        silent_s = time.monotonic() - self.last_read
        if silent_s > self.launch.limits.fence_s:
            return f"the job's directory could not be read for {silent_s:.0f} s"
        return ""

    def look(self) -> None:
        """One round."""
        for step in (self._read_cells, self._beat, self._mark):
            try:
                step()
            except OSError as error:
                if str(error) != self._complained:
                    self._complained = str(error)
                    sys.stderr.write(f"ffdl-controller: {error}; will be tried again\n")

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self.look()
        self.look()

    def _read_cells(self) -> None:
        os.stat(self.attempt.path)
        control = read_cell(self.attempt.control) or {}
        stop = read_cell(self.attempt.stop) or {}
        number = control.get("attempt")
        self.newer_attempt = number if isinstance(number, int) else 0
        self.stop = stop
        self.last_read = time.monotonic()

    def _beat(self) -> None:
        now = time.monotonic()
        if not self._last_beat or now - self._last_beat >= self.launch.limits.heartbeat_s:
            touch(self.attempt.heartbeat(self.node_rank))
            self._last_beat = now

    def _mark(self) -> None:
        for log, marks in self.logs:
            size = _size(log)
            if size != self._sizes.get(log, 0):
                with open(marks, "a", encoding="ascii") as file:
                    file.write(f"{time.time():.3f} {size}\n")
                self._sizes[log] = size


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class Echo:
    """Copies what learners write to a file descriptor, in order, whole reads at a time."""

    def __init__(self, logs: List[str], target: int = 1) -> None:
        self.target = target
        self._at: List[Tuple[str, int]] = [(log, _size(log)) for log in logs]

    def copy(self) -> None:
        """Copy what is new; a target that refuses it (closed, full) ends the copying, not the job."""
        for index, (log, offset) in enumerate(self._at):
            try:
                self._at[index] = (log, self._copy_from(log, offset))
            except FileNotFoundError:
                continue
            except OSError as error:
                sys.stderr.write(f"ffdl-controller: the log is no longer copied to standard output: {error}\n")
                self._at = []
                return

    def _copy_from(self, log: str, offset: int) -> int:
        with open(log, "rb") as file:
            file.seek(offset)
            data = file.read(1 << 16)
            while data:
                written = os.write(self.target, data)
                offset += written
                data = data[written:] or file.read(1 << 16)
        return offset
