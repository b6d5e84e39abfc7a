"""Whether the open file of a SQLite database holds what this process wrote, or another program has written into it.

Its size and time of change are looked at, for they cost nothing; they prove nothing. `touch` changes the time, network
file systems round it, and whatever shares the database through SQLite may move the log into the file. So each commit
counts one up in the header, where SQLite keeps a number for its users (`user_version`): whoever puts an older copy or
anything else over the file sets it back, and SQLite itself only ever takes it on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HEADER_BYTES = 100
COUNTS = 2**31
"""After so many the count begins anew."""
_SIGNATURE, _COUNT = slice(0, 20), slice(60, 64)
"""What it is, its size of page and whether it goes with a log; `user_version` (sqlite.org/fileformat.html, 1.3)."""
_OPEN_FILES = Path("/proc/self/fd")
Identity = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class Left:
    """How the file was found when it was known to be ours. `header` is empty where nothing was written yet."""

    size_bytes: int
    mtime_ns: int
    header: bytes

    def is_like(self, status: os.stat_result) -> bool:
        """Whether nobody has written since."""
        return (status.st_size, status.st_mtime_ns) == (self.size_bytes, self.mtime_ns)


def is_own(now: Left, before: Left, committed: int) -> bool:
    """Whether SQLite alone has led from `before` to `now`. `committed` is the count of the last commit: the file may
    lag behind, where there is a log, but not behind what it has had."""
    if not before.header:
        return True
    if len(now.header) < HEADER_BYTES or now.header[_SIGNATURE] != before.header[_SIGNATURE]:
        return False
    if now.header == before.header:
        return now.size_bytes >= before.size_bytes
    had = _count(before.header)
    return (_count(now.header) - had) % COUNTS <= (committed - had) % COUNTS


def _count(header: bytes) -> int:
    return int.from_bytes(header[_COUNT], "big") % COUNTS


class OwnWrites:
    """Into one file, by one connection at a time. `note` and `is_own` are for who has that connection: they read
    through its descriptor, because to close another one of the same file would take SQLite's locks away."""

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._descriptor = -1
        self._count = 0
        self._left: Left | None = None

    def note(self, status: os.stat_result, count: int) -> None:
        """The file was opened for the first time; `count` is the `user_version` of its last commit. Raises OSError."""
        self._identity = identity_of(status)
        self._count = count % COUNTS
        self._left = self._look(status)

    def count_up(self) -> int:
        """The `user_version` that the next commit must set, alone or with others."""
        self._count = (self._count + 1) % COUNTS
        return self._count

    def is_as_left(self, status: os.stat_result) -> bool:
        """Whether the file is as it was found last, by its status alone."""
        return self._left is None or self._left.is_like(status)

    def is_own(self, status: os.stat_result) -> bool:
        """Whether what is in the file now was written by SQLite for us. Raises OSError."""
        if self._left is None or self._left.is_like(status):
            return True
        found = self._look(status)
        if not is_own(found, self._left, self._count):
            return False
        self._left = found
        return True

    def _look(self, status: os.stat_result) -> Left:
        """`status` is older than what is read: a write in between shows the next time."""
        return Left(status.st_size, status.st_mtime_ns, os.pread(self._find(), HEADER_BYTES, 0))

    def _find(self) -> int:
        """SQLite's descriptor."""
        if not self._is_it(self._descriptor):
            numbers = (int(link.name) for link in _OPEN_FILES.iterdir())
            self._descriptor = next((one for one in numbers if self._is_it(one)), -1)
        return self._descriptor

    def _is_it(self, descriptor: int) -> bool:
        try:
            return descriptor >= 0 and identity_of(os.fstat(descriptor)) == self._identity
        except OSError:  # it was closed meanwhile
            return False


def identity_of(status: os.stat_result) -> Identity:
    """What the file is known by."""
    return status.st_dev, status.st_ino
