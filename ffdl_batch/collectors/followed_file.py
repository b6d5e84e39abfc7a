"""Read lines of a file that grows, is truncated or replaced, in bounded memory.

A carriage return ends a line as well: each state of a progress bar is a line. Only the beginning of a line that exceeds
the limit is kept. Bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ffdl_batch.collectors.learner_files import Found, opened

CHUNK_BYTES = 256 * 1024
MOST_RECORDS = 5000
"""After so many records, a collector of several files reads no further file in the same poll."""


class Place(NamedTuple):
    """The beginning of a line: offset in the file with this inode."""

    inode: int
    offset: int


class Line(NamedTuple):
    """A line without its end."""

    text: str
    place: Place


class LineCutter:
    """Cuts bytes into lines. `start` is where the current line begins."""

    def __init__(self, start: int, limit: int) -> None:
        self.start = start
        self.cut = 0
        """How many lines were longer than the limit."""
        self._limit = limit
        self._kept = bytearray()
        self._length = 0
        self._after_return = False
        self._empty = False
        """Whether the last piece was a return alone, which is no line if no newline follows."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the lines that `data` ends, each with the offset where it begins."""
        lines: list[tuple[int, bytes]] = []
        if self._after_return and data.startswith(b"\n"):
            if self._empty:
                lines.append((self.start - 1, b""))
            data = data[1:]
            self.start += 1
        self._after_return, self._empty = data.endswith(b"\r"), False
        for piece in data.splitlines(keepends=True):
            if piece[-1] not in b"\r\n":
                self._keep(piece)
            elif self._length or len(piece) > self._limit:
                self._keep(piece)
                lines.append(self._ended())
            else:
                self._empty = piece == b"\r"
                if not self._empty:
                    lines.append((self.start, piece))
                self.start += len(piece)
        return lines

    def finish(self) -> list[tuple[int, bytes]]:
        """Return the last line if it has no end, because it will get none."""
        self._after_return = False
        return [self._ended()] if self._length else []

    def _keep(self, piece: bytes) -> None:
        self._kept += piece[: max(0, self._limit - len(self._kept))]
        self._length += len(piece)

    def _ended(self) -> tuple[int, bytes]:
        self.cut += self._length > self._limit + 2
        line = (self.start, bytes(self._kept))
        self.start += self._length
        self._kept.clear()
        self._length = 0
        return line


class FollowedFile:
    """A log file, and its rotated files: `name`, before it `name.1`, `name.2`, ..."""

    def __init__(self, limit: int, place: Place | None, note: Callable[[str, str], None]) -> None:
        self._limit = limit
        self._note = note
        self._resume = place
        self._descriptor: int | None = None
        self._inode = 0
        self._read = 0
        self.truncations = 0
        self._cutter = LineCutter(0, limit)

    @property
    def place(self) -> Place | None:
        """Return where the current line begins; None if there was no file yet."""
        return self._resume if self._descriptor is None else Place(self._inode, self._cutter.start)

    @property
    def deleted(self) -> bool:
        """Return whether only processes that have the file open can still write to it."""
        return self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0

    def close(self) -> None:
        """Close the file. :attr:`place` stays the same."""
        self._resume = self.place
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def lines(self, generations: Mapping[int, Found], final: bool) -> tuple[list[Line], bool]:
        """Return lines that have not been read yet, and whether there may be more now.

        `generations` are the file (0) and its rotated files by number, as listed just now. With `final`, a last line
        without an end is a line.
        """
        if self._descriptor is None and not self._first(generations):
            return [], False
        assert self._descriptor is not None
        data = os.pread(self._descriptor, CHUNK_BYTES, self._read)
        if data:
            self._read += len(data)
            cut = self._lines(self._cutter.feed(data))
            self._report_long(generations)
            return cut, True
        if os.fstat(self._descriptor).st_size < self._read:
            self._note("truncated", "a log file was truncated; it is read from its beginning")
            rest = self._lines(self._cutter.finish())
            self.truncations += 1
            self._begin(self._inode, 0)
            return rest, True
        following = self._following(generations)
        if following is not None:
            rest = self._lines(self._cutter.finish())
            return rest, self._change(following)
        return (self._lines(self._cutter.finish()) if final else []), False

    def _lines(self, cut: Sequence[tuple[int, bytes]]) -> list[Line]:
        inode = self._inode
        return [Line(data.decode("utf-8", "replace").rstrip("\r\n"), Place(inode, start)) for start, data in cut]

    def _report_long(self, generations: Mapping[int, Found]) -> None:
        if self._cutter.cut:
            name = generations[0].path if 0 in generations else "a log file"
            self._note(
                "long_lines", f"{name}: of a line longer than {self._limit} bytes only the beginning is looked at"
            )
            self._cutter.cut = 0

    def _first(self, generations: Mapping[int, Found]) -> bool:
        if not generations:
            return False
        place = self._resume
        for file in generations.values():
            if place is not None and file.inode == place.inode:
                return self._change(file, place.offset)
        if place is not None:
            self._note("replaced", "a log file was replaced before it was read; lines may be missing")
        return self._change(generations[max(generations)])

    def _following(self, generations: Mapping[int, Found]) -> Found | None:
        """Return the file that was written after this one; None if this is the newest."""
        ours = [number for number, file in generations.items() if file.inode == self._inode]
        newer = [number for number in generations if not ours or number < ours[0]]
        return generations[max(newer)] if newer else None

    def _change(self, file: Found, offset: int = 0) -> bool:
        descriptor = opened(file)
        if descriptor is None:
            return False
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._begin(file.inode, offset)
        return True

    def _begin(self, inode: int, offset: int) -> None:
        self._inode, self._read = inode, offset
        self._cutter = LineCutter(offset, self._limit)


def in_turn(paths: Iterable[str], last: str) -> list[str]:
    """Return the paths in order, those after `last` first, so that each gets its turn."""
    ordered = sorted(paths)
    return [path for path in ordered if path > last] + [path for path in ordered if path <= last]
