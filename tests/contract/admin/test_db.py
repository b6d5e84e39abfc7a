"""ffdl-admin db: current, upgrade, backup, restore, on both databases."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from ffdl_batch import __version__
from ffdl_batch.admin.database import sqlite_backup
from ffdl_batch.admin.database.access import Place
from ffdl_batch.config.daemon_location import DaemonLock, this_machine
from ffdl_batch.services.daemon_lock import acquire
from ffdl_batch.store.schema_upgrade import HEAD
from ffdl_batch.store.sqlite_files import upgrade_copies
from tests import preloaded
from tests.captured.releases import LATER, later_release
from tests.contract.admin.conftest import Desk, dump
from tests.crash.fuzz.companions import fork_child
from tests.unit.store.jobs import add_job

JOBS = 2


@pytest.fixture
def old(desk: Desk, tmp_path: Path) -> Iterator[Desk]:
    """A database of this release with jobs, in a process of a later release."""
    with desk.store() as store:
        for number in range(JOBS):
            add_job(store, f"old {number}")
    with later_release(tmp_path):
        yield desk


@contextmanager
def daemon_of(state: Path) -> Iterator[int]:
    """Somebody holds the state directory, as a daemon does."""
    machine, pid = this_machine(), os.getpid()
    record = DaemonLock(machine.host, pid, machine.boot_id, machine.start_ticks(pid) or 0, "", __version__)
    hold = acquire(state, record, machine, patience_s=0.0)
    try:
        yield pid
    finally:
        hold.release()


def jobs_of(desk: Desk) -> set[str]:
    with desk.store() as store:
        return {str(job.id) for job in store.list_jobs(uid=1000, limit=1000)}


def test_ffdl_admin_help_imports_no_database_modules() -> None:
    program = (
        "import sys\n"
        "from ffdl_batch.admin.main import ffdl_admin\n"
        "for arguments in (['--help'], ['db', '--help'], ['db', 'restore', '--help'], ['--version']):\n"
        "    ffdl_admin.main(arguments, prog_name='ffdl-admin', standalone_mode=False)\n"
        "heavy = {'sqlalchemy', 'alembic', 'sqlite3', 'ffdl_batch.config.load'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ffdl-admin {__version__}" in done.stdout and "back up and restore" in done.stdout


def test_db_commands_refuse_state_directory_that_others_can_write(old: Desk) -> None:
    old.state.chmod(0o777)
    code, out, err = old.run("db", "check")
    assert (code, out) == (77, "")
    assert err == (
        f"ffdl-admin: {old.state} (state_dir) has mode 0777, which lets others write (chmod go-w {old.state})\n"
    )


def test_db_current_prints_schema_revision_and_missing_upgrades(old: Desk) -> None:
    code, out, err = old.run("db", "current")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[1] == f"Schema        {HEAD}, by ffdl-batch {__version__} at {lines[1][-19:]}"
    assert lines[2] == f"This release  {LATER[-1]}, ffdl-batch {__version__}"
    assert [line[14:18] for line in lines[3:]] == list(LATER)
    old.done("db", "upgrade")
    told = json.loads(old.done("db", "current", "--json"))
    assert (told["revision"], told["head"], told["missing"], told["release"]) == (LATER[-1], LATER[-1], [], __version__)
    assert told["at"] > 1.7e9
    old.execute("UPDATE alembic_version SET version_num = '0999'")
    code, out, _ = old.run("db", "current")
    assert code == 69 and "0999; newer than this release" in out
    for command in (["check"], ["upgrade"]):
        code, _, err = old.run("db", *command)
        assert code == 69 and "made by a newer release" in err


def test_db_check_and_current_report_database_without_tables(desk: Desk) -> None:
    if not desk.is_postgres:
        desk.state.mkdir()
        desk.file.touch()
    code, _, err = desk.run("db", "check")
    assert (code, "is empty; the daemon makes its tables" in err) == (66, True)
    code, out, _ = desk.run("db", "current")
    assert (code, "none: the database is empty" in out) == (1, True)


def test_db_upgrade_prints_and_applies_missing_revisions_once(old: Desk) -> None:
    out = old.done("db", "upgrade", "--dry-run")
    assert [line.split()[2] for line in out.splitlines() if "apply" in line] == list(LATER)
    assert json.loads(old.run("db", "current", "--json")[1])["revision"] == HEAD
    out = old.done("db", "upgrade")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("applied")] == list(LATER)
    if not old.is_postgres:
        ((revision, copy),) = upgrade_copies(old.file)
        assert revision == HEAD and out.startswith(f"copied     {copy}\n")
    assert "already" in old.done("db", "upgrade")
    assert old.done("db", "check").startswith(f"no fault in {JOBS} jobs")


@pytest.mark.parametrize("command", ["upgrade", "restore"])
def test_db_upgrade_and_restore_refuse_while_daemon_runs(old: Desk, tmp_path: Path, command: str) -> None:
    old.done("db", "backup", tmp_path / "copy")
    arguments = [tmp_path / "copy", "--force"] if command == "restore" else []
    old.monkeypatch.setattr("ffdl_batch.admin.database.access.PATIENCE_S", 0.0)
    with daemon_of(old.state) as pid:
        code, out, err = old.run("db", command, *arguments)
        assert (code, out) == (75, "")
        assert f"process {pid}" in err and "ffdl daemon stop" in err
        assert json.loads(old.run("db", "current", "--json")[1])["revision"] == HEAD
        assert "no fault" in old.done("db", "check")
        old.done("db", "backup", tmp_path / "another")
    old.done("db", command, *arguments)


@pytest.mark.postgres
@pytest.mark.parametrize("desk", ["postgresql"], indirect=True)
@pytest.mark.parametrize("command", ["upgrade", "restore"])
def test_db_upgrade_and_restore_refuse_while_remote_daemon_holds_lease(old: Desk, tmp_path: Path, command: str) -> None:
    old.done("db", "backup", tmp_path / "copy")
    arguments = [tmp_path / "copy", "--force"] if command == "restore" else []
    until = "extract(epoch from clock_timestamp())"
    old.execute(f"INSERT INTO leases VALUES ('watcher', 'login2:/home/eve/state', 't', {until} + 20)")
    code, _, err = old.run("db", command, *arguments)
    assert code == 75 and "a daemon works with" in err and "login2:/home/eve/state" in err
    old.execute(f"UPDATE leases SET until = {until} - 1")
    old.done("db", command, *arguments)


def test_db_backup_writes_complete_private_copy_of_open_database(desk: Desk, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "monday"
    target.parent.mkdir()
    with desk.store() as store:  # a daemon works with it, and its last commits are in SQLite's log
        for number in range(20):
            add_job(store, f"k{number}")
        out = desk.done("db", "backup", target)
        add_job(store, "later")
    assert out.startswith(f"{target}: 20 jobs, schema revision {HEAD}, ")
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in target.parent.iterdir()] == ["monday"]
    code, _, err = desk.run("db", "backup", target)
    assert code == 2 and "exists; name another file, or replace it with --force" in err
    assert ": 21 jobs" in desk.done("db", "backup", target, "--force")


def test_db_backup_leaves_no_file_when_rename_fails(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk.store() as store:
        add_job(store)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", refuse)
    code, _, err = desk.run("db", "backup", tmp_path / "copy")
    assert code == 75 and "No space left on device" in err
    assert list(tmp_path.glob("*copy*")) == []


def test_db_restore_replaces_jobs_and_keeps_previous_database(old: Desk, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    old.done("db", "backup", copy)
    with old.store() as store:
        later = str(add_job(store, "later").id)
    code, _, err = old.run("db", "restore", copy)
    assert code == 2 and f"{JOBS + 1} jobs. --force replaces" in err
    assert later in jobs_of(old)
    out = old.done("db", "restore", copy, "--force")
    assert f"restored   {JOBS} jobs, schema revision {HEAD}" in out
    assert "the next daemon upgrades it, or: ffdl-admin db upgrade" in out
    kept = kept_by(out)
    assert kept.parent == old.state and kept.stat().st_mode & 0o777 == 0o600
    assert len(jobs_of(old)) == JOBS  # and it is brought up to date by that
    out = old.done("db", "restore", kept, "--force")
    assert later in jobs_of(old)
    assert "no fault" in old.done("db", "check")
    assert [path.name for path in old.state.iterdir() if path.name.startswith(".")] == []


def test_db_restore_needs_no_force_without_database_and_prints_singular_for_one_job(desk: Desk, tmp_path: Path) -> None:
    with desk.store() as store:
        job = str(add_job(store).id)
    assert ": 1 job, schema" in desk.done("db", "backup", tmp_path / "copy")
    assert "has 1 job. --force replaces" in desk.run("db", "restore", tmp_path / "copy")[2]
    if desk.is_postgres:
        desk.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    else:
        desk.file.unlink()
    out = desk.done("db", "restore", tmp_path / "copy")
    assert "restored   1 job, schema" in out and "kept" not in out
    assert jobs_of(desk) == {job}
    assert desk.done("db", "check").startswith("no fault in 1 job, 0 attempts, 1 change of state; ")


@pytest.mark.parametrize("content", [b"", b"no database\n" * 1000, "another"])
def test_db_restore_rejects_file_that_is_no_backup(desk: Desk, tmp_path: Path, content: bytes | str) -> None:
    with desk.store() as store:
        job = str(add_job(store).id)
    other = tmp_path / "other"
    if isinstance(content, bytes):
        other.write_bytes(content)
    else:
        with sqlite3.connect(other) as connection:
            connection.execute("CREATE TABLE recipes (name TEXT)")
    code, out, err = desk.run("db", "restore", other, "--force")
    assert code in (66, 69) and out == "" and str(other) in err, (code, err)
    assert jobs_of(desk) == {job}
    assert [path.name for path in desk.state.iterdir() if "replaced" in path.name] == []


def test_db_restore_rejects_backup_of_newer_release(desk: Desk, tmp_path: Path) -> None:
    with desk.store() as store:
        job = str(add_job(store).id)
    with desk.changing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0999'"))
    # What this release would write into such a file is not asked: only a newer one makes it.
    if desk.is_postgres:
        argv = ["pg_dump", "--format=custom", f"--file={tmp_path / 'copy'}", "--dbname"]
        preloaded.run([*argv, desk.url.replace("postgresql+psycopg", "postgresql")], check=True)
    else:
        (tmp_path / "copy").write_bytes(desk.file.read_bytes())
    with desk.changing() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{HEAD}'"))
    code, _, err = desk.run("db", "restore", tmp_path / "copy", "--force")
    assert code == 69 and "schema revision 0999" in err
    assert jobs_of(desk) == {job}


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
def test_db_restore_replaces_damaged_database_and_its_log(old: Desk, tmp_path: Path) -> None:
    old.done("db", "backup", tmp_path / "copy")
    old.file.write_bytes(b"\xff" * 5000)
    code, _, err = old.run("db", "restore", tmp_path / "copy")
    assert code == 2 and "has something that cannot be read" in err
    log = old.file.with_name(old.file.name + "-wal")
    log.write_bytes(b"what was in its log")
    kept = kept_by(old.done("db", "restore", tmp_path / "copy", "--force"))
    assert kept.read_bytes() == b"\xff" * 5000
    assert kept.with_name(kept.name + "-wal").read_bytes() == b"what was in its log"
    assert not log.exists()
    assert dump(old.file) == dump(tmp_path / "copy")


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
def test_db_restore_replaces_truncated_database(old: Desk, tmp_path: Path) -> None:
    old.done("db", "backup", tmp_path / "copy")
    os.truncate(old.file, 8192)
    before = old.file.read_bytes()
    kept = kept_by(old.done("db", "restore", tmp_path / "copy", "--force"))
    assert kept.stat().st_size == len(before)
    assert dump(old.file) == dump(tmp_path / "copy")


def kept_by(out: str) -> Path:
    """Return the file that `restore` prints as kept."""
    (kept,) = [Path(line.split()[1]) for line in out.splitlines() if line.startswith("kept")]
    return kept


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
def test_db_restore_leaves_old_or_new_database_when_killed_at_each_step(old: Desk, tmp_path: Path) -> None:
    """It is killed before each of its steps, in processes of its own."""
    place = Place(old.url, old.state, old.state)
    old.done("db", "backup", tmp_path / "copy")
    with old.store() as store:
        add_job(store, "later")
    old.done("db", "backup", tmp_path / "before")
    before, after = dump(old.file), dump(tmp_path / "copy")
    seen = []
    for number in range(1, 60):

        def restore_and_die(left: int = number) -> None:
            count_down(left)
            sqlite_backup.restore(place, tmp_path / "copy", force=True)

        child = fork_child(tmp_path / "log", restore_and_die)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (-signal.SIGKILL, 0), (tmp_path / "log").read_text()
        now = dump(old.file)
        assert now in (before, after), number
        seen.append(now == after)
        if code == 0:
            break
        if now == after:
            old.done("db", "restore", tmp_path / "before", "--force")
            assert dump(old.file) == before
    assert code == 0 and seen[0] is False and seen[-1] is True and len(seen) > 5


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
def test_db_restore_leaves_old_database_when_killed_while_pages_are_written(desk: Desk, tmp_path: Path) -> None:
    with desk.store() as store:
        add_job(store)
    desk.done("db", "backup", tmp_path / "copy")
    with desk.store() as store:
        for number in range(200):
            add_job(store, f"later {number}")
    before = dump(desk.file)

    def die_in_the_middle() -> None:
        with closing(sqlite3.connect(tmp_path / "copy")) as source, closing(sqlite3.connect(desk.file)) as target:
            source.backup(target, pages=5, progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    child = fork_child(tmp_path / "log", die_in_the_middle)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert dump(desk.file) == before


def count_down(number: int) -> None:
    """Have this process killed when it comes to its step `number`."""
    left = [number]
    of_files = [(Path, name) for name in ("rename", "unlink")]
    own = [(sqlite_backup, name) for name in ("_fold", "_write", "copy_database", "leave_out_unknown_jobs")]
    for owner, name in (*of_files, *own):
        setattr(owner, name, _counted(getattr(owner, name), left))


def _counted(step: Callable[..., object], left: list[int]) -> Callable[..., object]:
    def run(*arguments: object, **keywords: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments, **keywords)

    return run
