"""Read one learner's log as a sequence of bytes with positions and times, over all files that its writer rotated.

docs/internals.md, "Logs", describes the files. This is the only reader of marks. It does not know lines as users see
them: `ffdl_batch.services.logs.log_reader` makes those.
"""

from __future__ import annotations

import contextlib
import os
from typing import BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ffdl_batch.attempt.log_paths import read_log_files
from ffdl_batch.attempt.reader import NO_FILE, open_regular, size_of, status_of
from ffdl_batch.domain.outcome.controller_events import is_time
from ffdl_batch.domain.untrusted_json import MAX_WHOLE

BLOCK = 256 * 1024
_MARKS_BLOCK = 64 * 1024
_NARROW = 4096
"""Maximum length of a mark."""
_TRIES = 3


class Part(NamedTuple):
    """A file of the log."""

    path: str
    inode: int
    """0 if any file is accepted, because the log has no cell."""
    base: int
    """The position at which it begins."""
    lines: int
    """Number of lines before it."""


class OpenPart(NamedTuple):
    """A part that is being read."""

    file: BinaryIO
    part: Part
    end: Optional[int]
    """Where the next part begins; None for the newest part."""


def _go_on() -> None:
    """Do not interrupt."""


class LogParts:
    """Find the file that has a position. The writer may rotate the files at any time."""

    def __init__(self, log: str, cell: str, go_on: Callable[[], None] = _go_on) -> None:
        """`log` is the newest file, `cell` names all files. `go_on` is called before each block that is read, and may
        raise."""
        self._path, self._cell, self._go_on = log, cell, go_on
        self._newest: Optional[Part] = None
        self._stamp: Optional[Tuple[int, int]] = None
        """Identifies the cell that was read last: an inode alone may belong to another file by now."""

    def open_at(self, position: int) -> Optional[OpenPart]:
        """Open the file with the byte at `position`, else the next one; None if there is none now."""
        newest = self._newest
        if newest is not None and position >= newest.base and self._stamp == self._read_stamp():
            with contextlib.suppress(*NO_FILE):
                file = open_regular(self._path)
                if os.fstat(file.fileno()).st_ino == newest.inode:
                    return OpenPart(file, newest, None)
                file.close()
        for _ in range(_TRIES):
            parts = self.all()
            if not parts:
                return None
            index = max((n for n, part in enumerate(parts) if part.base <= position), default=0)
            part = parts[index]
            with contextlib.suppress(*NO_FILE):
                file = open_regular(part.path)
                if part.inode in (0, os.fstat(file.fileno()).st_ino):
                    return OpenPart(file, part, None if index + 1 == len(parts) else parts[index + 1].base)
                file.close()
        return None

    def all(self) -> List[Part]:
        """Return the existing files, oldest first."""
        for _ in range(_TRIES):
            parts, missing = self._look()
            if not missing:
                break
        if parts:
            self._newest = parts[-1] if parts[-1].inode else None
        return parts

    def _look(self) -> Tuple[List[Part], bool]:
        """Return the files, and whether one is missing: the writer may be renaming it."""
        self._stamp = self._read_stamp()
        entries = {file.inode: file for file in read_log_files(self._cell)}
        if not entries:
            return [Part(self._path, 0, 0, 0)], False
        parts: Dict[int, Part] = {}
        for number in range(len(entries) + 1):
            path = f"{self._path}.{number}" if number else self._path
            found = status_of(path)
            if found is not None and found.st_ino in entries:
                parts[found.st_ino] = Part(path, *entries[found.st_ino])
        return sorted(parts.values(), key=lambda part: part.base), len(parts) < len(entries)

    def _read_stamp(self) -> Optional[Tuple[int, int]]:
        found = status_of(self._cell)
        return None if found is None else (found.st_ino, found.st_mtime_ns)

    def end(self) -> int:
        """Return the position at which the log ends now; 0 if it does not exist."""
        parts = self.all()
        return parts[-1].base + size_of(parts[-1].path) if parts else 0

    def backwards(self, end: int) -> Iterator[Tuple[int, bytes]]:
        """Yield what is before `end`, in blocks with their positions, the last block first."""
        for part in reversed(self.all()):
            if part.base >= end:
                continue
            with contextlib.suppress(*NO_FILE), open_regular(part.path) as file:
                while end > part.base:
                    self._go_on()
                    begin = max(part.base, end - BLOCK)
                    file.seek(begin - part.base)
                    yield begin, file.read(end - begin)
                    end = begin

    def count_lines(self, start: int, end: int) -> int:
        """Count the newlines between two positions."""
        count = 0
        while start < end and (opened := self.open_at(start)) is not None:
            with opened.file as file:
                start = max(start, opened.part.base)
                file.seek(start - opened.part.base)
                stop = end if opened.end is None else min(end, opened.end)
                while start < stop and (block := file.read(min(BLOCK, stop - start))):
                    self._go_on()
                    count += block.count(b"\n")
                    start += len(block)
            if start < stop:
                break
        return count


