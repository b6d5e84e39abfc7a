"""Check that the files of an open SQLite database are still under their names.

SQLite continues to write into a file that was deleted, moved or replaced: such commits are lost when the process ends.
So the device and the inode of each file are recorded when it is opened. stat(2) of a name costs microseconds; opening
the database file again would release SQLite's locks (sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from ffdl_batch.store.errors import DatabaseGone

Identity = tuple[int, int]
"""Device and inode."""
_STOPPED = "while a daemon works with it; nothing is accepted or written"


class OpenFiles:
    """The file of the database `path`, and those beside it whose names end with one of `beside`. Safe in every thread.

    If `path` is a symbolic link, SQLite keeps the others beside its target. All methods raise DatabaseGone if the file
    system does not answer.
    """

    def __init__(self, path: Path, beside: Sequence[str]) -> None:
        self._path = path
        real = Path(os.path.realpath(path))
        self._names = [real.with_name(real.name + suffix) for suffix in beside]
        self._lock = threading.Lock()
        self._file: Identity | None = None
        self._beside: dict[Path, Identity] = {}

    def note_opened(self) -> None:
        """Record the files of a connection that was just opened.

        Raises DatabaseGone if the database is another file than that of the first connection.
        """
        found = _identity(self._path)
        with self._lock:
            if found is None or found != (self._file or found):
                raise self._gone(self._path)
            self._file = found
            self._beside.clear()
        self.find_misplaced()

    def find_misplaced(self) -> Path | None:
        """Return a name that does not lead to the open file any more; None if there is none."""
        found = {path: _identity(path) for path in (self._path, *self._names)}
        with self._lock:
            if self._file is not None and found[self._path] != self._file:
                return self._path
            for path in self._names:
                identity = found[path]
                if identity is not None:  # SQLite creates some of them later
                    self._beside.setdefault(path, identity)
                if identity != self._beside.get(path):
                    return path
        return None

    def refuse_misplaced(self) -> None:
        """Raise DatabaseGone, with the way out, if :meth:`find_misplaced` returns a name."""
        path = self.find_misplaced()
        if path is not None:
            raise self._gone(path)

    def _gone(self, path: Path) -> DatabaseGone:
        if path == self._path:
            cure = "move it back, or restore a backup (ffdl daemon stop; ffdl-admin db restore FILE --force)"
            return DatabaseGone(f"the database {path} was deleted, moved or replaced {_STOPPED}: {cure}")
        cure = "run `ffdl daemon restart`, which writes what it held into the database"
        return DatabaseGone(f"{path}, a part of the database {self._path}, was deleted or replaced {_STOPPED}: {cure}")


def _identity(path: Path) -> Identity | None:
    """Return what the file is known by; None if it does not exist."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"the file system does not say whether {path} is in its place: {error.strerror}; try again"
        raise DatabaseGone(message) from error
    return status.st_dev, status.st_ino
