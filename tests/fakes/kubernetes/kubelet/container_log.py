"""What a container printed, in a file as container runtimes write it. Standard library alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_LINE = 16 * 1024
"""Longer lines are cut, as container runtimes do."""


class Log:
    """The container's output in the format of CRI, in a file that is rotated when it is full."""

    def __init__(self, file: str, limit: int, grew: Callable[[], None]) -> None:
        self._file, self._limit, self._grew = file, limit, grew
        self._rest = {"stdout": b"", "stderr": b""}
        self._descriptor = self._open()
        self._size = 0

    def _open(self) -> int:
        return os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def add(self, stream: str, data: bytes, *, last: bool = False) -> None:
        rest = self._rest[stream] + data
        lines = []
        while (end := rest.find(b"\n")) >= 0 or len(rest) >= _LINE:
            if 0 <= end < _LINE:
                lines.append((b"F", rest[:end]))
                rest = rest[end + 1 :]
            else:
                lines.append((b"P", rest[:_LINE]))
                rest = rest[_LINE:]
        if last and rest:
            lines.append((b"P", rest))
            rest = b""
        self._rest[stream] = rest
        for tag, line in lines:
            self._write(stream.encode(), tag, line)
        if lines:
            self._grew()

    def _write(self, stream: bytes, tag: bytes, line: bytes) -> None:
        nanoseconds = time.time_ns()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 10**9))
        record = b"%s.%09dZ %s %s %s\n" % (moment.encode(), nanoseconds % 10**9, stream, tag, line)
        if self._size and self._size + len(record) > self._limit:
            self.rotate()
        os.write(self._descriptor, record)
        self._size += len(record)

    def rotate(self) -> None:
        """Begin a new file; the one before is kept beside it, nobody reads it."""
        os.close(self._descriptor)
        os.replace(self._file, self._file + ".old")
        self._descriptor, self._size = self._open(), 0
