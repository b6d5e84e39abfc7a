"""Whether the database takes what is written, why not, and how long that is remembered."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from ffdl_batch.domain.job_state import RequestedAction
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.filesystem import why_unwritable
from ffdl_batch.store import DatabaseDamaged, Store, StoreUnavailable, errors, open_store
from ffdl_batch.store.database import WriteHealth
from ffdl_batch.store.errors import DatabaseGone, translate
from tests.unit.store.jobs import FakeClock, add_job, new_job
from tests.unit.store.test_failures import open_directory, plain_user

__all__ = ["open_directory"]  # a fixture


@pytest.mark.parametrize("network_fs", [False, True])
def test_store_reports_database_damaged_while_open(tmp_path: Path, network_fs: bool) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", network_fs=network_fs)
    add_job(store)
    for file in tmp_path.iterdir():
        if not file.name.endswith("-shm"):
            with file.open("r+b") as opened:
                opened.write(b"\xff" * file.stat().st_size)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA shrink_memory")  # what was read before is read again
    with pytest.raises(DatabaseDamaged, match="ffdl-admin db restore FILE --force"):
        add_job(store, "late")
    assert store.outage is not None and "is damaged" in store.outage.detail
    store.close()


READ_ONLY = "its file system is read-only: have it mounted for writing again; the daemon continues by itself"


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (errno.EROFS, READ_ONLY),
        (errno.ENOSPC, "the disk (or the quota) is full: free some space; the daemon continues by itself"),
        (errno.EACCES, "it is read-only: make the file and its directory writable for this user"),
        (errno.EIO, "the file system reports an I/O error: check quota, space and the file server (disk I/O error)"),
        (None, "the file system reports an I/O error: check quota, space and the file server (disk I/O error)"),
    ],
)
def test_translate_takes_cause_of_sqlite_io_error_from_file_system(
    monkeypatch: pytest.MonkeyPatch, refusal: int | None, told: str
) -> None:
    answer = None if refusal is None else OSError(refusal, os.strerror(refusal))
    monkeypatch.setattr(errors, "why_unwritable", lambda _: answer)
    cause = sqlite3.OperationalError("disk I/O error")
    cause.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    said = translate(OperationalError("INSERT", None, cause), "/home/ada/jobs.db")
    assert isinstance(said, StoreUnavailable)
    assert str(said) == f"the database /home/ada/jobs.db cannot be used: {told}"


def test_translate_reports_memory_limit_if_shared_memory_cannot_be_mapped(tmp_path: Path) -> None:
    """SQLite calls it an I/O error, and a process that may have no more memory has it."""
    script = """
import resource, sqlite3, sys
from ffdl_batch.store.database import WriteHealth
from ffdl_batch.store.errors import translate
connection = sqlite3.connect(sys.argv[1])
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
try:
    connection.execute("SELECT * FROM sqlite_master")
except sqlite3.OperationalError as error:
    print(error.sqlite_errorname, translate(error, sys.argv[1]))
"""
    file = tmp_path / "jobs.db"
    with contextlib.closing(sqlite3.connect(file)) as made:
        made.execute("PRAGMA journal_mode = wal")
    done = subprocess.run([sys.executable, "-c", script, file], capture_output=True, text=True, check=True)
    name, _, said = done.stdout.partition(" ")
    assert name == "SQLITE_IOERR_SHMMAP", done
    assert said.startswith(f"the database {file} cannot be used: ") and "(ulimit -v)" in said


def test_why_unwritable_finds_permission_error_and_leaves_no_file(open_directory: Path) -> None:
    file = open_directory / "jobs.db"
    file.touch(mode=0o666)
    file.chmod(0o666)
    with plain_user():
        assert why_unwritable(file) is None
    for refusing, mode in ((file, 0o444), (open_directory, 0o555)):
        refusing.chmod(mode)
        with plain_user():
            found = why_unwritable(file)
        assert found is not None and found.errno == errno.EACCES
        refusing.chmod(0o777)
    assert [path.name for path in open_directory.iterdir()] == ["jobs.db"]


def since(store: Store) -> float | None:
    """Since when nothing can be written."""
    return store.outage.since if store.outage is not None else None


def test_store_health_reports_full_disk_until_rows_are_written(tmp_path: Path) -> None:
    """A transaction without rows says nothing: a full disk takes it, too. So do answers to readers."""
    clock = FakeClock()
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
    job = add_job(store)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # as many as there are
    for at in (1000.0, 1060.0):
        clock.time = at
        with pytest.raises(StoreUnavailable, match="is full: free some space"):
            store.add_jobs([new_job(f"key-{number}") for number in range(200)])
        assert since(store) == 1000.0
    assert store.get(job.id) == job and not store.note_uploaded(job.id, 9, 0.0)
    assert since(store) == 1000.0
    store.set_requested_action(job.id, RequestedAction.CANCEL)
    assert since(store) is None
    store.close()


def test_store_health_dates_new_kind_of_failure_from_its_start() -> None:
    now = [1000.0]
    health = WriteHealth(lambda: now[0])
    full = translate(OperationalError("INSERT", None, full_disk()), "/jobs.db")
    gone = DatabaseGone("the database /jobs.db was deleted")
    again = DatabaseGone("the database /jobs.db was deleted again")
    steps = ((1000.0, full, 1000.0), (1060.0, full, 1000.0), (1090.0, gone, 1090.0), (1120.0, again, 1090.0))
    for at, error, since in steps:
        now[0] = at
        health.failed(error)
        assert health.trouble is not None
        assert (health.trouble.since, health.trouble.detail) == (since, str(error))


def test_translate_marks_error_undone_only_if_transaction_was_refused() -> None:
    """What is done to the files after a commit may find no room either, and the commit counts."""
    error = full_disk()
    assert undone(OperationalError("COMMIT", None, error)) and not undone(error)
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert not undone(OperationalError("COMMIT", None, error))


def undone(error: Exception) -> bool:
    told = translate(error, "/jobs.db")
    assert isinstance(told, StoreUnavailable)
    return told.is_undone


def full_disk() -> sqlite3.Error:
    cause = sqlite3.OperationalError("database or disk is full")
    cause.sqlite_errorcode = sqlite3.SQLITE_FULL
    return cause


@pytest.mark.postgres
def test_store_health_recovers_when_server_answers_daemon_without_writes(postgres_url: str) -> None:
    """Another daemon holds all leases: this one changes no row for hours."""
    holder, waiter = open_store(postgres_url), open_store(postgres_url)
    assert holder.acquire_lease("watcher", "holder", 600.0)
    with pytest.raises(StoreUnavailable), waiter._database.writing() as connection:
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
    assert since(waiter) is not None
    assert waiter.acquire_lease("watcher", "waiter", 600.0) is None
    assert since(waiter) is None
    holder.close()
    waiter.close()


@dataclass
class ServerSaid(Exception):
    """An error of PostgreSQL's with its code."""

    sqlstate: str


@pytest.mark.parametrize(
    ("state", "needs_rows"), [("53100", True), ("58030", True), ("57P03", False), ("55P03", False)]
)
def test_store_health_keeps_server_disk_failure_until_rows_are_written(state: str, needs_rows: bool) -> None:
    told = translate(OperationalError("INSERT", None, ServerSaid(state)), "postgresql://server")
    assert isinstance(told, StoreUnavailable)
    health = WriteHealth(lambda: 1.0)
    health.failed(told)
    health.answered()
    assert (health.trouble is not None) is needs_rows
    health.succeeded()
    assert health.trouble is None
