"""The real ffdl-submitd, which counts what it asks of its database. Run as a module, as the daemon is.

The file that TEST_COUNTS names holds two numbers: its SQL statements without BEGIN and COMMIT, and its commits.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import event

from ffdl_batch.config import Settings
from ffdl_batch.daemon.main import main
from ffdl_batch.daemon.platform import Platform, open_platform

_NUMBERS = struct.Struct("=QQ")


class Counts:
    """Two numbers in a file that another process reads while they grow."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_NUMBERS.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _NUMBERS.size)
        self._lock = threading.Lock()

    def add(self, statements: int = 0, commits: int = 0) -> None:
        """Count; safe in every thread."""
        with self._lock:
            before = _NUMBERS.unpack_from(self._memory)
            _NUMBERS.pack_into(self._memory, 0, before[0] + statements, before[1] + commits)


def read_counts(path: Path) -> tuple[int, int]:
    """Statements and commits so far."""
    statements, commits = _NUMBERS.unpack(path.read_bytes())
    return int(statements), int(commits)


def opener(settings: Settings) -> Platform:
    """The platform, its database listened to."""
    platform = open_platform(settings)
    counts = Counts(Path(os.environ["TEST_COUNTS"]))

    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            counts.add(statements=1)

    event.listen(platform.storage.store.engine, "after_cursor_execute", executed)
    event.listen(platform.storage.store.engine, "commit", lambda _connection: counts.add(commits=1))
    return platform


if __name__ == "__main__":
    sys.exit(main(opener=opener))
