"""The files of a SQLite database are deleted, moved or replaced while it is open.

Nothing that was acknowledged is lost, and nothing is acknowledged that would be.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from ffdl_batch.store import DatabaseGone, Store, StoreError, StoreUnavailable, open_store
from ffdl_batch.store.sqlite_backup import CopyFailed, companions
from tests.unit.store.jobs import FakeClock, add_job, new_job

CURE = re.compile(r"ffdl daemon stop; ffdl-admin db restore (\S+\.rescued-[^\s)]+)( --force)?\)$")


@pytest.fixture(params=[False, True], ids=["log", "journal"])
def network_fs(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def opened(path: Path, network_fs: bool, clock: FakeClock) -> Iterator[Store]:
    store = open_store(f"sqlite:///{path}", network_fs=network_fs, clock=clock)
    yield store
    store.close()


def ids_in(file: Path) -> set[str]:
    """The jobs of a file, as whoever opens it sees them after whoever has it open was killed."""
    copy = file.with_name("copy-of-" + file.name)
    for source, target in zip((file, *companions(file)), (copy, *companions(copy)), strict=True):
        target.unlink(missing_ok=True)
        if source.exists():
            shutil.copy(source, target)
    with closing(sqlite3.connect(copy)) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM jobs")}


def refused(store: Store, key: str = "late", error: type[StoreError] = DatabaseGone) -> str:
    """What somebody hears whose job cannot be kept; it is the daemon's trouble from now on."""
    with pytest.raises(error) as caught:
        add_job(store, key)
    assert store.trouble is not None and store.trouble.sentence == str(caught.value)
    return str(caught.value)


def test_store_rejects_jobs_and_saves_copy_when_database_is_deleted(opened: Store, path: Path) -> None:
    kept = {str(add_job(opened, f"k{number}").id) for number in range(3)}
    path.unlink()
    said = refused(opened)
    assert said.startswith(f"the database {path} was deleted, while a daemon works with it; nothing is accepted")
    found = CURE.search(said)
    assert found is not None and found[2] is None, said
    rescued = Path(found[1])
    assert ids_in(rescued) == kept and rescued.stat().st_mode & 0o777 == 0o600
    assert refused(opened, "later") == said  # the same copy: nothing was added to it
    assert {str(job.id) for job in opened.list_jobs(uid=None)} == kept
    assert not path.exists()


def test_store_acknowledges_no_commit_made_during_deletion(opened: Store, path: Path) -> None:
    """It is deleted between the look before the commit and the commit."""
    add_job(opened)
    event.listen(opened.engine, "commit", lambda _: path.unlink(missing_ok=True))
    refused(opened)


def test_store_accepts_jobs_again_when_moved_database_is_back(opened: Store, path: Path, tmp_path: Path) -> None:
    kept = {str(add_job(opened).id)}
    elsewhere = tmp_path / "elsewhere.db"
    path.rename(elsewhere)
    said = refused(opened)
    assert f"{path} was moved to {elsewhere}, while a daemon works with it" in said and "Move it back" in said
    assert list(tmp_path.glob("*.rescued-*")) == []
    with pytest.raises(DatabaseGone):
        opened.add_jobs([new_job("of a batch")])
    elsewhere.rename(path)
    assert {str(job.id) for job in opened.list_jobs(uid=None)} == kept
    kept.add(str(add_job(opened, "again").id))
    assert opened.trouble is None
    opened.close()
    assert ids_in(path) == kept


def test_store_saves_copy_and_keeps_foreign_file_when_database_is_replaced(
    opened: Store, path: Path, tmp_path: Path
) -> None:
    kept = {str(add_job(opened).id)}
    copy = tmp_path / "copy"
    with closing(sqlite3.connect(copy)) as other:
        other.execute("CREATE TABLE jobs (id TEXT)")
    before = copy.read_bytes()
    copy.rename(path)
    said = refused(opened)
    assert "was deleted, and another file is in its place" in said
    found = CURE.search(said)
    assert found is not None and found[2] == " --force", said
    assert ids_in(Path(found[1])) == kept
    assert path.read_bytes() == before


def test_store_retries_rescue_copy_after_interval_if_it_failed(
    opened: Store, tmp_path: Path, path: Path, clock: FakeClock
) -> None:
    kept = {str(add_job(opened).id)}
    shutil.rmtree(tmp_path)
    said = refused(opened)
    assert f"no copy could be written to {path}.rescued-" in said
    assert "Nothing is lost as long as this daemon runs" in said
    assert opened.trouble is not None and opened.trouble.holds_last_copy
    tmp_path.mkdir()
    assert "no copy" in refused(opened)
    clock.time += 31
    found = CURE.search(refused(opened))
    assert found is not None and ids_in(Path(found[1])) == kept
    assert not opened.trouble.holds_last_copy


