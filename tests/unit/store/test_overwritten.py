"""Another program writes into the file of a SQLite database while it is open: `cp COPY FILE`.

Nothing is acknowledged that would be lost, what was put there is not mixed with what was there, and whoever only looks,
or shares the database through SQLite, disturbs nobody.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import event

from ffdl_batch.store import DatabaseDamaged, Store, open_store
from ffdl_batch.store.schema_upgrade import driver_connection
from ffdl_batch.store.sqlite_backup import companions, copy_database
from ffdl_batch.store.sqlite_foreign_writes import COUNTS, HEADER_BYTES, Left, is_own
from tests.unit.store import test_open_files
from tests.unit.store.jobs import FakeClock, add_job
from tests.unit.store.test_open_files import ids_in, network_fs, opened, path

__all__ = ["network_fs", "opened", "path"]  # fixtures
refused = partial(test_open_files.refused, error=DatabaseDamaged)
LOCAL = pytest.mark.parametrize("network_fs", [False], indirect=True)


def fold(store: Store) -> None:
    """As SQLite does by itself after a thousand pages."""
    with store.engine.connect() as connection:
        driver_connection(connection).execute("PRAGMA wal_checkpoint").close()


def backup(store: Store, path: Path) -> bytes:
    """What ``ffdl-admin db backup`` writes."""
    target = path.with_name("backup")
    with store.engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").fetchone()
        copy_database(driver_connection(connection), target)
    return target.read_bytes()


def plain(store: Store, path: Path) -> bytes:
    """What ``cp`` copies."""
    fold(store)
    return path.read_bytes()


def newer(store: Store, path: Path) -> bytes:
    """Of another database, which has seen more."""
    target = path.with_name("newer")
    other = open_store(f"sqlite:///{target}", network_fs=not companions(path)[1].exists())
    for number in range(20):
        add_job(other, f"other {number}")
    other.close()
    return target.read_bytes()


def nothing(_store: Store, _path: Path) -> bytes:
    return b""


def junk(_store: Store, path: Path) -> bytes:
    return b"\xff" * path.stat().st_size


@pytest.mark.parametrize("copied", [backup, plain, newer, nothing, junk])
def test_store_rejects_jobs_and_keeps_foreign_content_when_overwritten(
    opened: Store, path: Path, copied: Callable[[Store, Path], bytes], network_fs: bool
) -> None:
    add_job(opened, "before")
    foreign = copied(opened, path)
    add_job(opened, "between")
    fold(opened)
    add_job(opened, "last")
    inode = path.stat().st_ino
    path.write_bytes(foreign)

    said = refused(opened)
    assert said.startswith(f"the database {path} is damaged: another program wrote into it, while a daemon works"), said
    assert "Jobs acknowledged since what is there now was copied are in no database" in said
    assert said.endswith("(ffdl daemon stop; ffdl-admin db restore FILE --force)")
    assert refused(opened, "later") == said
    with pytest.raises(DatabaseDamaged):
        opened.list_jobs(uid=None)
    log, memory = companions(path)[1:]
    assert not log.exists() and not memory.exists(), "who opens it now would take the log for its own"
    opened.close()
    assert path.read_bytes() == foreign and path.stat().st_ino == inode
    assert not log.exists()
    kept = list(path.parent.glob("jobs.db.overwritten-*-wal"))
    assert [one.stat().st_size > 0 and str(one) in said for one in kept] == ([] if network_fs else [True])
    assert list(path.parent.glob("*.replaced-*")) == []


def test_store_rejects_jobs_when_database_is_truncated(opened: Store, path: Path) -> None:
    add_job(opened)
    fold(opened)
    opened.look_after_files()
    os.truncate(path, path.stat().st_size - 4096)
    assert "another program wrote into it" in refused(opened)


def test_store_file_check_detects_overwritten_database_without_writes(opened: Store, path: Path) -> None:
    foreign = backup(opened, path)
    kept = str(add_job(opened).id)
    opened.look_after_files()
    path.write_bytes(foreign)
    with pytest.raises(DatabaseDamaged, match="another program wrote into it"):
        opened.look_after_files()
    assert opened.trouble is not None and not opened.trouble.holds_last_copy
    assert kept not in ids_in(path), "what was put there is as it was put there, if the daemon is killed now"


def test_store_error_names_copies_beside_overwritten_database(opened: Store, path: Path) -> None:
    rescued = path.with_name("jobs.db.rescued-20261122T000000Z")
    upgrade = path.with_name("jobs.db.revision-0001-20261121T000000Z")
    for copy in (rescued, upgrade):
        copy.touch()
    path.write_bytes(b"")
    assert f"Beside it lie {rescued}, {upgrade}. Put the best copy in its place" in refused(opened)


@LOCAL
def test_store_acknowledges_no_commit_made_during_overwrite(opened: Store, path: Path) -> None:
    """Between the last look and the commit, which goes into the log."""
    foreign = backup(opened, path)
    add_job(opened, "first")
    event.listen(opened.engine, "commit", lambda _: path.write_bytes(foreign))
    refused(opened)


def test_store_commits_nothing_into_file_overwritten_in_transaction(opened: Store, path: Path) -> None:
    foreign = backup(opened, path)
    add_job(opened, "first")

    def overwrite(*execution: object) -> None:
        if "INSERT INTO jobs" in str(execution[2]):
            path.write_bytes(foreign)

    event.listen(opened.engine, "after_cursor_execute", overwrite)
    refused(opened)
    assert path.read_bytes() == foreign


def test_store_accepts_database_touched_or_rewritten_with_same_content(opened: Store, path: Path) -> None:
    kept = {str(add_job(opened, "first").id)}
    disturbances: tuple[Callable[[Path], object], ...] = (os.utime, lambda file: file.write_bytes(file.read_bytes()))
    for number, disturb in enumerate(disturbances):
        disturb(path)
        opened.look_after_files()
        disturb(path)
        kept.add(str(add_job(opened, f"after {number}").id))
    assert opened.trouble is None
    opened.close()
    assert ids_in(path) == kept


@LOCAL
@pytest.mark.parametrize("mode", ["PASSIVE", "TRUNCATE"])
def test_store_accepts_wal_checkpoint_by_other_sqlite_program(opened: Store, path: Path, mode: str) -> None:
    kept = {str(add_job(opened, "first").id)}
    for number in range(3):
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE jobs SET name = 'another'")
            other.commit()
            assert other.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0] == 0
        opened.look_after_files()
        kept.add(str(add_job(opened, f"after {number}").id))
    assert opened.trouble is None and ids_in(path) == kept


@LOCAL
def test_store_accepts_partial_checkpoint_while_reader_holds_older_state(opened: Store, path: Path) -> None:
    """The file is between two commits then."""
    add_job(opened, "first")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader, closing(sqlite3.connect(path)) as other:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        add_job(opened, "second")
        assert other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1:] != (0, 0)
        opened.look_after_files()
        add_job(opened, "third")
    fold(opened)
    opened.look_after_files()
    assert opened.trouble is None and len(ids_in(path)) == 3


def test_store_accepts_checkpoints_by_own_commits(opened: Store, path: Path) -> None:
    with opened.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_autocheckpoint = 1")
    kept = {str(add_job(opened, f"k{number}").id) for number in range(20)}
    opened.look_after_files()
    assert opened.trouble is None and ids_in(path) == kept


def test_store_continues_write_count_after_reopening(path: Path, clock: FakeClock, network_fs: bool) -> None:
    for number in range(3):
        store = open_store(f"sqlite:///{path}", network_fs=network_fs, clock=clock)
        add_job(store, f"k{number}")
        store.close()
        header = path.read_bytes()[:HEADER_BYTES]
        assert int.from_bytes(header[60:64], "big") >= number + 1
    assert len(ids_in(path)) == 3


def header(count: int, modes: bytes = b"\2\2", rest: bytes = b"") -> bytes:
    start = b"SQLite format 3\0\x10\0" + modes
    return start.ljust(60, b"\0") + count.to_bytes(4, "big") + rest.ljust(36, b"\0")


@pytest.mark.parametrize(
    ("found", "committed", "ours"),
    [
        (header(5), 5, True),  # it was touched
        (header(6), 7, True),
        (header(7), 7, True),
        (header(8), 7, False),
        (header(4), 7, False),
        (header(5, rest=b"a table more"), 5, True),
        (header(6, b"\1\1"), 7, False),
        (header(6)[:50], 7, False),
        (b"", 7, False),
    ],
)
def test_is_own_recognizes_own_writes_by_header_count(found: bytes, committed: int, ours: bool) -> None:
    assert is_own(Left(8192, 2, found), Left(8192, 1, header(5)), committed) is ours


def test_is_own_accepts_wrapped_write_count() -> None:
    before = Left(8192, 1, header(COUNTS - 2))
    assert [is_own(Left(8192, 2, header(count)), before, 1) for count in (1, 2, COUNTS - 3)] == [True, False, False]
    assert is_own(Left(4096, 2, header(7)), Left(0, 1, b""), 1), "there was nothing yet"
