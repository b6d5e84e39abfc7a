"""The files of an open SQLite database: whether they still lie under their names, and hold what SQLite wrote.

A file that somebody deletes, moves or replaces stays open, and SQLite goes on writing into it: what is committed then
is gone with the process. So each file is known by device and inode from when it was opened. A stat(2) of a name costs
microseconds; opening the file once more would cost SQLite its locks (sqlite.org/howtocorrupt.html, 2.2).

A file that another program writes into (`cp COPY FILE`) stays where it is. What SQLite has of the one before would be
mixed with it, so from then on nothing is read or written, and the log stays out of it (:class:`OwnWrites`).
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ffdl_batch.ports.clock import Clock
from ffdl_batch.store.errors import DatabaseDamaged, DatabaseGone
from ffdl_batch.store.sqlite_backup import CopyFailed, copy_database, stamp, unused, upgrade_copies
from ffdl_batch.store.sqlite_copy_names import kept_copies
from ffdl_batch.store.sqlite_foreign_writes import Identity, OwnWrites, identity_of

log = logging.getLogger(__name__)

RESCUE_AGAIN_S = 30.0
"""After a copy that failed."""
_STOPPED = "nothing is accepted or written meanwhile"
_DELETED = " (deleted)"
_SILLY_NAME = re.compile(r"\.nfs[0-9a-f]{24}")
"""What NFS clients of Linux call a file that was deleted, or replaced, while it is open here; it goes with the process
(fs/nfs/unlink.c)."""
_OPEN_FILES = Path("/proc/self/fd")
_NAMED_COPIES = 3
"""So many are enough in a message."""


class OpenFiles:
    """Of one database, whose file is `path` for as long as it is open, and beside it names that go on with `beside`.
    Safe in every thread. Where `path` is a symbolic link, SQLite keeps those beside the file that it leads to.

    All methods raise DatabaseGone where the file system does not tell.
    """

    def __init__(self, path: Path, beside: Sequence[str], clock: Clock) -> None:
        self.path = path
        self._real = Path(os.path.realpath(path))
        self._names = [self._real.with_name(self._real.name + suffix) for suffix in beside]
        self._clock = clock
        self._lock = threading.Lock()
        self._file: Identity | None = None
        self._beside: dict[Path, Identity] = {}
        self._rescued: Path | None = None
        self._tried_at: float | None = None
        self._why_not = ""
        self._own = OwnWrites()
        self._overwritten = ""

    def note(self, count: int) -> None:
        """A connection was opened, and has read something; `count` is its `user_version`. Raises DatabaseGone where
        that was another file than the first one's."""
        status = _status(self.path)
        with self._lock:
            if status is None or identity_of(status) != (self._file or identity_of(status)):
                raise DatabaseGone(f"{self._what_happened()}; {_STOPPED}")
            if self._file is None:
                self._own.note(status, count)
            self._file = identity_of(status)
            self._beside.clear()
        self.is_whole_beside()
        self.refuse_foreign()

    def count_up(self) -> int:
        """The `user_version` that the next commit must set, so that the file is known to be ours after it."""
        return self._own.count_up()

    def is_as_left(self) -> bool:
        """Whether nobody has written into the file, as far as its size and time tell."""
        status = _status(self.path)
        return not self._overwritten and (status is None or self._own.is_as_left(status))

    def refuse_overwritten(self) -> None:
        """Raise DatabaseDamaged where :meth:`refuse_foreign` did before."""
        if self._overwritten:
            raise DatabaseDamaged(self._overwritten)

    def refuse_foreign(self) -> None:
        """Raise DatabaseDamaged where another program has written into the file, which must lie under its name. For who
        has the connection."""
        self.refuse_overwritten()
        status = _status(self.path)
        if status is None or identity_of(status) != self._file:
            return  # it was moved in this moment, and is missed by the next look
        try:
            is_own = self._own.is_own(status)
        except OSError as error:
            raise DatabaseGone(
                f"nobody can tell who has written into the database {self.path}: {error.strerror}; try again"
            ) from error
        if not is_own:
            kept = self._put_log_aside()
            self._overwritten = f"{self._what_was_written()}. {kept}{self._cure()}"
            raise DatabaseDamaged(self._overwritten)

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """While the last connection is closed: SQLite folds no log into a file that is not under its name then, and no
        other way to have it so is open to Python before 3.12 (SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)."""
        if not self._overwritten:
            yield
            return
        aside = unused(self._real.with_name(f"{self._real.name}.replaced-{stamp(self._clock.now())}"))
        try:
            if self.is_there():
                self._real.rename(aside)
        except (OSError, DatabaseGone) as error:
            log.error("what lies in %s now may be mixed with what this daemon wrote last: %s", self.path, error)
        try:
            yield
        finally:
            if aside.exists() and not self._real.exists():
                aside.rename(self._real)

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
        cure = f"(ffdl daemon stop; ffdl-admin db restore {self._rescued}{force})"
        return DatabaseGone(f"{self._what_happened()}; {_STOPPED}. All that it held is in a copy {cure}")

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

    def _put_log_aside(self) -> str:
        """What somebody else wrote is a database of its own, or none: a log beside it would be taken for its own. Only
        the name is another from now on, and the index of the log has none."""
        kept = unused(self._real.with_name(f"{self._real.name}.overwritten-{stamp(self._clock.now())}"))
        said = ""
        for path in self._names:
            try:
                if path.name.endswith("-shm"):
                    path.unlink(missing_ok=True)
                elif path.name.endswith("-wal") and path.exists():
                    path.rename(kept.with_name(f"{kept.name}-wal"))
                    said = f"What its log held is in {kept}-wal. "
            except OSError as error:
                said += f"{path} could not be put aside ({error.strerror}): remove it when the daemon has ended. "
        return said

    def _what_was_written(self) -> str:
        happened = f"the database {self.path} is damaged: another program wrote into it, while a daemon works with it"
        return f"{happened}; {_STOPPED}. Jobs acknowledged since what is there now was copied are in no database"

    def _cure(self) -> str:
        """With the copies that lie beside it, newest first."""
        try:
            copies = [*kept_copies(self.path), *(one for _, one in upgrade_copies(self.path))][:_NAMED_COPIES]
        except OSError:
            copies = []
        named = f"Beside it lie {', '.join(map(str, copies))}. " if copies else ""
        return f"{named}Put the best copy in its place (ffdl daemon stop; ffdl-admin db restore FILE --force)"

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
    status = _status(path)
    return None if status is None else identity_of(status)


def _status(path: Path) -> os.stat_result | None:
    """None where there is no such file."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DatabaseGone(f"nobody can tell whether {path} is in its place: {error.strerror}; try again") from error
