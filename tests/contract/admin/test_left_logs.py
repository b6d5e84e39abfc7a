"""A database that is gone leaves its log: nothing of it gets into the one that is restored in its place."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ffdl_batch.admin.database import sqlite_backup
from ffdl_batch.admin.database.access import Place
from ffdl_batch.admin.database.check import Fault, Report
from ffdl_batch.store.sqlite_backup import companions
from tests.contract.admin.conftest import Desk, dump
from tests.contract.admin.test_db import count_down, jobs_of
from tests.crash.fuzz.companions import fork_child
from tests.unit.store.jobs import add_job

pytestmark = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
Restore = Callable[[], None]


def die_over_jobs(desk: Desk, log: Path, name: str = "lost") -> None:
    """A daemon accepts jobs and is killed: what it wrote last lies in SQLite's log alone."""

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
def test_db_restore_moves_log_of_lost_database_aside(desk: Desk, copy: Path, left: str) -> None:
    if left != "nothing":
        desk.file.touch()
    (_, log, memory) = companions(desk.file)
    held = log.read_bytes()
    journal = desk.file.with_name(f"{desk.file.name}-journal")
    journal.write_bytes(b"a journal of another life")
    out = desk.done("db", "restore", copy)
    assert dump(desk.file) == dump(copy)
    assert not any(path.exists() for path in (log, memory, journal))
    kept = {path.name.rpartition("-")[2]: path for path in desk.state.glob("*.replaced-*")}
    assert kept.keys() == {"wal", "shm", "journal"} and kept["wal"].read_bytes() == held
    assert str(kept["wal"]) in out
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


def test_db_restore_never_leaves_copy_with_stale_log_when_killed_at_each_step(
    desk: Desk, copy: Path, tmp_path: Path
) -> None:
    """Before each of its steps; what is left then can be restored, and the log is not lost."""
    place = Place(desk.url, desk.state, desk.state)
    held = companions(desk.file)[1].read_bytes()
    left = [path.read_bytes() for path in companions(desk.file)[1:]]
    was_there: set[bool] = set()
    for number in range(1, 60):

        def restore_and_die(steps: int = number) -> None:
            count_down(steps)
            sqlite_backup.restore(place, copy, force=False)

        code = os.waitstatus_to_exitcode(os.waitpid(fork_child(tmp_path / "log", restore_and_die), 0)[1])
        assert code in (-signal.SIGKILL, 0), (tmp_path / "log").read_text()
        was_there.add(desk.file.exists())
        if desk.file.exists():
            assert dump(desk.file) == dump(copy), number
            assert not any(path.exists() for path in companions(desk.file)), number
        assert any(path.read_bytes() == held for path in desk.state.glob("*-wal")), number
        if code == 0:
            break
        desk.done("db", "restore", copy, "--force")
        assert dump(desk.file) == dump(copy)
        for path in desk.state.glob("ffdl.sqlite3*"):
            path.unlink()
        for path, content in zip(companions(desk.file)[1:], left, strict=True):
            path.write_bytes(content)
    assert code == 0 and number > 5 and was_there == {True, False}


def damaged(file: Path, examine: Callable[[Path], Report]) -> Callable[[Path], Report]:
    """What `examine` finds where the copy is broken once it lies in its place."""
    return lambda path: Report(faults=[Fault("file", "a page is gone")]) if path == file else examine(path)


@pytest.mark.parametrize("before", ["a log", "a database", "a damaged database"])
def test_db_restore_rolls_back_copy_that_is_damaged_in_place(
    desk: Desk, copy: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    if before != "a log":
        for path in companions(desk.file):
            path.unlink(missing_ok=True)
        desk.done("db", "restore", copy)
    if before == "a damaged database":
        desk.file.write_bytes(b"\xff" * 5000)
        companions(desk.file)[1].write_bytes(b"its log")
    files = {path.name: path.read_bytes() for path in desk.state.glob("ffdl.sqlite3*")}
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_backup, "examine", damaged(desk.file, sqlite_backup.examine))
        code, out, err = desk.run("db", "restore", copy, "--force")
    assert (code, out) == (66, "")
    assert "a page is gone" in err and "as it was" in err
    assert {path.name: path.read_bytes() for path in desk.state.glob("ffdl.sqlite3*")} == files


def test_db_restore_keeps_all_files_when_rename_fails(desk: Desk, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.name: path.read_bytes() for path in desk.state.glob("ffdl.sqlite3*")}
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if target == desk.file:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        code, _, err = desk.run("db", "restore", copy)
    assert code == 75 and "could not be replaced, and is as it was: Input/output error" in err
    assert {path.name: path.read_bytes() for path in desk.state.glob("ffdl.sqlite3*")} == files


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
