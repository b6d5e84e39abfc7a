"""The files of a SQLite database are deleted, moved or replaced while it is open: no write is reported as a success."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from ffdl_batch.store import DatabaseGone, Store, open_store
from ffdl_batch.store.sqlite_files import companions
from tests.unit.store.jobs import FakeClock, add_job, new_job


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
    """Return the jobs of a file as a process finds them after the one that has it open was killed."""
    copy = file.with_name("copy-of-" + file.name)
    for source, target in zip((file, *companions(file)), (copy, *companions(copy)), strict=True):
        target.unlink(missing_ok=True)
        if source.exists():
            shutil.copy(source, target)
    with closing(sqlite3.connect(copy)) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM jobs")}


def refused(store: Store, key: str = "late") -> str:
    """Return why a job is refused; that is the daemon's database trouble from now on."""
    with pytest.raises(DatabaseGone) as caught:
        add_job(store, key)
    assert store.outage is not None and store.outage.detail == str(caught.value)
    return str(caught.value)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"another database")
    other.rename(path)


def delete_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("deed", [delete, replace, delete_directory])
def test_store_rejects_jobs_when_database_is_deleted_or_replaced(
    opened: Store, path: Path, deed: Callable[[Path], None]
) -> None:
    kept = {str(add_job(opened, f"k{number}").id) for number in range(3)}
    deed(path)
    said = refused(opened)
    assert said.startswith(
        f"the database {path} was deleted, moved or replaced while a daemon works with it; nothing is"
    )
    assert said.endswith("restore a backup (ffdl daemon stop; ffdl-admin db restore FILE --force)")
    assert refused(opened, "later") == said
    assert {str(job.id) for job in opened.list_jobs(uid=None)} == kept
    opened.close()
    assert deed is not replace or path.read_bytes() == b"another database"
    assert deed is replace or not path.exists()


def test_store_acknowledges_no_commit_made_during_deletion(opened: Store, path: Path) -> None:
    """It is deleted between the check before the commit and the commit."""
    add_job(opened)
    event.listen(opened.engine, "commit", lambda _: path.unlink(missing_ok=True))
    refused(opened)


def test_store_accepts_jobs_again_when_moved_database_is_back(opened: Store, path: Path, tmp_path: Path) -> None:
    kept = {str(add_job(opened).id)}
    elsewhere = tmp_path / "elsewhere.db"
    path.rename(elsewhere)
    assert "move it back" in refused(opened)
    with pytest.raises(DatabaseGone):
        opened.add_jobs([new_job("of a batch")])
    elsewhere.rename(path)
    assert {str(job.id) for job in opened.list_jobs(uid=None)} == kept
    kept.add(str(add_job(opened, "again").id))
    assert opened.outage is None
    opened.close()
    assert ids_in(path) == kept


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


def test_store_finds_wal_beside_target_of_linked_database(tmp_path: Path, clock: FakeClock) -> None:
    file, link = tmp_path / "real" / "file", tmp_path / "jobs.db"
    file.parent.mkdir()
    file.touch()
    link.symlink_to(file)
    store = open_store(f"sqlite:///{link}", network_fs=False, clock=clock)
    add_job(store)
    log = companions(file)[1]
    log.rename(tmp_path / "log")
    assert str(log) in refused(store)
    (tmp_path / "log").rename(log)
    add_job(store, "second")
    link.unlink()
    assert f"the database {link} was deleted" in refused(store)
    store.close()
    assert len(ids_in(file)) == 2


def test_store_opens_database_in_directory_that_is_not_utf8(tmp_path: Path, clock: FakeClock) -> None:
    directory = tmp_path / os.fsdecode(b"caf\xe9")
    directory.mkdir()
    kept = set()
    for key in ("first", "second"):
        store = open_store(f"sqlite:///{directory}/jobs.db", network_fs=False, clock=clock)
        kept.add(str(add_job(store, key).id))
        store.close()
    assert ids_in(directory / "jobs.db") == kept


def test_store_rejects_jobs_when_log_is_deleted_and_keeps_them_when_closed(opened: Store, path: Path) -> None:
    """The deleted log holds what was committed before."""
    kept = {str(add_job(opened).id)}
    for beside in companions(path):
        beside.unlink(missing_ok=True)
    said = refused(opened)
    assert f"a part of the database {path}, was deleted or replaced" in said and "`ffdl daemon restart`" in said
    opened.close()
    assert ids_in(path) == kept


def test_store_file_check_detects_deleted_files_without_writes(opened: Store, path: Path) -> None:
    opened.check_files()
    add_job(opened)
    opened.check_files()
    path.unlink()
    with pytest.raises(DatabaseGone, match="was deleted"):
        opened.check_files()
    assert opened.outage is not None


@pytest.mark.parametrize("network_fs", [False], indirect=True)
def test_store_accepts_wal_checkpoint_by_other_sqlite_program(opened: Store, path: Path) -> None:
    kept = {str(add_job(opened, "first").id)}
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    opened.check_files()
    kept.add(str(add_job(opened, "second").id))
    assert opened.outage is None and ids_in(path) == kept


def test_store_reports_file_system_that_does_not_answer(
    opened: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = Path.stat

    def fail(file: Path, **options: bool) -> os.stat_result:
        if file == path:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(file, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", fail)
        assert "Stale file handle; try again" in refused(opened)
    add_job(opened)
    assert opened.outage is None