class Mark(NamedTuple):
    """What had been printed at a time."""

    at: float
    position: int
    lines: int


_START = Mark(0.0, 0, 0)


class Marks:
    """Find the time of a position. Successive calls of :meth:`time_of` read the file once, if positions increase."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = self._read_to = 0
        self._last: Optional[Mark] = None
        self._next: List[Mark] = []
        """In reverse."""
        self._is_drained = False

    def renew(self) -> None:
        """Read on in the next call: the writer may have added marks."""
        self._is_drained = False

    def restart(self) -> None:
        """Allow any position in the next call."""
        self._inode = 0
        self._last, self._next, self._is_drained = None, [], False

    def time_of(self, position: int) -> Tuple[Optional[float], Optional[int]]:
        """Return when the byte at `position` was printed (None if unknown), and the position up to which all bytes have
        that time (None: up to the end of the log)."""
        while True:
            while self._next and self._next[-1].position <= position:
                self._last = self._next.pop()
            if self._next or self._is_drained:
                break
            self._load(position)
        until = self._next[-1].position if self._next else None
        return None if self._last is None else self._last.at, until

    def before(self, at: float) -> Mark:
        """Return the last mark that is older than `at`, else the beginning."""
        return self._find(lambda mark: mark.at < at)

    def until(self, position: int) -> Mark:
        """Return the last mark at or before `position`, else the beginning."""
        return self._find(lambda mark: mark.position <= position)

    def _load(self, position: int) -> None:
        """Read the next marks. If the file was replaced, it no longer has the oldest ones."""
        self._is_drained = True
        with contextlib.suppress(*NO_FILE), open_regular(self._path) as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self._inode = inode
                self._read_to, _ = _narrow(file, lambda mark: mark.position <= position)
            file.seek(self._read_to)
            text = file.read(_MARKS_BLOCK)
            whole = text[: text.rfind(b"\n") + 1]
            self._read_to += len(whole)
            self._is_drained = len(text) < _MARKS_BLOCK or not whole
            self._next = [mark for mark in map(_parse, reversed(whole.splitlines(keepends=True))) if mark is not None]

    def _find(self, is_before: Callable[[Mark], bool]) -> Mark:
        """Return the last mark of the first ones for which `is_before` is true."""
        try:
            with open_regular(self._path) as file:
                start, last = _narrow(file, is_before)
                file.seek(start)
                while (line := file.readline(_NARROW)).endswith(b"\n"):
                    mark = _parse(line)
                    if mark is not None and not is_before(mark):
                        break
                    last = mark or last
                return last
        except NO_FILE:
            return _START


def _narrow(file: BinaryIO, is_before: Callable[[Mark], bool]) -> Tuple[int, Mark]:
    """Return where a line begins, not far before the first for which `is_before` is false; and the mark there."""
    low, high, last = 0, file.seek(0, os.SEEK_END), _START
    while high - low > _NARROW:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline(_NARROW)
        begin = file.tell()
        mark = _parse(file.readline(_NARROW)) if begin < high else None
        if mark is not None and is_before(mark):
            low, last = begin, mark
        else:
            high = middle
    return low, last


def _parse(line: bytes) -> Optional[Mark]:
    """Return the mark of a complete line; None if the line is not a mark."""
    if not line.endswith(b"\n") or len(line) >= _NARROW:
        return None
    try:
        at, position, lines = line.split()
        mark = Mark(float(at), int(position), int(lines))
    except ValueError:
        return None
    return mark if is_time(mark.at) and 0 <= mark.position <= MAX_WHOLE and 0 <= mark.lines <= MAX_WHOLE else None


class PrintTimes:
    """Find the time of a byte by its file and offset. Calls are cheap in the order of the log."""

    def __init__(self, marks: str, cell: str) -> None:
        self._marks, self._cell = Marks(marks), cell
        self._stamp: Optional[Tuple[int, int]] = None
        self._bases: Dict[int, int] = {}
        self._position = 0

    def time_of(self, inode: int, offset: int) -> Optional[float]:
        """Return when the byte at `offset` of the file was printed, in seconds since the epoch; None if unknown."""
        base = self._base_of(inode)
        if base is None:
            return None
        if base + offset < self._position:
            self._marks.restart()
        self._position = base + offset
        self._marks.renew()
        with contextlib.suppress(OSError):
            return self._marks.time_of(self._position)[0]
        return None

    def _base_of(self, inode: int) -> Optional[int]:
        """Return where the file begins. If it was emptied, it begins elsewhere now."""
        try:
            found = os.lstat(self._cell)
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._stamp:
                self._bases = {file.inode: file.base for file in read_log_files(self._cell)}
                self._stamp = stamp
        except OSError:  # the log has no writer
            return None
        return self._bases.get(inode)
