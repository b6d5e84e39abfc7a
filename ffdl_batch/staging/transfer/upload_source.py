"""Local files that are being uploaded."""

from __future__ import annotations

import io
import os
import threading
from dataclasses import field

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import Stopped, UnknownUpload
from ffdl_batch.staging.stores.digests import ranges
from ffdl_batch.staging.stores.store import CHUNK_BYTES


def version_of(found: os.stat_result) -> str:
    """Return the version of a local file: another one after each writing."""
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"


class Written(Exception):
    """The file is being written, and can wait."""


class Slice(io.RawIOBase):
    """A range of an open file, read without moving its position. `stop` ends it early with Stopped."""

    def __init__(self, file: int, start: int, end: int, stop: threading.Event) -> None:
        self._file, self._start, self._end, self._stop = file, start, end, stop
        self._at = start

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, counted from the start of the range. Return it."""
        base = {os.SEEK_SET: self._start, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        self._at = max(self._start, min(base + offset, self._end))
        return self.tell()

    def tell(self) -> int:
        """Return the position, counted from the start of the range."""
        return self._at - self._start

    def read(self, size: int = -1) -> bytes:
        """Return data from the position on; b"" at the end. Raises Stopped, EOFError if the file is shorter."""
        if self._stop.is_set():
            raise Stopped
        rest = self._end - self._at
        data = os.pread(self._file, min(CHUNK_BYTES, rest) if size < 0 else min(size, rest), self._at)
        if rest and size and not data:
            raise EOFError
        self._at += len(data)
        return data

    def __len__(self) -> int:
        return self._end - self._start


@dataclass(slots=True)
class Opened:
    """A local file that is being uploaded: its descriptor, and its status when it was opened. `is_urgent`: it is
    uploaded although it is being written."""

    name: str
    key: str
    file: int
    size: int
    mtime: float
    version: str
    upload: str = ""
    part_bytes: int = 0
    etags: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    remaining: int = 0
    wrong: UnknownUpload | Written | None = None
    is_urgent: bool = False

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of its parts in ascending order."""
        return ranges(self.size, self.part_bytes)

    def sent_bytes(self) -> int:
        """Return the bytes of the parts that are stored."""
        found = self.ranges()
        return sum(found[number][1] - found[number][0] for number in self.etags)

    def is_as_it_was(self) -> bool:
        """Return whether the file is unchanged since it was opened. Raises OSError."""
        return version_of(os.fstat(self.file)) == self.version
