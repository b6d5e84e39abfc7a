"""Apply the lines of an attempt's pods to the daemon's copy of its directory.

Only lines that continue a file are applied. Known lines change nothing, so they may be read any number of times. The
mirror asks again for what is behind a gap (:attr:`Mirror.missing`), because the pod has the files. Pods name the files,
so names are compared with those that controllers write, and nothing outside of the attempt's directory is changed. Logs
are kept as the files and cells that readers of logs know (docs/internals.md, "Logs").
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from ffdl_batch.attempt.file_writer import open_own, put, write_bytes, write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.log_paths import TRAINING_LOG, LogFile, read_log_files
from ffdl_batch.attempt.reader import NO_FILE, open_regular, read_head, size_of, status_of
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.launch.pod_protocol import Frame, FrameKind

MARK_S = 1.0
"""A line of a pod's log has its time; marks are no denser."""
OVERLONG = 1.25
"""A file is so much larger than it should be where a line does not end."""
_BLOCK = 1024**2


class MirroredLog:
    """What a learner printed, as far as it is known here. `position` counts bytes, `lines` newlines. Raises OSError."""

    def __init__(self, attempt: AttemptDir, learner: int, limits: LogLimits) -> None:
        self._directory = Path(attempt.learner_logs(learner))
        self._cell, self._marks = Path(attempt.log_files(learner)), Path(attempt.marks(learner))
        self._limits = limits
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._cell.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._entries = read_log_files(str(self._cell))
        self._marked_at = 0.0
        self.position = self.lines = 0
        self._go_on()

    @property
    def _path(self) -> Path:
        return self._directory / TRAINING_LOG

    def _go_on(self) -> None:
        """Find the end of the copy that an earlier daemon left."""
        found = status_of(str(self._path))
        own = [entry for entry in self._entries if found is not None and entry.inode == found.st_ino]
        if found is None or not own:  # the writer died between creating the file and its entry
            self._begin(*self._end_of_entries())
            return
        self.position = own[-1].base + found.st_size
        self.lines = own[-1].lines + sum(block.count(b"\n") for block in _blocks(self._path))

    def _end_of_entries(self) -> tuple[int, int]:
        """Position and lines at the end of the newest file that has an entry."""
        for entry in reversed(self._entries):
            for path in self._directory.iterdir():
                found = status_of(str(path))
                if found is not None and found.st_ino == entry.inode:
                    lines = sum(block.count(b"\n") for block in _blocks(path))
                    return entry.base + found.st_size, entry.lines + lines
        return 0, 0

    def write(self, offset: int, data: bytes, at: float) -> bool:
        """Write what was printed at `offset` and time `at` (epoch). Return False if data before it are missing."""
        if offset > self.position:
            return False
        rest = data[self.position - offset :]
        if not rest:
            return True
        if (end := self._turn(rest)) is not None:
            self._append(rest[:end], at)
            self._begin(self.position, self.lines)
            rest = rest[end:]
        self._append(rest, at)
        return True

    def _turn(self, rest: bytes) -> int | None:
        """Return the index in `rest` at which the next file begins, at the end of a line if one is near; None if it is
        not in `rest`."""
        size, full = size_of(str(self._path)), self._limits.file_bytes
        if size + len(rest) <= full:
            return None
        end = rest.find(b"\n", max(0, full - size - 1)) + 1
        if end:
            return end
        return 0 if size + len(rest) > full * OVERLONG else None

    def _append(self, data: bytes, at: float) -> None:
        if not data:
            return
        self._mark(at)
        with os.fdopen(open_own(str(self._path), os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(data)
        self.position += len(data)
        self.lines += data.count(b"\n")

    def jump(self, offset: int) -> None:
        """Continue at `offset` in a new file, because everything before it is lost."""
        self._begin(offset, self.lines)

    def _begin(self, position: int, lines: int) -> None:
        new = self._path.with_suffix(".txt.new")
        os.close(open_own(str(new), os.O_WRONLY | os.O_TRUNC))
        kept = [entry for entry in self._entries if entry.base < position][-max(0, self._limits.files - 1) :]
        self._entries = [*kept, LogFile(new.stat().st_ino, position, lines)]
        # Before it has its name: readers know every file that they find.
        write_cell(str(self._cell), {"files": [entry._asdict() for entry in self._entries]})
        for number in reversed(range(self._limits.files - 1)):
            older = self._directory / f"{TRAINING_LOG}.{number + 1}"
            newer = self._directory / (f"{TRAINING_LOG}.{number}" if number else TRAINING_LOG)
            if os.path.lexists(newer):
                put(str(newer), str(older))
        put(str(new), str(self._path))
        self.position, self.lines = position, lines

    def _mark(self, at: float) -> None:
        if at - self._marked_at >= MARK_S:
            with os.fdopen(open_own(str(self._marks), os.O_WRONLY | os.O_APPEND), "a", encoding="ascii") as file:
                file.write(f"{at:.3f} {self.position} {self.lines}\n")
            self._marked_at = at


def _blocks(path: Path) -> Iterator[bytes]:
    with open_regular(str(path)) as file:
        while block := file.read(_BLOCK):
            yield block


GROWING = re.compile(r"events/(head|node-\d+)\.jsonl|metrics/(learner|usage)-\d+\.jsonl", re.ASCII)
CELLS = re.compile(
    r"final\.json|stop\.json|uploaded\.json|claim/owner\.json|claim/run-\d+/owner\.json|events/node-\d+\.heartbeat",
    re.ASCII,
)
MOVING = "staging/now.json"
"""A cell that decides nothing: no callback is called for it."""
LOGS = re.compile(r"logs/learner-(\d+)", re.ASCII)
CELL_BYTES = 1024**2
"""The largest cell that is believed."""
LONGEST_SEND_S = 120.0
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
        """Apply one line that the pod `index` printed at `at` (epoch)."""
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
        """Wake the daemon's watcher."""
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
        if len(whole) != frame.offset:  # a part was lost; the next frames have the whole cell
            return False
        whole += frame.data
        if len(whole) < frame.size:
            return False
        del self._cells[frame.file]
        path = self._path(frame.file)
        with contextlib.suppress(*NO_FILE):
            if read_head(str(path), CELL_BYTES + 1) == whole:
                return False
        write_bytes(str(path), bytes(whole), durable=False)
        return True

    def _apply_log(self, frame: Frame, at: float) -> bool:
        log = self._log(frame.file)
        if log is None:
            return False
        before = log.position
        if not log.write(frame.offset, frame.data, at):
            self._miss(frame.file, log.position)
            if time.monotonic() - self._asked_at[frame.file] < LONGEST_SEND_S:
                return False
            log.jump(frame.offset)
            log.write(frame.offset, frame.data, at)
        if log.position > before:
            self._found(frame.file)
        return log.position > before

    def _compare(self, name: str, size: int) -> None:
        """Compare one size of the snapshot with the copy."""
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
        """Set the heartbeat of a pod to the time of its line."""
        path = self._path(f"events/node-{index}.heartbeat")
        found = status_of(str(path))
        if found is None:
            os.close(open_own(str(path), os.O_WRONLY))
        elif found.st_mtime >= at:
            return
        os.utime(path, (at, at), follow_symlinks=False)
