"""What ffdl-admin db cannot do, it says in a sentence, with the way out; nothing is changed then."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from ffdl_batch.admin.database import postgres_backup
from ffdl_batch.admin.database.access import Place
from tests.captured.releases import later_release
from tests.contract.admin.conftest import Desk
from tests.contract.admin.test_db import daemon_of, jobs_of
from tests.unit.store.jobs import add_job

on_sqlite = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("desk", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)


@on_sqlite
def test_db_commands_refuse_on_network_filesystem_while_daemon_runs(
    desk: Desk, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.admin.database.access.is_network", lambda _: True)
    monkeypatch.setattr("ffdl_batch.admin.database.access.PATIENCE_S", 0.0)
    with daemon_of(desk.state):
        for command in (["check"], ["current"], ["backup", tmp_path / "copy"]):
            code, _, err = desk.run("db", *command)
            assert code == 75 and "end it first (jobs run on without it): ffdl daemon stop" in err
    assert not (tmp_path / "copy").exists()
    desk.done("db", "check")
    desk.done("db", "backup", tmp_path / "copy")
    assert not (desk.state / "daemon.lock").exists()


@on_sqlite
def test_db_restore_refuses_database_locked_by_another_program(desk: Desk, job_id: str, tmp_path: Path) -> None:
    desk.done("db", "backup", tmp_path / "copy")
    with contextlib.closing(sqlite3.connect(desk.file, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM jobs").fetchone()
        code, _, err = desk.run("db", "restore", tmp_path / "copy", "--force")
    assert code == 75 and "is in use by another program" in err
    assert jobs_of(desk) == {job_id}


@on_postgres
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_db_backup_and_restore_name_missing_postgres_client_programs(
    desk: Desk, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "dump").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = desk.run("db", command, tmp_path / "dump", "--force")
    assert code == 69 and "is not on the PATH: install PostgreSQL's client programs" in err


@on_postgres
def test_db_restore_changes_nothing_when_postgres_refuses(desk: Desk, job_id: str, tmp_path: Path) -> None:
    desk.done("db", "backup", tmp_path / "dump")
    desk.execute("CREATE VIEW of_the_site AS SELECT id FROM jobs")
    with desk.store() as store:
        later = str(add_job(store, "later").id)
    code, _, err = desk.run("db", "restore", tmp_path / "dump", "--force")
    assert code == 1 and "psql exited with status 1, nothing was changed" in err and "of_the_site" in err
    assert jobs_of(desk) == {job_id, later}
    assert [path.name for path in desk.state.iterdir() if path.name.startswith(".restore")] == []


@on_postgres
def test_db_backup_and_restore_ignore_foreign_tables(desk: Desk, job_id: str, tmp_path: Path) -> None:
    desk.execute("CREATE TABLE of_the_site (what TEXT)", "INSERT INTO of_the_site VALUES ('before')")
    desk.done("db", "backup", tmp_path / "dump")
    desk.execute("UPDATE of_the_site SET what = 'after'")
    desk.done("db", "restore", tmp_path / "dump", "--force")
    with desk.changing() as connection:
        assert connection.exec_driver_sql("SELECT what FROM of_the_site").scalars().all() == ["after"]


def test_postgres_address_omits_password() -> None:
    place = Place("postgresql+psycopg://ada:secret%40x@db.example.org:5433/ffdl?sslmode=require", Path("/"), Path("/"))
    assert postgres_backup._address(place) == "postgresql://ada@db.example.org:5433/ffdl?sslmode=require"


@on_sqlite
def test_db_commands_exit_by_cause_for_bad_usage_url_or_configuration(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk.run("db", "retsore")[0] == 2
    code, _, err = desk.run("db", "restore", "/nonexistent")
    assert (code, err) == (66, "ffdl-admin: there is no file /nonexistent\n")
    monkeypatch.setenv("FFDL_DATABASE_URL", "mysql://x/y")
    code, _, err = desk.run("db", "current")
    assert code == 69 and "mysql" in err
    monkeypatch.setenv("FFDL_DATABASE_URL", f"postgresql+psycopg://ada@/x?host={desk.state}")
    code, _, err = desk.run("db", "check")
    assert code == 75 and "the server cannot be reached" in err
    assert "the daemon tries again" not in err  # there is none
    monkeypatch.setenv("FFDL_LEASE_S", "soon")
    code, _, err = desk.run("db", "current")
    assert code == 78 and "the configuration cannot be used" in err


@on_sqlite
@pytest.mark.parametrize("command", ["check", "current", "upgrade", "backup"])
def test_db_commands_exit_66_without_database_and_78_if_jobs_exist(
    desk: Desk, job_id: str, tmp_path: Path, command: str
) -> None:
    arguments = [tmp_path / "copy"] if command == "backup" else []
    shutil.rmtree(desk.state)
    code, _, err = desk.run("db", command, *arguments)
    assert code == 66 and f"there is no database {desk.file}; the daemon creates one when it starts" in err
    assert not desk.state.exists()
    (desk.state / "jobs" / job_id).mkdir(parents=True)
    code, out, err = desk.run("db", command, *arguments)
    assert (code, out) == (78, "")
    assert f"there is no database {desk.file}, or it is empty, though {desk.state}/jobs has directories of jobs" in err
    assert "ffdl-admin db restore FILE" in err
    if command == "check":  # nor is an empty one a database
        desk.file.touch()
        assert desk.run("db", command)[0] == 78


def test_db_backup_of_newer_database_writes_nothing_and_keeps_old_backup(
    desk: Desk, job_id: str, tmp_path: Path
) -> None:
    place = tmp_path / "copies"
    place.mkdir()
    desk.done("db", "backup", place / "monday")
    kept = (place / "monday").read_bytes()
    desk.execute("UPDATE alembic_version SET version_num = '0999'")
    for target in ("tuesday", "monday"):
        code, _, err = desk.run("db", "backup", place / target, "--force")
        assert code == 69 and "schema revision 0999" in err
    assert [path.name for path in place.iterdir()] == ["monday"]
    assert (place / "monday").read_bytes() == kept


def test_db_backup_of_database_with_faults_exits_1_and_keeps_good_backup_and_foreign_file(
    desk: Desk, job_id: str, tmp_path: Path
) -> None:
    """Else a week of nightly backups ends with none that is whole. What has faults may be all that is left, though."""
    place = tmp_path / "copies"
    place.mkdir()
    desk.done("db", "backup", place / "monday")
    kept = (place / "monday").read_bytes()
    desk.execute("UPDATE jobs SET state = 'COMPLETED'")
    code, out, _ = desk.run("db", "backup", place / "tuesday")
    assert code == 1 and "the database has faults, and so has the copy" in out
    (place / "monday.faulty").write_text("a list of faulty disks\n")
    code, out, err = desk.run("db", "backup", place / "monday", "--force")
    assert (code, out) == (2, "") and "monday.faulty is not a backup of a database" in err
    assert (place / "monday.faulty").read_text() == "a list of faulty disks\n"
    (place / "monday.faulty").unlink()
    for number in range(2):
        code, out, _ = desk.run("db", "backup", place / "monday", "--force")
        assert code == 1 and f"{place}/monday is left as it was" in out, number
    assert (place / "monday").read_bytes() == kept
    assert {path.name for path in place.iterdir()} == {"monday", "monday.faulty", "tuesday"}
    assert f"{place}/monday.faulty: " in out


@pytest.mark.parametrize("command", ["restore", "upgrade"])
def test_db_upgrade_and_restore_reject_copied_state_directory(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    with desk.store() as store:
        add_job(store)
    desk.done("db", "backup", tmp_path / "copy")
    with daemon_of(desk.state):  # its lock is copied with the rest
        shutil.copytree(desk.state, tmp_path / "copied")
    monkeypatch.setenv("FFDL_STATE_DIR", str(tmp_path / "copied"))
    arguments = [tmp_path / "copy", "--force"] if command == "restore" else []
    with later_release(tmp_path):
        code, out, err = desk.run("db", command, *arguments)
    assert (code, out) == (78, "")
    assert f"{tmp_path}/copied is a copy of a state directory" in err and "use the original" in err
    assert "ffdl daemon stop" not in err  # no daemon runs here


@on_sqlite
def test_db_backup_copies_whole_file_with_damaged_pages(desk: Desk, job_id: str, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(desk.file)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs'").fetchone()
    with desk.file.open("r+b") as file:
        file.seek(4096 * (root - 1))
        file.write(b"\xff" * 4096)
    code, out, _ = desk.run("db", "backup", tmp_path / "copy")
    assert code == 1 and f"{tmp_path}/copy: damaged, and not read through, " in out
    assert (tmp_path / "copy").stat().st_size == desk.file.stat().st_size


@on_sqlite
def test_db_backup_writes_nothing_if_sqlite_cannot_read_database(desk: Desk, job_id: str, tmp_path: Path) -> None:
    with desk.file.open("r+b") as file:
        file.truncate(8192)
    code, out, err = desk.run("db", "backup", tmp_path / "copy")
    assert (code, out) == (69, "")
    assert f"no copy was written, because SQLite cannot read the file: the database {desk.file} is damaged" in err
    assert not list(tmp_path.glob("*copy*"))
    assert err.endswith("(ffdl-admin db restore FILE --force)\n")
    code, out, _ = desk.run("db", "check")
    assert code == 69 and out.startswith("1 fault in 0 jobs, 0 attempts, 0 changes of state\n")


@on_sqlite
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_db_backup_and_restore_report_read_only_state_directory(
    desk: Desk, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    desk.done("db", "backup", tmp_path / "copy")
    monkeypatch.setattr("ffdl_batch.admin.database.access.is_network", lambda _: True)  # then both hold the lock

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(desk.state / "daemon.flock"))

    monkeypatch.setattr("ffdl_batch.admin.database.access.acquire", refuse)
    code, _, err = desk.run("db", command, tmp_path / "copy", "--force")
    assert code == 75
    assert f"{desk.state}/daemon.flock is read-only: have its file system mounted for writing again" in err
