"""When a line of the learner's log was printed, by what the log's writer left beside it.

The formats are those of ``docs/architecture.md``, Logs: a cell with the position at which each file begins in all that
was printed, and marks ``<epoch> <bytes> <lines>``, each of which comes before what it times.
"""

from __future__ import annotations

import os
from collections import deque
from typing import NamedTuple

from ffdl_batch.attempt.reader import DamagedFile, open_regular, read_object
from ffdl_batch.collectors.followed_file import Place
from ffdl_batch.domain.outcome.controller_events import is_time

BLOCK = 64 * 1024


class Mark(NamedTuple):
    """So many bytes had been printed at a time."""

    position: int
    at: float


class Printed:
    """Times of one log's lines; asked for in the order of the log it reads each mark once."""

    def __init__(self, marks: str, log_files: str) -> None:
        self._marks, self._cell = marks, log_files
        self._stamp: tuple[int, int] | None = None
        self._bases: dict[int, int] = {}
        self._inode = self._read = 0
        self._last: Mark | None = None
        self._next: deque[Mark] = deque()

    def time_s(self, place: Place) -> float | None:
        """Seconds since the epoch; None where nobody knows."""
        base = self._base_of(place.inode)
        if base is None:
            return None
        position = base + place.offset
        if self._last is not None and position < self._last.position:
            self._begin(0)
        while True:
            while self._next and self._next[0].position <= position:
                self._last = self._next.popleft()
            if self._next or not self._load():
                return None if self._last is None else self._last.at

    def _base_of(self, inode: int) -> int | None:
        """Where the file begins. It may have been emptied, and begin elsewhere now."""
        try:
            found = os.lstat(self._cell)
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._stamp:
                entries = read_object(self._cell)["files"]
                self._bases = {int(entry["inode"]): int(entry["base"]) for entry in entries}
                self._stamp = stamp
        except (OSError, ValueError, KeyError, TypeError):  # the file is damaged, or missing: the log has no writer
            return None
        return self._bases.get(inode)

    def _begin(self, inode: int) -> None:
        self._inode, self._read = inode, 0
        self._last = None
        self._next.clear()

    def _load(self) -> bool:
        """Whether there are more marks. Those that were replaced have lost their oldest."""
        try:
            with open_regular(self._marks) as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._begin(inode)
                file.seek(self._read)
                text = file.read(BLOCK)
        except (OSError, DamagedFile):
            return False
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            words = line.split()
            try:
                if len(words) == 3 and is_time(at := float(words[0])):
                    self._next.append(Mark(int(words[1]), at))
            except ValueError:
                continue
        return bool(whole)
