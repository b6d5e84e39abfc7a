"""The file of the database is deleted, damaged or read-only under a real daemon with real jobs.

The daemon accepts nothing that would be lost, executes nothing twice, and every command prints what to do.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ffdl_batch.store import open_store
from tests import preloaded
from tests.crash.fuzz.companions import fork_child
from tests.crash.world import WorldOptions
from tests.faultfs import CHANGING, Fault, FaultFs, fault_fs
from tests.faults.fault_rig import LIMIT_S, FaultWorld, fault_world, typed
from tests.private_mounts import SmallDisk
from tests.unit.store.jobs import add_job

STOPPED = "nothing is accepted or written"
CURE = "restore a backup (ffdl daemon stop; ffdl-admin db restore FILE --force)"
READ_ONLY = "cannot be used: its file system is read-only: have it mounted for writing again"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FaultWorld]:
    with fault_world(tmp_path, WorldOptions("local")) as made:
        made.start()
        yield made


def file_of(world: FaultWorld) -> Path:
    return world.state / "ffdl.sqlite3"


def await_word(world: FaultWorld, words: str) -> str:
    """The line of a listing that says it, once the daemon knows; nobody has asked for anything else."""

    def is_known() -> bool:
        with world.client() as client:
            trouble = client.health().database_outage
        return trouble is not None and words in trouble.detail

    world.wait(is_known, words)
    return next(line for line in listing(world).splitlines() if words in line)


def listing(world: FaultWorld, *options: str) -> str:
    """What `ffdl list` prints. It fails while the daemon needs one more connection to a file that cannot be opened."""
    found = []

    def is_listed() -> bool:
        listed = world.run("ffdl", "list", *options)
        found.append(listed.text)
        assert listed.code in (0, 75), listed
        return listed.code == 0

    world.wait(is_listed, "a listing")
    return found[-1]


def reap(world: FaultWorld) -> None:
    """The daemon was ended by a command."""
    assert world.daemon is not None
    assert world.daemon.wait(LIMIT_S) == 0


def test_daemon_refuses_writes_after_database_is_deleted_and_restore_recovers(
    world: FaultWorld, tmp_path: Path
) -> None:
    running = world.submit_running()
    assert world.run("ffdl-admin", "db", "backup", str(tmp_path / "copy")).code == 0
    file_of(world).unlink()
    began = time.monotonic()
    line = await_word(world, "was deleted, moved or replaced while a daemon works with it")
    assert STOPPED in line and "states are the last known ones" in line and running in world.run("ffdl", "list").text
    assert f"the database {file_of(world)} was deleted" in world.run("ffdl", "daemon", "status").text
    for refused in (world.submit_by_command(), world.run("ffdl", "cancel", running)):
        assert (refused.code, CURE in refused.text) == (75, True), refused

    assert world.run("ffdl", "daemon", "stop").code == 0
    reap(world)
    seconds = time.monotonic() - began
    refused = world.submit_by_command()
    assert refused.code == 78 and f"there is no database {file_of(world)}" in refused.text, refused
    assert "ffdl-admin db restore FILE" in refused.text, refused
    checked = world.run("ffdl-admin", "db", "check")
    assert checked.code == 78 and "has directories of jobs: put the database back" in checked.text
    assert not file_of(world).exists()
    file_of(world).write_bytes(b"\xff" * 5000)
    refused = world.submit_by_command()
    assert refused.code == 69 and "ffdl-admin db restore FILE --force" in refused.text, refused
    file_of(world).unlink()

    restored = world.run("ffdl-admin", "db", "restore", str(tmp_path / "copy"))
    assert (restored.code, "restored   1 job," in restored.text) == (0, True), restored
    world.start()
    world.tell()
    world.await_ends(running, world.submit())
    assert "Traceback" not in world.log
    # Three loops try every five seconds, after less at first; two requests were refused.
    told = world.log.count("was deleted, moved or replaced while a daemon works with it")
    assert told < 30 + 0.7 * seconds, "it is not logged every second"


READ_ONLY_FAULT = Fault(CHANGING, error=errno.EROFS, below="ffdl.sqlite3")


def make_read_only(world: FaultWorld, fs: FaultFs) -> None:
    """Make the database read-only while no transaction is being written."""
    tasks = Path(f"/proc/{world.daemon_pid}/task")
    journal = fs.behind / "state/ffdl.sqlite3-journal"  # SQLite truncates it at the end of each transaction

    def is_done() -> bool:
        os.kill(world.daemon_pid, signal.SIGSTOP)
        try:  # a task that waits for the file system stops after its answer
            stats = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()]
            if set(stats) != {"T"} or journal.stat().st_size > 0:
                return False
            fs.befall(READ_ONLY_FAULT)
            return True
        except (FileNotFoundError, ProcessLookupError):  # of a thread that has ended
            return False
        finally:
            os.kill(world.daemon_pid, signal.SIGCONT)

    world.wait(is_done, "a moment between two transactions")


def test_commands_report_read_only_database_with_same_message(tmp_path: Path, own_mounts: None) -> None:
    with fault_fs(tmp_path) as fs, fault_world(tmp_path, WorldOptions("local"), state=fs.point / "state") as world:
        world.start()
        running = world.submit_running()
        make_read_only(world, fs)
        world.tell()  # an end that cannot be written
        line = await_word(world, READ_ONLY)
        told = f"the database {file_of(world)} {READ_ONLY}; the daemon continues by itself"
        assert told in line and "since " in line
        assert told in world.run("ffdl", "daemon", "status").text
        assert told in world.run("ffdl", "show", running).text
        for refused in (world.run("ffdl", "cancel", running), world.submit_by_command()):
            assert (refused.code, told in refused.text) == (75, True), refused
        listed = json.loads(listing(world, "--json").splitlines()[-1])
        assert listed["database_outage"]["detail"] == told
        fs.clear()
        world.await_ends(running, world.submit())
        world.wait(lambda: READ_ONLY not in world.run("ffdl", "list").text, "the end of the warning")


def test_database_that_becomes_read_only_within_a_transaction_is_unreadable_until_it_is_writable(
    tmp_path: Path, own_mounts: None
) -> None:
    """SQLite has to undo the transaction before it reads, and cannot write."""
    with fault_fs(tmp_path) as fs, fault_world(tmp_path, WorldOptions("local"), state=fs.point / "state") as world:
        world.start()
        running = world.submit_running()
        # Truncating the journal is the last step of a commit.
        fs.befall(Fault(("truncate", "create"), error=errno.EROFS, below="ffdl.sqlite3"))
        world.tell()
        world.wait(lambda: READ_ONLY in world.run("ffdl", "daemon", "status").text, "the daemon's notice")
        fs.befall(READ_ONLY_FAULT)
        for words in (["list"], ["show", running], ["cancel", running]):
            refused = world.run("ffdl", *words)
            assert (refused.code, READ_ONLY in refused.text) == (75, True), refused
        fs.clear()
        world.await_ends(running, world.submit())


def admin(state: Path, *words: object, url: str = "") -> tuple[int, str]:
    """Status and words of `ffdl-admin db`; the database lies in the state directory if it has no `url`."""
    argv = [*typed("ffdl-admin"), "db", *map(str, words)]
    environ = {"PATH": os.environ["PATH"], "HOME": str(state.parent), "FFDL_STATE_DIR": str(state)}
    environ |= {"FFDL_DATABASE_URL": url} if url else {}
    done = preloaded.run(
        argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    return done.returncode, done.stdout


def fill(url: str) -> None:
    """One more job."""
    store = open_store(url)
    add_job(store)
    store.close()


def fill_and_die(url: str) -> None:
    """One more job, and a log that nobody has folded into the database."""
    add_job(open_store(url))
    os.kill(os.getpid(), signal.SIGKILL)


def test_db_admin_checks_and_backs_up_database_on_read_only_disk(tmp_path: Path, disk: SmallDisk) -> None:
    state, copy = disk.point / "state", tmp_path / "copy"
    state.mkdir(mode=0o700)
    file, log, memory = (state / f"ffdl.sqlite3{suffix}" for suffix in ("", "-wal", "-shm"))
    fill(f"sqlite:///{file}")
    assert not log.exists()
    disk.make("ro")
    look_and_copy(state, copy, "1 job")
    code, said = admin(state, "restore", copy, "--force")
    assert (code, "is read-only: have its file system mounted for writing again" in said) == (75, True), said
    assert admin(state, "backup", disk.point / "copy")[0] == 75

    disk.make("rw")
    child = fork_child(tmp_path / "child", partial(fill_and_die, f"sqlite:///{file}"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert log.stat().st_size > 0
    disk.make("ro")
    look_and_copy(state, copy, "2 jobs")
    disk.make("rw")
    memory.unlink()
    disk.make("ro")
    for words in (["check"], ["current"], ["backup", copy, "--force"]):
        code, said = admin(state, *words)
        assert code == 75 and f"its last writes are in {log}, and the file system is read-only" in said, said
    disk.make("rw")
    assert admin(state, "restore", copy, "--force")[0] == 0


def look_and_copy(state: Path, copy: Path, number: str) -> None:
    code, said = admin(state, "check")
    assert (code, f"no fault in {number}, " in said) == (0, True), said
    assert admin(state, "current")[0] == 0
    code, said = admin(state, "backup", copy, "--force")
    assert (code, f": {number}, " in said) == (0, True), said


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_db_backup_fails_alike_on_both_databases_when_target_is_unwritable(
    request: pytest.FixtureRequest, tmp_path: Path, disk: SmallDisk, kind: str
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    fill(url)
    nowhere, target = tmp_path / "nowhere", disk.point / "copy"
    missing = admin(tmp_path / "state", "backup", nowhere / "copy", url=url)
    assert missing == (2, f"ffdl-admin: there is no directory {nowhere}\n")
    disk.make("ro")
    code, said = admin(tmp_path / "state", "backup", target, url=url)
    assert (code, f"no copy could be written to {target}: " in said, "Read-only file" in said) == (75, True, True), said
    disk.make("rw")
    disk.fill()
    code, said = admin(tmp_path / "state", "backup", target, url=url)
    assert (code, f"no copy could be written to {target}: " in said) == (75, True), said
    assert "No space left on device" in said or "database or disk is full" in said
    assert [path.name for path in disk.point.iterdir()] == ["filler"]
