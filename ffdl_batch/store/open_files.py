"""The files of an open SQLite database, and whether they still lie under their names.

A file that somebody deletes, moves or replaces stays open, and SQLite goes on writing into it: what is committed then
is gone with the process. So each file is known by device and inode from when it was opened. A stat(2) of a name costs
microseconds; opening the file once more would cost SQLite its locks (sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from ffdl_batch.ports.clock import Clock
from ffdl_batch.store.copies import CopyFailed, copy_database, stamp, unused
from ffdl_batch.store.errors import DatabaseGone

RESCUE_AGAIN_S = 30.0
"""After a copy that failed."""
_STOPPED = "nothing is accepted or written meanwhile"
_DELETED = " (deleted)"
_SILLY_NAME = re.compile(r"\.nfs[0-9a-f]{24}")
"""What NFS clients of Linux call a file that was deleted, or replaced, while it is open here; it goes with the process
(fs/nfs/unlink.c)."""
_OPEN_FILES = Path("/proc/self/fd")
Identity = tuple[int, int]
"""Device and inode."""


class OpenFiles:
    """Of one database, whose file is `path` for as long as it is open, and beside it names that go on with `beside`.
    Safe in every thread. Where `path` is a symbolic link, SQLite keeps those beside the file that it leads to.

    All methods raise DatabaseGone where the file system does not tell.
    """

    def __init__(self, path: Path, beside: Sequence[str], clock: Clock) -> None:
        self.path = path
        real = Path(os.path.realpath(path))
        self._names = [real.with_name(real.name + suffix) for suffix in beside]
        self._clock = clock
        self._lock = threading.Lock()
        self._file: Identity | None = None
        self._beside: dict[Path, Identity] = {}
        self._rescued: Path | None = None
        self._tried_at: float | None = None
        self._why_not = ""

    def note(self) -> None:
        """A connection was opened, and has read something. Raises DatabaseGone where that was another file than the
        first one's."""
        found = _identity(self.path)
        with self._lock:
            if found is None or found != (self._file or found):
                raise DatabaseGone(f"{self._what_happened()}; {_STOPPED}")
            self._file = found
            self._beside.clear()
        self.is_whole_beside()

    def is_there(self) -> bool:
        """Whether the name of the database leads to the file that is open, or none was opened yet."""
        return self._file is None or _identity(self.path) == self._file

    def is_whole_beside(self) -> bool:
        """Whether the same holds for log and journal. One that has come into being is known from now on."""
        found = {path: _identity(path) for path in self._names}
        with self._lock:
            for path, identity in found.items():
                if identity is not None:
                    self._beside.setdefault(path, identity)
            return all(found[path] == identity for path, identity in self._beside.items())

    def rescue(self, source: sqlite3.Connection, *, at_once: bool = False) -> DatabaseGone:
        """What to say of a file that is not there any more, once all that it holds is in a file again.

        `source` is the connection that has it open, in no transaction. A deleted file is copied, one that was moved
        gets what its log has. A copy that failed is tried again after half a minute, or `at_once`.
        """
        if self._place_now() is not None:
            source.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
            return DatabaseGone(f"{self._what_happened()}; {_STOPPED}. Move it back, and the daemon goes on")
        if self._rescued is None or not self._rescued.exists():
            self._copy(source, at_once=at_once)
        if self._rescued is None:
            kept = f"{self._why_not}. Nothing is lost as long as this daemon runs: make room for a copy there"
            return DatabaseGone(f"{self._what_happened()}; {_STOPPED}; {kept}", holds_last_copy=True)
        force = " --force" if self.path.exists() else ""
        cure = f"ffdl daemon stop; ffdl-admin db restore {self._rescued}{force}"
        return DatabaseGone(f"{self._what_happened()}; {_STOPPED}. All that it held is in a copy: {cure}")

    def _copy(self, source: sqlite3.Connection, *, at_once: bool) -> None:
        """Into a file of its own. Its source is read only now, so that the first copy stays the last."""
        now = self._clock.monotonic()
        if self._tried_at is not None and now - self._tried_at < RESCUE_AGAIN_S and not at_once:
            return
        self._tried_at = now
        target = unused(self.path.with_name(f"{self.path.name}.rescued-{stamp(self._clock.now())}"))
        source.execute("BEGIN").close()
        try:
            source.execute("SELECT count(*) FROM sqlite_master").close()
            copy_database(source, target)
            self._rescued = target
        except CopyFailed as error:
            self._why_not = str(error)
        finally:
            source.execute("ROLLBACK").close()

    def _what_happened(self) -> str:
        moved_to = self._place_now()
        another = ", and another file is in its place" if self.path.exists() else ""
        happened = f"was moved to {moved_to}" if moved_to is not None else "was deleted"
        return f"the database {self.path} {happened}{another}, while a daemon works with it"

    def _place_now(self) -> str | None:
        """Where the open file lies now; None where it has no name any more, or none that outlives this process."""
        try:
            for link in _OPEN_FILES.iterdir():  # some are closed by now
                if self._file is not None and _identity(link) == self._file:
                    place = link.readlink()
                    is_deleted = str(place).endswith(_DELETED) or _SILLY_NAME.fullmatch(place.name)
                    return None if is_deleted else str(place)
        except OSError as error:
            message = f"the database {self.path} is not in its place, and nobody can tell why: {error.strerror}"
            raise DatabaseGone(f"{message}; try again", holds_last_copy=True) from error
        return None


def _identity(path: Path) -> Identity | None:
    """None where there is no such file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DatabaseGone(f"nobody can tell whether {path} is in its place: {error.strerror}; try again") from error
    return found.st_dev, found.st_ino
