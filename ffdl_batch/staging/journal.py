"""The journal of a task, a database of its own: files that are in place, parts of large files, uploads.

Every change is one transaction, so the journal is true after a kill. Files are not synchronised one by one: after a
reboot, the journal's statements about local files are ignored. Exclusive locking keeps the database's index out of
shared memory, which network file systems do not have.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ffdl_batch.domain.data.staging_protocol import Direction, Transfer
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.filesystem import why_unwritable
from ffdl_batch.host.processes import boot_id
from ffdl_batch.staging.stores.store import Item

_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
_USUAL = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}
"""Causes of SQLite's errors if the disk has none now."""
_FILE = "journal.sqlite"
_PAGE = 500
_NOTHING = "{}"
_TABLES = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS boot (id TEXT);
CREATE TABLE IF NOT EXISTS plan (place TEXT, name TEXT, key TEXT, size INTEGER, etag TEXT, mtime REAL,
    ranges INTEGER, opaque INTEGER, digests TEXT, PRIMARY KEY (place, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS there (place TEXT, name TEXT, size INTEGER, etag TEXT, mtime REAL,
    PRIMARY KEY (place, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settled (place TEXT, name TEXT, version TEXT, etag TEXT,
    PRIMARY KEY (place, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS started (place TEXT, name TEXT, version TEXT, upload TEXT, part_bytes INTEGER,
    PRIMARY KEY (place, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (place TEXT, name TEXT, number INTEGER, digest TEXT,
    PRIMARY KEY (place, name, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS waiting (place TEXT, name TEXT, version TEXT, since REAL,
    PRIMARY KEY (place, name)) WITHOUT ROWID;
DELETE FROM plan;
DELETE FROM there;
"""


@dataclass(frozen=True, slots=True)
class Planned:
    """A file to move: its name below the prefix, and its object."""

    name: str
    item: Item


@dataclass(frozen=True, slots=True)
class Settled:
    """A local file, by its version, that equals the object, by its ETag."""

    version: str
    etag: str


@dataclass(frozen=True, slots=True)
class Started:
    """A large file with parts that have moved. `version` is that of the source; `upload` is the store's id of an
    upload."""

    version: str
    upload: str
    part_bytes: int


def place_of(transfer: Transfer) -> str:
    """Return a short name of the transfer, the same in each run."""
    store = transfer.store
    words = (store.kind.value, store.endpoint, store.container, transfer.prefix.rstrip("/"), transfer.local)
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def has_journal(directory: str) -> bool:
    """Return whether a task has worked with this directory; False for ""."""
    return bool(directory) and Path(directory, _FILE).exists()


class Journal:
    """The journal in a directory, which is created. Methods may be called from several threads at once."""

    def __init__(self, directory: str, direction: Direction) -> None:
        """Raises OSError."""
        path = Path(directory)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock, self._path = threading.Lock(), path / _FILE
        try:
            with _by_errno(self._path):
                self._data = _opened(self._path)
        except sqlite3.DatabaseError:
            for old in path.glob(f"{_FILE}*"):
                old.unlink()
            with _by_errno(self._path):
                self._data = _opened(self._path)
        boot = boot_id()
        if self._row("SELECT id FROM boot") != (boot,):
            if direction is Direction.IN:
                for table in ("settled", "started", "parts"):
                    self._do(f"DELETE FROM {table}")  # noqa: S608 - our own words
            self._do("DELETE FROM boot")
            self._do("INSERT INTO boot VALUES (?)", boot)

    def close(self) -> None:
        """Close the database. No call may follow."""
        self._data.close()

    def plan(self, place: str, page: list[Planned]) -> None:
        """Add files that are to be moved."""
        rows = [(place, p.name, *_columns(p.item)) for p in page]
        with self._using():
            self._data.executemany("INSERT OR REPLACE INTO plan VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def planned(self, place: str) -> Iterator[Planned]:
        """Yield all planned files, in the order of names."""
        after = ""
        while True:
            rows = self._rows(
                "SELECT name, key, size, etag, mtime, ranges, opaque, digests FROM plan"
                " WHERE place = ? AND name > ? ORDER BY name LIMIT ?", place, after, _PAGE,
            )  # fmt: skip
            for name, key, size, etag, mtime, in_ranges, opaque, text in rows:
                digests = {} if text == _NOTHING else json.loads(text)  # listings have none
                item = Item(key, size, etag, mtime, bool(in_ranges), bool(opaque), digests)
                yield Planned(name, item)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def is_planned(self, place: str, name: str) -> bool:
        """Return whether a file of this name is to be moved."""
        return self._row("SELECT 1 FROM plan WHERE place = ? AND name = ?", place, name) is not None

    def unplan(self, place: str) -> None:
        """Remove the plan. The files are moved by other means."""
        self._do("DELETE FROM plan WHERE place = ?", place)

    def totals_of(self, place: str) -> tuple[int, int]:
        """Return files and bytes of one plan."""
        files, size = self._row("SELECT COUNT(*), TOTAL(MAX(size, 0)) FROM plan WHERE place = ?", place) or (0, 0)
        return int(files), int(size)

    def totals(self) -> tuple[int, int]:
        """Return files and bytes of all plans."""
        files, size = self._row("SELECT COUNT(*), TOTAL(MAX(size, 0)) FROM plan") or (0, 0)
        return int(files), int(size)

    def directories(self, place: str) -> frozenset[str]:
        """Return names of planned files that are also directories of other planned files."""
        rows = self._rows(
            "SELECT name FROM plan p WHERE place = ? AND EXISTS (SELECT 1 FROM plan b WHERE b.place = p.place"
            " AND b.name > p.name || '/' AND b.name < p.name || '0')", place,
        )  # fmt: skip
        return frozenset(str(name) for (name,) in rows)

    def to_come(self, place: str) -> int:
        """Return the bytes of planned objects that are not known to be in place, without parts that are."""
        rest = self._row(
            "SELECT TOTAL(MAX(size, 0)) FROM plan WHERE place = ? AND NOT EXISTS (SELECT 1 FROM settled s"
            " WHERE s.place = plan.place AND s.name = plan.name AND s.etag = plan.etag)", place,
        )  # fmt: skip
        parts = self._row("SELECT TOTAL(part_bytes) FROM parts JOIN started USING (place, name) WHERE place = ?", place)
        return max(0, int((rest or (0,))[0]) - int((parts or (0,))[0]))

    def note_stored(self, place: str, page: list[tuple[str, Item]]) -> None:
        """Remember what the store has, by name."""
        rows = [(place, name, item.size, item.etag, item.mtime) for name, item in page]
        with self._using():
            self._data.executemany("INSERT OR REPLACE INTO there VALUES (?, ?, ?, ?, ?)", rows)

    def has_settled(self, place: str) -> bool:
        """Return whether anything was the same on both sides."""
        return self._row("SELECT 1 FROM settled WHERE place = ? LIMIT 1", place) is not None

    def stored_item(self, place: str, name: str) -> Item | None:
        """Return what the store has of this name."""
        found = self._row("SELECT size, etag, mtime FROM there WHERE place = ? AND name = ?", place, name)
        return Item(name, *found) if found else None

    def settled(self, place: str, name: str) -> Settled | None:
        """Return what was the same on both sides."""
        found = self._row("SELECT version, etag FROM settled WHERE place = ? AND name = ?", place, name)
        return Settled(*found) if found else None

    def settled_versions(self, place: str, names: list[str]) -> dict[str, str]:
        """Return the versions of those local files that were the same on both sides."""
        rows = self._rows(
            "SELECT s.name, s.version FROM json_each(?) n JOIN settled s ON s.place = ? AND s.name = n.value",
            json.dumps(names), place,
        )  # fmt: skip
        return {str(name): str(version) for name, version in rows}

    def has_brought(self, name: str, version: str) -> bool:
        """Return whether a local file is as a transfer of this task left it, whatever its store."""
        return self._row("SELECT 1 FROM settled WHERE name = ? AND version = ? LIMIT 1", name, version) is not None

    def settle(self, place: str, name: str, settled: Settled) -> None:
        """Record a complete file, and forget its parts."""
        with self._using():
            self._data.execute(
                "INSERT OR REPLACE INTO settled VALUES (?, ?, ?, ?)", (place, name, settled.version, settled.etag)
            )
            _forget(self._data, place, name)
            self._data.execute("DELETE FROM waiting WHERE place = ? AND name = ?", (place, name))

    def wait(self, place: str, name: str, version: str, since: float) -> None:
        """Record that a file is being written and is left to a later run."""
        self._do("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?)", place, name, version, since)

    def waiting(self, place: str, name: str) -> tuple[str, float] | None:
        """Return the version that was seen last, and since when the file waits; None if it does not."""
        found = self._row("SELECT version, since FROM waiting WHERE place = ? AND name = ?", place, name)
        return (str(found[0]), float(found[1])) if found else None

    def start(self, place: str, name: str, started: Started) -> None:
        """Record that parts of a file will move, and forget earlier ones."""
        with self._using():
            _forget(self._data, place, name)
            values = (place, name, started.version, started.upload, started.part_bytes)
            self._data.execute("INSERT INTO started VALUES (?, ?, ?, ?, ?)", values)

    def started(self, place: str, name: str) -> Started | None:
        """Return the parts of an incomplete file."""
        row = "SELECT version, upload, part_bytes FROM started WHERE place = ? AND name = ?"
        found = self._row(row, place, name)
        return Started(*found) if found else None

    def unfinished(self, place: str) -> list[tuple[str, str]]:
        """Return names and upload ids of incomplete files."""
        rows = self._rows("SELECT name, upload FROM started WHERE place = ? AND upload != ''", place)
        return [(str(name), str(upload)) for name, upload in rows]

    def part(self, place: str, name: str, number: int, digest: str) -> None:
        """Record that a part has moved."""
        self._do("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", place, name, number, digest)

    def parts(self, place: str, name: str) -> dict[int, str]:
        """Return the digests of parts that have moved, by number."""
        rows = self._rows("SELECT number, digest FROM parts WHERE place = ? AND name = ?", place, name)
        return {int(number): str(digest) for number, digest in rows}

    def forget(self, place: str, name: str) -> None:
        """Record that nothing of the file has moved."""
        with self._using():
            _forget(self._data, place, name)

    def _do(self, text: str, *values: object) -> None:
        with self._using():
            self._data.execute(text, values)

    def _rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        with self._using():
            return self._data.execute(text, values).fetchall()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Make one transaction of the body. Raises OSError if the disk refuses it."""
        with _by_errno(self._path), self._lock, self._data:
            yield

    def _row(self, text: str, *values: object) -> tuple[Any, ...] | None:
        rows = self._rows(text, *values)
        return rows[0] if rows else None


@contextmanager
def _by_errno(path: Path) -> Iterator[None]:
    """Convert errors of SQLite that the disk causes to OSError with the directory. Each has several causes."""
    try:
        yield
    except sqlite3.OperationalError as error:
        refusal = why_unwritable(path)
        number = refusal.errno if refusal is not None and refusal.errno in _OF_DISKS else None
        number = number or _USUAL.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path.parent)) from error


def _columns(item: Item) -> tuple[Any, ...]:
    digests = json.dumps(item.digests)
    return (item.key, item.size, item.etag, item.mtime, item.ranges, item.opaque, digests)


def _forget(data: sqlite3.Connection, place: str, name: str) -> None:
    for table in ("started", "parts"):
        data.execute(f"DELETE FROM {table} WHERE place = ? AND name = ?", (place, name))  # noqa: S608 - our own words


def _opened(path: Path) -> sqlite3.Connection:
    data = sqlite3.connect(path, check_same_thread=False)
    try:
        data.executescript(_TABLES)
    except sqlite3.DatabaseError:
        data.close()
        raise
    return data
