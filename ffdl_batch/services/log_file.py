"""The log of one learner in one attempt: a file that grows, and the times of its growth.

A learner writes its log file itself; its node controller notes now and then how long the file was at which time
(``events/learner-<n>.marks``: lines "<seconds since the epoch> <bytes>"), from which a line's time is known to about
a second. A run that the scheduler starts anew within the attempt appends to both.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ffdl_batch.controller.machine.files import open_found, size_of
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.views import LogLine

CHUNK = 256 * 1024
MAX_LINE = 64 * 1024
"""A longer line is handed on in pieces of this size."""


@dataclass(slots=True)
class _Marks:
    """Times of sizes of one log."""

    path: Path
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    read_to: int = 0

    def refresh(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self.read_to)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self.read_to += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                at, size = line.split()
                self.sizes.append(int(size))
                self.times.append(float(at))

    def size_before(self, at: float) -> int:
        """A size that the log surely had before `at`; 0 where none is known."""
        index = bisect.bisect_left(self.times, at)
        return self.sizes[index - 1] if index else 0

    def time_of(self, offset: int) -> float | None:
        """When the byte at `offset` had been written, by the first mark behind it."""
        index = bisect.bisect_right(self.sizes, offset)
        return self.times[index] if index < len(self.times) else None


class LogReader:
    """One learner's log in one attempt, read on from where the last read ended."""

    def __init__(self, attempt: AttemptDir, number: int, learner: int) -> None:
        self._path = attempt.training_log(learner)
        self._marks = _Marks(Path(attempt.marks(learner)))
        self._attempt, self._learner = number, learner
        self._offset = 0
        """How far the file was read."""
        self._rest = b""
        """The end of what was read: the beginning of a line, or of its next piece."""
        self._lines = 0
        """Newlines before `_rest`."""
        self._begun = False
        """Pieces of the line that `_rest` belongs to were handed on."""

    def skip(self, *, since: float | None, tail: int | None) -> None:
        """Pass over what surely lies before `since`, or before the last `tail` lines, without making lines of it.

        To be called before the first line.
        """
        try:
            file = open_found(self._path)
        except FileNotFoundError:
            return
        with file:
            size = file.seek(0, os.SEEK_END)
            if since is not None:
                self._marks.refresh()
                start = _line_start(file, self._marks.size_before(since), 1)
            elif tail is not None:
                start = _line_start(file, size, tail + 1)
            else:
                return
            self._lines, self._offset = _count_lines(file, start), start

    def lines(self, *, ended: bool) -> Iterator[LogLine]:
        """Whole lines that are new; when the log `ended`, also a last one without a newline.

        Should the log grow all the same, what comes is the next piece of that line.
        """
        self._marks.refresh()
        try:
            file = open_found(self._path)
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            while chunk := file.read(CHUNK):
                yield from self._split(chunk)
        if ended and self._rest:
            rest, self._rest, self._begun = self._rest, b"", True
            yield self._line(rest, self._offset - len(rest), self._offset)

    def _split(self, chunk: bytes) -> Iterator[LogLine]:
        start = self._offset - len(self._rest)
        self._offset += len(chunk)
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        for line in whole:
            end = start + len(line) + 1
            for piece in range(0, len(line) or int(not self._begun), MAX_LINE):
                yield self._line(line[piece : piece + MAX_LINE], start + piece, end)
            start, self._lines, self._begun = end, self._lines + 1, False
        while len(self._rest) > MAX_LINE:
            first, self._rest, self._begun = self._rest[:MAX_LINE], self._rest[MAX_LINE:], True
            yield self._line(first, start, start + MAX_LINE)
            start += MAX_LINE

    def _line(self, raw: bytes, start: int, end: int) -> LogLine:
        text = raw.decode("utf-8", errors="replace").rstrip("\r")
        at = self._marks.time_of(max(0, end - 1))
        return LogLine(self._learner, self._lines + 1, text, at, self._attempt, start)


def has_log(attempt: AttemptDir, learners: int) -> bool:
    """Whether a learner of the attempt has written anything."""
    return any(size_of(attempt.training_log(number)) > 0 for number in range(1, learners + 1))


def _line_start(file: BinaryIO, end: int, newlines: int) -> int:
    """Where the line begins that follows the last but `newlines` newline before `end`; read backwards in blocks.

    A newline at `end` itself closes the last line and is not counted.
    """
    position, wanted = end, newlines
    while position > 0:
        begin = max(0, position - CHUNK)
        file.seek(begin)
        block = file.read(position - begin)
        stop = len(block) - 1 if position == end and block.endswith(b"\n") else len(block)
        while (found := block.rfind(b"\n", 0, stop)) >= 0:
            wanted -= 1
            if wanted <= 0:
                return begin + found + 1
            stop = found
        position = begin
    return 0


def _count_lines(file: BinaryIO, end: int) -> int:
    file.seek(0)
    count, left = 0, end
    while left > 0 and (block := file.read(min(left, 16 * CHUNK))):
        count += block.count(b"\n")
        left -= len(block)
    return count
