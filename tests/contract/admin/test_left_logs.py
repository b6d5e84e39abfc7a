"""A log without its database stays out of the database that is restored under its name."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ffdl_batch.store.sqlite_files import companions
from tests.contract.admin.conftest import Desk, dump
from tests.contract.admin.test_db import jobs_of
from tests.crash.fuzz.companions import fork_child
from tests.unit.store.jobs import add_job

pytestmark = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)


def die_over_jobs(desk: Desk, log: Path, name: str = "lost") -> None:
    """A daemon accepts jobs and is killed: its last commits are only in SQLite's log."""

    def accept() -> None:
        with desk.store() as store:
            for number in range(12):
                add_job(store, f"{name}{number}")
            os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitstatus_to_exitcode(os.waitpid(fork_child(log, accept), 0)[1]) == -signal.SIGKILL


@pytest.fixture
def copy(desk: Desk, tmp_path: Path) -> Path:
    """Of a database with one job. Later ones were in the database, which was deleted; its log was not."""
    with desk.store() as store:
        add_job(store)
    desk.done("db", "backup", tmp_path / "copy")
    with desk.store() as store:
        for number in range(40):
            add_job(store, f"k{number}")
    die_over_jobs(desk, tmp_path / "log")
    desk.file.unlink()
    assert [path.exists() for path in companions(desk.file)] == [False, True, True]
    return tmp_path / "copy"


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_db_restore_renames_log_of_lost_database(desk: Desk, copy: Path, left: str) -> None:
    if left != "nothing":
        desk.file.touch()
    journal, log, memory = companions(desk.file)
    held = log.read_bytes()
    journal.write_bytes(b"a journal of another database")
    out = desk.done("db", "restore", copy)
    assert dump(desk.file) == dump(copy)
    assert not any(path.exists() for path in (log, memory, journal))
    kept = {path.name.rpartition("-")[2]: path for path in desk.state.glob("*.replaced-*")}
    assert kept.keys() == {"wal", "shm", "journal"} and kept["wal"].read_bytes() == held
    assert str(kept["journal"]) in out
    assert "no fault in 1 job, " in desk.done("db", "check")
    with desk.store() as store:
        add_job(store, "later")
    assert len(jobs_of(desk)) == 2


def test_db_restore_removes_stale_log_at_target_of_symlinked_database(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    desk.state.mkdir()
    real = tmp_path / "disk" / "jobs.db"
    desk.file.symlink_to(real)
    with desk.store() as store:
        add_job(store)
    desk.done("db", "backup", tmp_path / "copy")
    die_over_jobs(desk, tmp_path / "log")
    real.unlink()
    desk.done("db", "restore", tmp_path / "copy")
    assert desk.file.is_symlink() and dump(real) == dump(tmp_path / "copy")
    assert not any(path.exists() for path in companions(real))


def test_db_backup_rejects_database_itself_as_target(desk: Desk, tmp_path: Path) -> None:
    with desk.store() as store:
        job = str(add_job(store).id)
        (tmp_path / "link").symlink_to(desk.file)
        (tmp_path / "second").hardlink_to(desk.file)
        (tmp_path / "log").symlink_to(companions(desk.file)[1])
        identity = desk.file.stat().st_ino
        targets = (desk.file, *companions(desk.file), *(tmp_path / name for name in ("link", "second", "log")))
        for target in targets:
            code, out, err = desk.run("db", "backup", "--force", target)
            assert (code, out) == (2, ""), target
            assert f"{target} is the database itself" in err
        assert desk.file.stat().st_ino == identity
        add_job(store, "later")
    with closing(sqlite3.connect(desk.file)) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (2,)
    assert job in jobs_of(desk)
