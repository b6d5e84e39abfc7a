"""Which files a backup replaces, and a restore reads: no FIFO, no device, no file of a daemon's or of anybody's."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

from ffdl_batch.admin.database.backup_paths import kind_of
from tests.contract.admin.conftest import Desk
from tests.contract.admin.test_db import daemon_of, jobs_of

HEX = "0a1b2c3d"


def refused(desk: Desk, target: Path, *options: str) -> str:
    """Why it is no place for a backup; nothing is touched there."""
    before = sorted((str(path), path.lstat().st_ino, path.lstat().st_mtime_ns) for path in target.parent.iterdir())
    code, out, err = desk.run("db", "backup", target, *options)
    assert (code, out) == (2, ""), (target, code, out, err)
    after = sorted((str(path), path.lstat().st_ino, path.lstat().st_mtime_ns) for path in target.parent.iterdir())
    assert after == before, target
    return err


def test_db_backup_rejects_target_that_is_no_regular_file(desk: Desk, job_id: str, tmp_path: Path) -> None:
    place = tmp_path / "copies"
    place.mkdir()
    os.mkfifo(place / "fifo")
    (place / "kept").touch()
    (place / "link").symlink_to(place / "kept")
    (place / "nowhere").symlink_to(place / "gone")
    desk.monkeypatch.chdir(place)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name, kind in (
            ("fifo", "a FIFO"),
            ("link", "a symbolic link"),
            ("nowhere", "a symbolic link"),
            ("socket", "a socket"),
        ):
            assert f"{place / name} is {kind}, and no regular file" in refused(desk, place / name, "--force")
            refused(desk, place / name)
    (place / "gone").mkdir()
    assert "is a directory" in refused(desk, place / "gone", "--force")


def test_kind_of_names_device_by_mode() -> None:
    """No real one is offered to what might replace it."""
    assert kind_of(stat.S_IFCHR | 0o666) == "a character device"
    assert kind_of(stat.S_IFBLK | 0o666) == "a block device"
    assert kind_of(stat.S_IFREG | 0o666) is None


def test_db_backup_rejects_names_of_daemon_files(desk: Desk, job_id: str) -> None:
    names = ("daemon.lock", "daemon.flock", "daemon.log", "daemon.log.1", ".tree", "site-slurm.json", f".any.{HEX}")
    for name in names:
        assert "a name of the daemon's own files" in refused(desk, desk.state / name), name
    with daemon_of(desk.state):
        for name in names:
            (desk.state / name).touch()
            assert "a name of the daemon's own files" in refused(desk, desk.state / name, "--force"), name


def test_db_backup_force_replaces_only_backups_and_empty_files(desk: Desk, job_id: str, tmp_path: Path) -> None:
    place = tmp_path / "copies"
    place.mkdir()
    thesis = place / "thesis.tex"
    thesis.write_text("\\documentclass{book}\n")
    assert f"{thesis} is not a backup of a database, and --force replaces nothing else" in refused(
        desk, thesis, "--force"
    )
    (place / "monday").touch()
    desk.done("db", "backup", place / "monday", "--force")
    desk.done("db", "backup", place / "monday", "--force")
    (place / "tuesday").write_bytes(b"SQLite format 3\0 of an older backup")
    desk.done("db", "backup", place / "tuesday", "--force")
    (place / "wednesday").write_bytes(b"PGDMP of an older backup")
    desk.done("db", "backup", place / "wednesday", "--force")
    contents = {(place / day).read_bytes()[:5] for day in ("monday", "tuesday", "wednesday")}
    assert contents == {b"PGDMP" if desk.is_postgres else b"SQLit"}


def test_db_backup_rejects_target_beside_log_of_another_database(desk: Desk, job_id: str, tmp_path: Path) -> None:
    place = tmp_path / "copies"
    place.mkdir()
    for name, suffix in (("one", "-wal"), ("other", "-journal")):
        (place / f"{name}{suffix}").write_bytes(b"of another database")
        said = f"{name}{suffix} belongs to a database {place / name}"
        assert said in refused(desk, place / name)
        (place / name).write_bytes(b"SQLite format 3\0")
        assert said in refused(desk, place / name, "--force")


def test_db_commands_reject_missing_directory_and_empty_file_name(desk: Desk, job_id: str, tmp_path: Path) -> None:
    code, out, err = desk.run("db", "backup", tmp_path / "nowhere" / "copy")
    assert (code, out, err) == (2, "", f"ffdl-admin: there is no directory {tmp_path / 'nowhere'}\n")
    assert list(tmp_path.glob("**/copy*")) == []
    (tmp_path / "file").touch()
    assert desk.run("db", "backup", tmp_path / "file" / "copy")[0] == 2
    for command in ("backup", "restore"):
        code, _, err = desk.run("db", command, "")
        assert code == 2 and "Error: FILE: it is empty" in err


def test_db_restore_reads_only_regular_files(desk: Desk, job_id: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    for name in ("fifo", "link"):
        code, out, err = desk.run("db", "restore", tmp_path / name, "--force")
        assert (code, out) == (66, "")
        assert err == f"ffdl-admin: {tmp_path / name} is a FIFO; a copy of a database is a regular file\n"
    desk.done("db", "backup", tmp_path / "copy")
    (tmp_path / "latest").symlink_to(tmp_path / "copy")
    desk.done("db", "restore", tmp_path / "latest", "--force")
    assert jobs_of(desk) == {job_id}


def test_db_backup_removes_old_leftovers_of_killed_backups(desk: Desk, job_id: str, tmp_path: Path) -> None:
    place = tmp_path / "copies"
    place.mkdir()
    left = [f".monday.{HEX}", f".monday.{HEX}-journal", f".monday.{HEX}-wal"]
    others = [f".tuesday.{HEX}", ".monday.old", "monday.0a1b2c3d", f".monday.{HEX}.gz"]
    young = ".monday.ffffffff"
    for name in (*left, *others, young):
        (place / name).write_text("half")
        if name != young:
            os.utime(place / name, (time.time() - 3700,) * 2)
    desk.done("db", "backup", place / "monday")
    assert {path.name for path in place.iterdir()} == {"monday", young, *others}
