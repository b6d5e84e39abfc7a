"""The file of the database is deleted, moved, damaged or read-only under a real daemon with real jobs.

Nothing that was acknowledged is lost, nothing is executed twice, and everybody who looks is told what helps.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.crash.world import WorldOptions
from tests.faultfs import CHANGING, Fault, fault_fs
from tests.faults.fault_rig import LIMIT_S, FaultWorld, fault_world
from tests.postgres import running_postgres
from tests.private_mounts import SmallDisk
from tests.unit.store.jobs import add_job

STOPPED = "nothing is accepted or written meanwhile"
READ_ONLY = "cannot be used: its file system is read-only: have it mounted for writing again"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FaultWorld]:
    with fault_world(tmp_path, WorldOptions("local")) as made:
        made.start()
        yield made


def file_of(world: FaultWorld) -> Path:
    return world.state / "ffdl.sqlite3"


def await_word(world: FaultWorld, words: str) -> str:
    """Until a listing says it; nobody has asked for anything else."""
    told: list[str] = []

    def listed() -> bool:
        told.extend(line for line in world.run("ffdl", "list").text.splitlines() if words in line)
        return bool(told)

    world.wait(listed, f"{words!r} in the listing")
    return told[0]


def kill(world: FaultWorld) -> None:
    assert world.daemon is not None
    world.daemon.send_signal(signal.SIGKILL)
    world.daemon.wait()


def reap(world: FaultWorld) -> None:
    """The daemon was ended by a command."""
    assert world.daemon is not None
    assert world.daemon.wait(LIMIT_S) == 0


def cure_of(said: str) -> list[list[str]]:
    """The commands that a message ends with."""
    found = re.search(r"ffdl daemon stop; ffdl-admin db restore [^\n;)]+", said)
    assert found is not None, said
    return [shlex.split(command) for command in found[0].split("; ")]


def test_daemon_saves_deleted_database_and_restore_recovers_all_jobs(world: FaultWorld) -> None:
    running = world.submit_running()
    file_of(world).unlink()
    began = time.monotonic()
    line = await_word(world, "was deleted, while a daemon works with it")
    assert STOPPED in line and "states are as last seen" in line and running in world.run("ffdl", "list").text
    assert f"the database {file_of(world)} was deleted" in world.run("ffdl", "daemon", "status").text
    refusals = [world.submit_by_command(), world.run("ffdl", "cancel", running)]
    assert [refused.code for refused in refusals] == [75, 75]
    (cure,) = {tuple(map(tuple, cure_of(text))) for text in (line, *(refused.text for refused in refusals))}

    stop, restore = cure
    assert world.run(*stop).code == 0
    reap(world)
    seconds = time.monotonic() - began
    refused = world.submit_by_command()
    assert refused.code == 78 and f"there is no database {file_of(world)}" in refused.text, refused
    assert f"that a daemon saved beside it ({shlex.join(restore)})" in refused.text, refused
    checked = world.run("ffdl-admin", "db", "check")
    assert checked.code == 78 and "has directories of jobs: put the database back" in checked.text
    assert shlex.join(restore) in checked.text
    assert not file_of(world).exists()

    restored = world.run(*restore)
    assert (restored.code, "restored   1 job," in restored.text) == (0, True), restored
    world.start()
    world.tell()
    world.await_ends(running, world.submit())
    assert "Traceback" not in world.log
    # Three loops try each five seconds, after less at first; two requests were refused.
    told = world.log.count("was deleted, while a daemon works with it")
    assert told < 30 + 0.7 * seconds, "it is not said each second"


def test_daemon_recovers_when_moved_database_is_moved_back(world: FaultWorld, tmp_path: Path) -> None:
    running = world.submit_running()
    file_of(world).rename(tmp_path / "elsewhere")
    line = await_word(world, f"was moved to {tmp_path}/elsewhere")
    assert "Move it back, and the daemon goes on" in line
    refused = world.submit_by_command()
    assert (refused.code, "was moved to" in refused.text) == (75, True)
    world.tell()
    (tmp_path / "elsewhere").rename(file_of(world))
    world.await_ends(running, world.submit())
    world.wait(lambda: "was moved" not in world.run("ffdl", "list").text, "the end of the warning")
    assert world.ids() == set(world.runs())


def test_submit_refuses_to_start_daemon_without_moved_database(world: FaultWorld, tmp_path: Path) -> None:
    running = world.submit_running()
    file_of(world).rename(tmp_path / "elsewhere")
    await_word(world, "was moved to")
    kill(world)
    assert world.submit_by_command().code == 78
    (tmp_path / "elsewhere").rename(file_of(world))
    world.start()
    world.tell()
    world.await_ends(running)


def test_daemon_loses_no_job_when_wal_is_deleted_and_daemon_is_killed(world: FaultWorld) -> None:
    acknowledged = [world.submit_running(), world.submit()]
    for suffix in ("-wal", "-shm"):
        Path(f"{file_of(world)}{suffix}").unlink()
    world.wait(lambda: Path(f"{file_of(world)}-wal").exists(), "another log")
    acknowledged.append(world.submit())
    kill(world)
    world.start()
    world.tell()
    world.await_ends(*acknowledged)
    assert "was deleted or replaced under this daemon; its content is saved" in world.log
    assert world.run("ffdl-admin", "db", "check").code == 0


def test_db_restore_discards_wal_of_deleted_database(world: FaultWorld, tmp_path: Path) -> None:
    """Everything that is acknowledged after the copy was restored is there."""
    copy = str(tmp_path / "copy")
    first = world.submit()
    world.await_ends(first)
    assert world.run("ffdl-admin", "db", "backup", copy).code == 0
    later = [world.submit() for _ in range(10)]
    world.await_ends(*later)
    world.stop()
    world.start()
    later.append(world.submit())
    kill(world)
    file_of(world).unlink()
    assert Path(f"{file_of(world)}-wal").stat().st_size > 0
    restored = world.run("ffdl-admin", "db", "restore", copy)
    assert (restored.code, "restored   1 job," in restored.text) == (0, True), restored
    assert world.run("ffdl-admin", "db", "check").code == 0
    world.start()
    assert world.ids() == {first}
    again = world.submit()
    world.await_ends(again)
    kill(world)
    world.start()
    assert world.ids() == {first, again}
    assert world.run("ffdl-admin", "db", "check").code == 0


def test_daemon_rejects_older_database_copy_and_names_rescued_file(world: FaultWorld, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    world.await_ends(world.submit())
    assert world.run("ffdl-admin", "db", "backup", str(copy)).code == 0
    running = world.submit_running()
    copy.rename(file_of(world))
    line = await_word(world, "and another file is in its place")
    rescued = cure_of(line)[1][3]
    kill(world)
    for suffix in ("-wal", "-shm"):
        Path(f"{file_of(world)}{suffix}").unlink(missing_ok=True)

    refused = world.submit_by_command()
    assert refused.code == 78 and f"does not know 1 job that has a directory in {world.tree}/jobs" in refused.text
    assert f"({running})" in refused.text and f"ffdl-admin db restore {rescued} --force" in refused.text, refused
    checked = world.run("ffdl-admin", "db", "check")
    assert checked.code == 1 and f"1 job that was executed is not in it ({running})" in checked.text
    assert world.run("ffdl-admin", "db", "restore", rescued, "--force").code == 0
    world.start()
    world.tell()
    world.await_ends(running, world.submit())
    assert world.run("ffdl-admin", "db", "check").code == 0


def test_daemon_detects_database_overwritten_by_copy_and_keeps_wal(world: FaultWorld, tmp_path: Path) -> None:
    """`cp COPY FILE`: the file stays where it is, and another program has written into it."""
    copy, log = tmp_path / "copy", Path(f"{file_of(world)}-wal")
    first = world.submit()
    world.await_ends(first)
    assert world.run("ffdl-admin", "db", "backup", str(copy)).code == 0
    running = world.submit_running()
    for looking in (["check"], ["current"], ["backup", str(tmp_path / "another")]):
        assert world.run("ffdl-admin", "db", *looking).code == 0
    file_of(world).touch()
    later = world.submit()
    world.await_ends(later)
    assert "another program wrote into it" not in world.log and world.run("ffdl", "list").code == 0

    began = time.monotonic()
    shutil.copyfile(copy, file_of(world))
    told = f"the database {file_of(world)} is damaged: another program wrote into it, while a daemon works with it"
    line = await_word(world, told)
    assert STOPPED in line and "Jobs acknowledged since what is there now was copied are in no database" in line
    (kept,) = world.state.glob("ffdl.sqlite3.overwritten-*-wal")
    assert str(kept) in line and not log.exists()
    assert told in world.run("ffdl", "daemon", "status").text
    for refused in (world.submit_by_command(), world.run("ffdl", "cancel", running), world.run("ffdl", "list")):
        assert (refused.code, told in refused.text) == (69, True), refused

    assert world.run("ffdl", "daemon", "stop").code == 0
    reap(world)
    seconds = time.monotonic() - began
    assert "Traceback" not in world.log and world.log.count(told) < 30 + 0.7 * seconds, "it is not said each second"
    assert file_of(world).read_bytes() == copy.read_bytes(), "nothing is mixed with what was put there"
    refused = world.submit_by_command()
    assert refused.code == 78 and "does not know 2 jobs that have directories in" in refused.text, refused
    assert world.run("ffdl-admin", "db", "restore", str(tmp_path / "another"), "--force").code == 0
    world.start()
    world.tell()
    world.await_ends(running, world.submit())
    checked = world.run("ffdl-admin", "db", "check")
    assert (checked.code, f"left out by restore: {later}" in checked.text) == (0, True), checked


def test_submit_names_db_restore_when_database_is_damaged(world: FaultWorld, tmp_path: Path) -> None:
    job = world.submit()
    world.await_ends(job)
    assert world.run("ffdl-admin", "db", "backup", str(tmp_path / "copy")).code == 0
    for file in (file_of(world), Path(f"{file_of(world)}-wal")):
        with file.open("r+b") as opened:
            opened.write(b"\xff" * max(1, file.stat().st_size))
    assert world.run("ffdl", "daemon", "stop").code == 0
    reap(world)
    refused = world.submit_by_command()
    assert refused.code == 69 and "ffdl-admin db restore FILE --force" in refused.text, refused
    assert world.run("ffdl-admin", "db", "restore", str(tmp_path / "copy"), "--force").code == 0
    world.start()
    assert world.ids() == {job}
    world.await_ends(world.submit())


def test_commands_report_read_only_database_with_same_message(tmp_path: Path, own_mounts: None) -> None:
    with (
        fault_fs(tmp_path) as fs,
        fault_world(tmp_path, WorldOptions("local"), state=fs.point / "state") as world,
    ):
        world.start()
        running = world.submit_running()
        fs.befall(Fault(CHANGING, error=errno.EROFS, below="ffdl.sqlite3"))
        world.tell()  # an end that cannot be written
        line = await_word(world, READ_ONLY)
        told = f"the database {file_of(world)} {READ_ONLY}; the daemon goes on by itself"
        assert told in line and "since " in line
        assert told in world.run("ffdl", "daemon", "status").text
        assert told in world.run("ffdl", "show", running).text
        for refused in (world.run("ffdl", "cancel", running), world.submit_by_command()):
            assert (refused.code, told in refused.text) == (75, True), refused
        listed = json.loads(world.run("ffdl", "list", "--json").text.splitlines()[-1])
        assert listed["database_trouble"]["detail"] == told
        fs.clear()
        world.await_ends(running, world.submit())
        world.wait(lambda: READ_ONLY not in world.run("ffdl", "list").text, "the end of the warning")


def test_db_admin_checks_and_backs_up_database_on_read_only_disk(tmp_path: Path, disk: SmallDisk) -> None:
    with fault_world(tmp_path, WorldOptions("local"), state=disk.point / "state") as world:
        world.start()
        world.await_ends(world.submit())
        copy = str(tmp_path / "copy")
        world.stop()
        log, memory = (file_of(world).with_name(f"ffdl.sqlite3-{name}") for name in ("wal", "shm"))
        assert not log.exists()
        disk.make("ro")
        look_and_copy(world, copy, jobs=1)
        restore = world.run("ffdl-admin", "db", "restore", copy, "--force")
        assert restore.code == 75
        assert "is read-only: have its file system mounted for writing again" in restore.text, restore
        assert world.run("ffdl-admin", "db", "backup", str(disk.point / "copy")).code == 75

        disk.make("rw")
        world.start()
        world.await_ends(world.submit())
        kill(world)
        assert log.stat().st_size > 0
        disk.make("ro")
        look_and_copy(world, copy, jobs=2)
        disk.make("rw")
        memory.unlink()
        disk.make("ro")
        for command in ("check", "current", "backup"):
            done = world.run("ffdl-admin", "db", command, *([copy, "--force"] if command == "backup" else []))
            assert (
                done.code == 75 and f"what was written last is in {log}, and its file system is read-only" in done.text
            )
        disk.make("rw")
        assert world.run("ffdl-admin", "db", "restore", copy, "--force").code == 0


def look_and_copy(world: FaultWorld, copy: str, jobs: int) -> None:
    checked, number = world.run("ffdl-admin", "db", "check"), "1 job" if jobs == 1 else f"{jobs} jobs"
    assert (checked.code, f"no fault in {number}, " in checked.text) == (0, True), checked
    assert world.run("ffdl-admin", "db", "current").code == 0
    backup = world.run("ffdl-admin", "db", "backup", copy, "--force")
    assert (backup.code, f": {number}, " in backup.text) == (0, True), backup


REASONS = {
    "full": ("No space left on device", "database or disk is full"),
    "read-only": ("Read-only file system",),
}


@pytest.mark.postgres
@pytest.mark.parametrize("target", ["full", "missing", "read-only"])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_db_backup_fails_alike_on_both_databases_when_target_is_unwritable(
    tmp_path: Path, disk: SmallDisk, kind: str, target: str
) -> None:
    with running_postgres() as server:
        url = server.url(server.create_database()) if kind == "postgresql" else f"sqlite:///{tmp_path}/jobs.db"
        fill(url)
        if target == "full":
            disk.fill()
        elif target == "read-only":
            disk.make("ro")
        place = tmp_path / "nowhere" if target == "missing" else disk.point
        argv = [str(Path(sys.executable).with_name("ffdl-admin")), "db", "backup", str(place / "copy")]
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FFDL_DATABASE_URL": url}
        done = preloaded.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if target == "missing":
        assert (done.returncode, done.stderr) == (2, f"ffdl-admin: there is no directory {place}\n")
        return
    assert done.returncode == 75, done.stderr
    assert f"no copy could be written to {place}/copy: " in done.stderr
    assert any(reason in done.stderr for reason in REASONS[target]), done.stderr
    assert {path.name for path in disk.point.iterdir()} <= {"filler"}


def fill(url: str) -> None:
    from ffdl_batch.store import open_store

    store = open_store(url)
    add_job(store)
    store.close()
