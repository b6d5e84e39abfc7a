"""The copy of one learner's log: the files and cells that readers of logs know (docs/architecture.md, "Logs")."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ffdl_batch.attempt.file_writer import open_own, put, write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.log_paths import TRAINING_LOG, LogFile, read_log_files
from ffdl_batch.attempt.reader import open_regular, size_of, status_of
from ffdl_batch.domain.launch.limits import LogLimits

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
        """Where the copy that a killed daemon left ends."""
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
        """What was printed at `offset`; `at` is when (epoch). False where something before it is missing."""
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
        """Where in `rest` the next file begins: at a line, if one ends soon. None = not in it."""
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
        """What lies before `offset` is gone for good: go on there, in a file of its own."""
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
