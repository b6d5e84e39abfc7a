"""Applies the lines of an attempt's pods to the daemon's copy of its directory.

Applied is what continues a file. What was known already changes nothing, so lines may be read any number of times; what
lies behind a gap is asked for again (:attr:`Mirror.missing`), for the pod has the files. Pods say which files: so names
are held against those that controllers write, and nothing outside of the attempt's directory is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from ffdl_batch.attempt.file_writer import open_own, put
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import NO_FILE, read_head, size_of, status_of
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.launch.pod_protocol import Frame, FrameKind
from ffdl_kubernetes.observing.mirrored_log import MirroredLog

GROWING = re.compile(r"events/(head|node-\d+)\.jsonl|metrics/(learner|usage)-\d+\.jsonl", re.ASCII)
CELLS = re.compile(
    r"final\.json|stop\.json|paid\.json|claim/owner\.json|claim/run-\d+/owner\.json|events/node-\d+\.heartbeat",
    re.ASCII,
)
MOVING = "staging/now.json"
"""A cell, too, which decides nothing: nobody is called for it."""
LOGS = re.compile(r"logs/learner-(\d+)", re.ASCII)
CELL_BYTES = 1024**2
"""The largest cell that is believed."""
GIVE_UP_S = 120.0
"""Of a log, what was asked for and did not come in this time is gone."""


class Mirror:
    """One attempt. `doorbell` is rung when something changed; `learners` bounds what pods may name. Raises OSError."""

    def __init__(self, attempt: AttemptDir, doorbell: str, job_id: str, learners: int, limits: LogLimits) -> None:
        self._attempt, self._bell = attempt, Path(doorbell, job_id)
        self._learners, self._limits = learners, limits
        self._logs: dict[int, MirroredLog] = {}
        self._cells: dict[str, bytearray] = {}
        self._asked_at: dict[str, float] = {}
        self.missing: dict[str, int] = {}
        """File -> from which byte on it is missing here."""

    def apply(self, frame: Frame, at: float, index: int) -> None:
        """One line that the pod `index` said at `at` (epoch)."""
        changed = False
        if frame.kind is FrameKind.SIZES:
            for name, size in frame.sizes.items():
                self._compare(name, size)
        elif frame.kind is FrameKind.LOG:
            changed = self._apply_log(frame, at)
        elif frame.kind is FrameKind.APPEND and GROWING.fullmatch(frame.file):
            changed = self._append(frame)
        elif frame.kind is FrameKind.CELL and CELLS.fullmatch(frame.file):
            changed = self._replace(frame)
        elif frame.kind is FrameKind.CELL and frame.file == MOVING:
            self._replace(frame)
        self._beat(index, at)
        if changed:
            self.ring()

    def ring(self) -> None:
        """Tell the watcher that there is news."""
        self._bell.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bell.touch(mode=0o600)

    def _append(self, frame: Frame) -> bool:
        path = self._path(frame.file)
        size = size_of(str(path))
        if frame.offset > size:
            self._miss(frame.file, size)
            return False
        rest = frame.data[size - frame.offset :]
        if not rest:
            return False
        with os.fdopen(open_own(str(path), os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(rest)
        self._found(frame.file)
        return True

    def _replace(self, frame: Frame) -> bool:
        if frame.size > CELL_BYTES or frame.offset + len(frame.data) > frame.size:
            return False
        whole = self._cells.setdefault(frame.file, bytearray())
        if frame.offset == 0:
            whole.clear()
        if len(whole) != frame.offset:  # a part was lost; the next time it is said it is said whole
            return False
        whole += frame.data
        if len(whole) < frame.size:
            return False
        del self._cells[frame.file]
        path = self._path(frame.file)
        with contextlib.suppress(*NO_FILE):
            if read_head(str(path), CELL_BYTES + 1) == whole:
                return False
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        temporary.write_bytes(whole)
        temporary.chmod(0o600)
        put(str(temporary), str(path))
        return True

    def _apply_log(self, frame: Frame, at: float) -> bool:
        log = self._log(frame.file)
        if log is None:
            return False
        before = log.position
        if not log.write(frame.offset, frame.data, at):
            self._miss(frame.file, log.position)
            if time.monotonic() - self._asked_at[frame.file] < GIVE_UP_S:
                return False
            log.jump(frame.offset)
            log.write(frame.offset, frame.data, at)
        if log.position > before:
            self._found(frame.file)
        return log.position > before

    def _compare(self, name: str, size: int) -> None:
        """One size of the snapshot."""
        if (log := self._log(name)) is not None:
            have = log.position
        elif GROWING.fullmatch(name):
            path = self._path(name)
            have = size_of(str(path))
        else:
            return
        if size > have:
            self._miss(name, have)

    def _log(self, name: str) -> MirroredLog | None:
        match = LOGS.fullmatch(name)
        learner = int(match[1]) if match else 0
        if not 1 <= learner <= self._learners:
            return None
        if learner not in self._logs:
            self._logs[learner] = MirroredLog(self._attempt, learner, self._limits)
        return self._logs[learner]

    def _path(self, name: str) -> Path:
        path = Path(self._attempt.path, name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def _miss(self, name: str, have: int) -> None:
        self.missing[name] = have
        self._asked_at.setdefault(name, time.monotonic())

    def _found(self, name: str) -> None:
        self.missing.pop(name, None)
        self._asked_at.pop(name, None)

    def _beat(self, index: int, at: float) -> None:
        """A pod that is heard of lives: its heartbeat has the time of its line."""
        path = self._path(f"events/node-{index}.heartbeat")
        found = status_of(str(path))
        if found is None:
            os.close(open_own(str(path), os.O_WRONLY))
        elif found.st_mtime >= at:
            return
        os.utime(path, (at, at), follow_symlinks=False)
