"""The files of one learner's log as its writer left them, as one text with positions; and when what was printed.

`ffdl_batch.controller.logs.rotated_log` says what lies where. Attempts of earlier releases have one file, and marks of
two fields (how long it was at a time, noted afterwards).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import NO_FILE, open_regular, read_object, size_of, status_of
from ffdl_batch.domain.outcome.controller_events import is_time
from ffdl_batch.domain.untrusted_json import MAX_WHOLE
from ffdl_batch.services.refusals import stop_if

BLOCK = 256 * 1024
_MARKS_BLOCK = 64 * 1024
_NARROW = 4096
"""Maximum length of a mark."""
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the log: the position at which it begins, and how many lines end before it. `inode` 0: any."""

    path: str
    inode: int
    base: int
    lines: int


@dataclass(slots=True)
class OpenPart:
    """A part that is being read; `end` is where the next one begins, None of the newest."""

    file: BinaryIO
    part: Part
    end: int | None


class LogParts:
    """Finds the file that has a position. Files may be turned over at any time."""

    def __init__(self, attempt: AttemptDir, learner: int, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """:meth:`backwards` and :meth:`count_lines` raise StreamStopped once `is_stopped`."""
        self._is_stopped = is_stopped
        self._path, self._cell = attempt.training_log(learner), attempt.log_files(learner)
        self._newest: Part | None = None
        self._stamp: tuple[int, int] | None = None
        """Which cell was read last: an inode alone may be that of another file by now."""

    def open_at(self, position: int) -> OpenPart | None:
        """The file with the byte at `position`, else the next one; None where there is none now."""
        newest = self._newest
        if newest is not None and position >= newest.base and self._stamp == self._read_stamp():
            with contextlib.suppress(*NO_FILE):
                file = open_regular(self._path)
                if os.fstat(file.fileno()).st_ino == newest.inode:
                    return OpenPart(file, newest, None)
                file.close()
        for _ in range(_LOOKS):
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

    def all(self) -> list[Part]:
        """The files that there are, oldest first."""
        for _ in range(_LOOKS):
            parts, missing = self._look()
            if not missing:
                break
        if parts:
            self._newest = parts[-1] if parts[-1].inode else None
        return parts

    def _look(self) -> tuple[list[Part], bool]:
        """The files, and whether one was not found that should be there: it may just be getting its next name."""
        self._stamp = self._read_stamp()
        entries = _read_cell(self._cell)
        if not entries:
            return [Part(self._path, 0, 0, 0)], False
        parts: dict[int, Part] = {}
        for number in range(len(entries) + 1):
            path = f"{self._path}.{number}" if number else self._path
            found = status_of(path)
            if found is not None and found.st_ino in entries:
                parts[found.st_ino] = Part(path, found.st_ino, *entries[found.st_ino])
        return sorted(parts.values(), key=lambda part: part.base), len(parts) < len(entries)

    def _read_stamp(self) -> tuple[int, int] | None:
        found = status_of(self._cell)
        return None if found is None else (found.st_ino, found.st_mtime_ns)

    def end(self) -> int:
        """Where the log ends now; 0 where there is none."""
        parts = self.all()
        return parts[-1].base + size_of(parts[-1].path) if parts else 0

    def backwards(self, end: int) -> Iterator[tuple[int, bytes]]:
        """What lies before `end`, from there to the beginning, in blocks with their positions."""
        for part in reversed(self.all()):
            if part.base >= end:
                continue
            with contextlib.suppress(*NO_FILE), open_regular(part.path) as file:
                while end > part.base:
                    stop_if(self._is_stopped)
                    begin = max(part.base, end - BLOCK)
                    file.seek(begin - part.base)
                    yield begin, file.read(end - begin)
                    end = begin

    def count_lines(self, start: int, end: int) -> int:
        """Newlines between two positions."""
        count = 0
        while start < end and (opened := self.open_at(start)) is not None:
            with opened.file as file:
                start = max(start, opened.part.base)
                file.seek(start - opened.part.base)
                stop = end if opened.end is None else min(end, opened.end)
                while start < stop and (block := file.read(min(BLOCK, stop - start))):
                    stop_if(self._is_stopped)
                    count += block.count(b"\n")
                    start += len(block)
            if start < stop:
                break
        return count


def _read_cell(path: str) -> dict[int, tuple[int, int]]:
    """Return, for the inode of each file of the log, its start position and the number of lines before it; {} if the
    cell does not exist or is damaged."""
    try:
        found = read_object(path).get("files")
    except NO_FILE:
        return {}
    entries: dict[int, tuple[int, int]] = {}
    for entry in found if isinstance(found, list) else []:
        inode, base, lines = (
            map(entry.get, ("inode", "base", "lines")) if isinstance(entry, dict) else (None, None, None)
        )
        if isinstance(inode, int) and isinstance(base, int) and isinstance(lines, int) and min(base, lines) >= 0:
            entries[inode] = base, lines
    return entries


@dataclass(frozen=True, slots=True)
class Mark:
    """What had been printed at a time. `lines` is None in marks of an earlier release, which came afterwards."""

    at: float
    position: int
    lines: int | None


_START = Mark(0.0, 0, 0)


class Marks:
    """Times of positions. :meth:`time_of` goes forward; only what lies around is in memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = self._read_to = 0
        self._last: Mark | None = None
        self._next: list[Mark] = []
        """In reverse."""
        self._is_drained = False

    def renew(self) -> None:
        """More may have been written."""
        self._is_drained = False

    def begin_anew(self) -> None:
        """What is asked for next may lie anywhere."""
        self._inode = 0
        self._last, self._next, self._is_drained = None, [], False

    def time_of(self, position: int) -> tuple[float | None, int | None]:
        """When the byte at `position` was printed, and up to where what follows was, too (None: as far as there is)."""
        while True:
            while self._next and self._next[-1].position <= position:
                self._last = self._next.pop()
            if self._next or self._is_drained:
                break
            self._load(position)
        coming = self._next[-1] if self._next else None
        until = None if coming is None else coming.position
        if coming is not None and coming.lines is None:
            return coming.at, until
        return None if self._last is None or self._last.lines is None else self._last.at, until

    def before(self, at: float) -> Mark:
        """The last mark that is surely older than `at`, else the beginning."""
        return self._find(lambda mark: mark.at < at)

    def until(self, position: int) -> Mark:
        """The last mark with a number of lines at or before `position`, else the beginning."""
        found = self._find(lambda mark: mark.position <= position)
        return found if found.lines is not None else _START

    def _load(self, position: int) -> None:
        """The next marks. A file that was replaced has no more the oldest ones."""
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
        """The last mark of the first ones for which `is_before` is true."""
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


def _narrow(file: BinaryIO, is_before: Callable[[Mark], bool]) -> tuple[int, Mark]:
    """Where a line begins, not far before the first for which `is_before` is false; and the mark there."""
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


def _parse(line: bytes) -> Mark | None:
    """Return the mark of a complete line; None if the line is not a mark."""
    if not line.endswith(b"\n") or len(line) >= _NARROW:
        return None
    try:
        at, position, *rest = line.split()
        mark = Mark(float(at), int(position), int(rest[0]) if rest else None)
    except ValueError:
        return None
    return (
        mark if is_time(mark.at) and 0 <= mark.position <= MAX_WHOLE and 0 <= (mark.lines or 0) <= MAX_WHOLE else None
    )