def test_store_retries_rescue_copy_at_close(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, network_fs: bool
) -> None:
    store = open_store(f"sqlite:///{path}", network_fs=network_fs, clock=clock)
    kept = str(add_job(store, "k").id)
    path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr("ffdl_batch.store.sqlite_files.copy_database", _no_room)
        refused(store)
    store.close()  # at the same moment of its clock, while requests would still wait for the next try
    (copy,) = path.parent.glob("*.rescued-*")
    assert ids_in(copy) == {kept}


def _no_room(_source: sqlite3.Connection, _target: Path) -> None:
    raise CopyFailed("No space left on device")


def test_open_store_checks_file_system_of_link_target(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "jobs.db").symlink_to(elsewhere / "kept.db")
    monkeypatch.setattr("ffdl_batch.store.database.is_network", lambda directory: directory == elsewhere)
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}", network_fs=None, clock=clock)
    add_job(store, "k")
    names = {file.name for file in elsewhere.iterdir()}
    store.close()
    assert "kept.db-journal" in names and "kept.db-wal" not in names


def test_store_treats_nfs_silly_renamed_database_as_deleted(opened: Store, path: Path) -> None:
    """The client renames what is deleted while it is open, and removes it with the process (sillyrename)."""
    kept = {str(add_job(opened).id)}
    path.rename(path.with_name(".nfs000000000012ab3400000001"))
    said = refused(opened)
    found = CURE.search(said)
    assert "was deleted, while" in said and found is not None, said
    assert ids_in(Path(found[1])) == kept


def test_store_rejects_jobs_on_deleted_database_without_free_descriptors(
    opened: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> Iterator[Path]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    kept = {str(add_job(opened).id)}
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fail)
        assert "Too many open files; try again" in refused(opened)
    found = CURE.search(refused(opened))
    assert found is not None and ids_in(Path(found[1])) == kept


def test_store_finds_wal_beside_target_of_linked_database(tmp_path: Path, clock: FakeClock) -> None:
    file, link = tmp_path / "real" / "file", tmp_path / "jobs.db"
    file.parent.mkdir()
    file.touch()
    link.symlink_to(file)
    store = open_store(f"sqlite:///{link}", network_fs=False, clock=clock)
    kept = {str(add_job(store).id)}
    for beside in companions(file):
        beside.unlink(missing_ok=True)
    kept.add(str(add_job(store, "second").id))
    assert ids_in(file) == kept
    link.unlink()
    assert "was moved to" in refused(store)
    store.close()


def test_store_opens_database_in_directory_that_is_not_utf8(tmp_path: Path, clock: FakeClock) -> None:
    directory = tmp_path / os.fsdecode(b"caf\xe9")
    directory.mkdir()
    kept = set()
    for key in ("first", "second"):
        store = open_store(f"sqlite:///{directory}/jobs.db", network_fs=False, clock=clock)
        kept.add(str(add_job(store, key).id))
        store.close()
    assert ids_in(directory / "jobs.db") == kept


def test_store_recreates_deleted_log_without_losing_jobs(
    opened: Store, path: Path, network_fs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The deleted log holds what was committed before, and what is committed now."""
    kept = {str(add_job(opened).id)}
    for beside in companions(path):
        beside.unlink(missing_ok=True)
    kept.add(str(add_job(opened, "second").id))
    assert ids_in(path) == kept
    assert network_fs or "was deleted or replaced under this daemon; its content is saved" in caplog.text
    kept.add(str(add_job(opened, "third").id))
    assert ids_in(path) == kept


@pytest.mark.parametrize("network_fs", [False], indirect=True)
def test_store_rejects_jobs_while_deleted_log_cannot_be_saved(opened: Store, path: Path) -> None:
    add_job(opened)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        add_job(opened, "seen by no reader")
        path.with_name(path.name + "-wal").unlink()
        with opened.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 50")
        with pytest.raises(StoreUnavailable, match=r"log of the database .* was deleted, and cannot be saved"):
            add_job(opened, "late")
    add_job(opened, "later")
    assert len(ids_in(path)) == 3
    assert opened.trouble is None


def test_store_file_check_detects_deleted_files_without_writes(opened: Store, path: Path) -> None:
    kept = {str(add_job(opened).id)}
    opened.look_after_files()
    for beside in companions(path):
        beside.unlink(missing_ok=True)
    opened.look_after_files()
    assert (ids_in(path), opened.trouble) == (kept, None)
    path.unlink()
    with pytest.raises(DatabaseGone, match="was deleted"):
        opened.look_after_files()
    assert opened.trouble is not None
    (rescued,) = path.parent.glob("*.rescued-*")
    assert ids_in(rescued) == kept
