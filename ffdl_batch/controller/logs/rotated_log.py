"""Write one learner's log: ``training-log.txt``, and the older files ``.1``, ``.2``, ...

Positions count bytes of the whole output, over all files. Where learners do not write are the *marks* of the log (lines
"<epoch> <bytes> <lines>": what had been printed at that time) and a cell with its files: the inode of each, and the
position and number of lines at which it begins. One process writes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Protocol, Tuple

from ffdl_batch.attempt.directory_tree import Directories, remove_name, status_of
from ffdl_batch.attempt.file_writer import open_own, write_cell, write_text
from ffdl_batch.attempt.log_paths import TRAINING_LOG, LogFile, learner_logs, log_files, marks, read_log_files
from ffdl_batch.attempt.reader import find_text

MARK_S, MARK_BYTES = 0.05, 1024**2
"""A mark is written if the last one is this many seconds old or this many bytes back."""
MARKS_BYTES = 4 * 1024**2
"""Each time that the marks have grown by this many bytes, they become half as frequent."""
MARKS_MOST = 32 * MARKS_BYTES
"""Maximum size of a file of marks."""
OVERLONG = 1.25
"""Factor by which a file may exceed its size if a line does not end."""
_READ = 1024**2
_POSITION = re.compile(r"\d{1,18}", re.ASCII)
_MARK = re.compile(rb"(\d{1,11}\.\d{1,9}) (\d{1,18}) (\d{1,18})")


class Limits(Protocol):
    """The limits of a log, like :class:`~ffdl_batch.domain.launch.limits.LogLimits`."""

    @property
    def file_bytes(self) -> int:
        """Return the maximum size of each file."""

    @property
    def files(self) -> int:
        """Return the maximum number of files."""

    @property
    def bytes_per_s(self) -> int:
        """Return the maximum rate after the first file."""


class LogFiles:
    """Appends output to the newest file and rotates the files. All methods raise OSError."""

    def __init__(self, attempt_dir: str, learner_id: int, limits: Limits) -> None:
        self._limits = limits
        self._cell, self._marks_path = log_files(attempt_dir, learner_id), marks(attempt_dir, learner_id)
        with Directories(attempt_dir, 0o777) as tree:
            parts = os.path.relpath(learner_logs(attempt_dir, learner_id), attempt_dir).split(os.sep)
            self._directory = os.dup(tree.enter(tuple(parts)))
        self._entries = read_log_files(self._cell)
        self._log = -1
        self._inode = self._size = 0
        self._last, self.position, self.lines = _last_mark(self._marks_path)
        self._marked_at = self.position if self._entries else -MARK_BYTES
        self._marks = open_own(self._marks_path, os.O_WRONLY | os.O_APPEND)
        self._open()

    def write(self, data: bytes) -> None:
        """Append data. After an error the caller does not know how much of it was written."""
        data = self._turn_over(data)
        if data:
            self._append(data)

    def look(self) -> None:
        """Create the file again if a learner removed it. On NFS this also flushes it."""
        found = status_of(TRAINING_LOG, self._directory)
        if found is None or found.st_ino != self._inode:
            self._open()
        elif found.st_size < self._size:  # it was emptied
            self._size = found.st_size
            lines = _count_lines(self._log, 0, self._size)
            self._add_entry(self._inode, self.position - self._size, self.lines - lines)

    def _open(self) -> None:
        """Open the newest file, and find the position at which it ends."""
        before = self._log
        self._log = open_own(TRAINING_LOG, os.O_RDWR | os.O_APPEND, 0o666, dir_fd=self._directory)
        if before >= 0:  # it was kept open so that the new file gets another inode
            os.close(before)
        found = os.fstat(self._log)
        self._inode, self._size = found.st_ino, found.st_size
        own = [entry for entry in self._entries if entry.inode == self._inode]
        if own:
            _, base, lines = own[-1]
            if not base <= self.position <= base + self._size:
                self.position, self.lines = base, lines
            self.lines += _count_lines(self._log, self.position - base, self._size)
            self.position = base + self._size
            return
        if not self._entries:  # the first file
            self.position = self.lines = 0
        self._add_entry(self._inode, self.position, self.lines)
        self.lines += _count_lines(self._log, 0, self._size)
        self.position += self._size

    def _add_entry(self, inode: int, base: int, lines: int) -> None:
        known = [entry for entry in self._entries if entry.base < base and entry.inode != inode]
        self._entries = [*known, LogFile(inode, base, lines)][-self._limits.files :]
        write_cell(self._cell, {"files": [entry._asdict() for entry in self._entries]})

    def _turn_over(self, data: bytes) -> bytes:
        """Begin the next file if the newest is full, at the end of a line if possible. Return the remaining data."""
        full = self._limits.file_bytes
        while self._size + len(data) > full:
            end = data.find(b"\n", max(0, full - self._size - 1)) + 1
            if not end:
                room = int(full * OVERLONG) - self._size
                if len(data) <= room:
                    break
                end = max(0, room)
            self._append(data[:end])
            data = data[end:]
            self._rotate()
        return data

    def _rotate(self) -> None:
        new = TRAINING_LOG + ".new"
        remove_name(new, self._directory)
        log = open_own(new, os.O_RDWR | os.O_APPEND | os.O_EXCL, 0o666, dir_fd=self._directory)
        try:
            inode = os.fstat(log).st_ino
            # This comes before the renames, so that readers know every file that they find.
            self._add_entry(inode, self.position, self.lines)
            names = [TRAINING_LOG, *(f"{TRAINING_LOG}.{number}" for number in range(1, self._limits.files))]
            for older, newer in reversed(list(zip(names[1:], names))):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(newer, older, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            os.replace(new, TRAINING_LOG, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except BaseException:
            os.close(log)
            raise
        os.close(self._log)
        self._log, self._inode, self._size = log, inode, 0
        self._drop_marks()

    def _append(self, data: bytes) -> None:
        self._mark()
        rest = memoryview(data)
        while rest:
            written = os.write(self._log, rest)
            self.lines += bytes(rest[:written]).count(b"\n")
            self.position += written
            self._size += written
            rest = rest[written:]

    def _mark(self) -> None:
        now = max(self._last, time.time())
        size = os.fstat(self._marks).st_size
        pause_s = MARK_S * 2 ** min(size // MARKS_BYTES, 20)
        if now - self._last >= pause_s or self.position - self._marked_at >= MARK_BYTES:
            os.write(self._marks, f"{now:.3f} {self.position} {self.lines}\n".encode("ascii"))
            self._last, self._marked_at = now, self.position

    def _drop_marks(self) -> None:
        """Remove the marks of files that no longer exist."""
        marks = find_text(self._marks_path, MARKS_MOST).splitlines(keepends=True)
        first = 0
        while first + 1 < len(marks) and _position(marks[first + 1]) <= self._entries[0].base:
            first += 1
        if not first:
            return
        write_text(self._marks_path, "".join(marks[first:]))
        os.close(self._marks)
        self._marks = open_own(self._marks_path, os.O_WRONLY | os.O_APPEND)


def _last_mark(path: str) -> Tuple[float, int, int]:
    """Return time, position and lines of the last mark. Cut off an incomplete one."""
    with os.fdopen(open_own(path, os.O_RDWR), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - 4096)
        file.seek(start)
        text = file.read(4096)
        end = text.rfind(b"\n") + 1
        if start + end < size:
            file.truncate(start + end)
    for line in reversed(text[:end].splitlines()):
        found = _MARK.fullmatch(line)
        if found is not None:
            return float(found[1]), int(found[2]), int(found[3])
    return 0.0, 0, 0


def _position(mark: str) -> int:
    words = mark.split()
    return int(words[1]) if len(words) > 1 and _POSITION.fullmatch(words[1]) else 0


def _count_lines(file: int, start: int, end: int) -> int:
    """Return the number of newlines between two offsets of a file."""
    count = 0
    while start < end:
        block = os.pread(file, min(_READ, end - start), start)
        if not block:
            break
        count += block.count(b"\n")
        start += len(block)
    return count
