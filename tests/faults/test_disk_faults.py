"""Disks that are full or read-only under a real daemon, real controllers and real learners.

Acknowledged work stays, the message says what to do, and what was held up goes on by itself.
"""

from __future__ import annotations

import dataclasses
import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.launch.launch_file import Stores
from ffdl_batch.domain.outcome.controller_events import Event, EventKind
from ffdl_batch.host.processes import all_processes
from tests.contract.controller_rig import LIMITS, Rig, rig
from tests.crash.world import WorldOptions
from tests.faultfs import CHANGING, Fault, FaultFs, fault_fs
from tests.faults.fault_rig import fault_world
from tests.private_mounts import SmallDisk

pytestmark = pytest.mark.usefixtures("own_mounts")

FULL = Fault(("write",), error=errno.ENOSPC)
WAIT = "echo up; until [ -e {told} ]; do sleep 0.1; done; exit {code}"


def test_submit_is_refused_without_leftovers_when_state_directory_is_full(tmp_path: Path, disk: SmallDisk) -> None:
    """Database and log are full; the jobs' directories are not."""
    with fault_world(tmp_path, WorldOptions("local"), state=disk.point / "state") as world:
        world.start()
        running = world.submit_running()
        disk.fill()
        refused = world.submit_by_command()
        assert (refused.code, world.ids()) == (75, {running})
        assert "the disk (or the quota) is full: free some space" in refused.text
        exporting = world.run("ffdl-submit", "--export=ALL", str(world.base / "manifest.yml"), str(world.model))
        assert exporting.code == 75, exporting
        assert [path.name for path in (world.tree / "jobs").iterdir()] == [running]

        world.tell()  # this end cannot be written
        final = JobDir(str(world.tree / "jobs" / running)).attempt(1).final
        world.wait(Path(final).exists, "the end of the job")
        time.sleep(2.5)  # the daemon looks for it
        assert world.job(running).state in ("PROCESSING", "STORING")
        disk.free()
        world.await_ends(running, world.submit())
        assert "Traceback" not in world.log


def test_daemon_restart_is_refused_when_state_directory_is_full(tmp_path: Path, disk: SmallDisk) -> None:
    with fault_world(tmp_path, WorldOptions("local"), state=disk.point / "state") as world:
        world.state.mkdir()  # the daemon makes the database itself: its log then needs more room than the rest
        world.start()
        job = world.submit()
        world.await_ends(job)
        before = world.daemon_pid
        disk.fill()
        refused = world.run("ffdl", "daemon", "restart")
        assert (refused.code, len(refused.text.splitlines())) == (75, 1), refused
        assert f"{world.state} cannot be written to: No space left on device (free some space" in refused.text
        assert f"your daemon (process {before} on " in refused.text and "still runs" in refused.text, refused
        listed = world.run("ffdl", "list")
        assert listed.code == 0 and job in listed.text and world.daemon_pid == before, listed
        # Whoever ends it all the same is told that none runs, and promised nothing.
        world.stop()
        alone = world.run("ffdl", "list")
        assert alone.code == 75 and "no daemon runs now" in alone.text and "free" in alone.text, alone
        assert "by itself" not in alone.text, alone
        assert world.submit_by_command().code == 75
        assert [path.name for path in (world.tree / "jobs").iterdir()] == [job]
        disk.free()
        world.start()
        assert world.job(job).state == "COMPLETED"
        assert [path.name for path in world.state.iterdir() if path.name.startswith(".trial")] == []


def test_jobs_wait_and_continue_when_job_directory_disk_is_full(tmp_path: Path, disk: SmallDisk) -> None:
    """One whose directory cannot be made; one that runs, and ends while nobody can write a word of it."""
    with fault_world(tmp_path, WorldOptions("local"), tree=disk.point / "tree") as world:
        world.start()
        running = world.submit_running()
        disk.fill()
        waiting = world.submit()
        world.wait(lambda: "no space is left" in world.job(waiting).pending_reason, "the reason of its waiting")
        assert "free space there" in world.job(waiting).pending_reason
        world.tell()
        time.sleep(1.0)
        disk.free()
        world.await_ends(running, waiting)


def test_queued_job_waits_to_start_while_its_directory_is_unwritable(tmp_path: Path) -> None:
    """It was handed over before; its supervisor and its head find no room for their first words."""
    with fault_fs(tmp_path) as fs, fault_world(tmp_path, WorldOptions("local"), tree=fs.point / "tree") as world:
        world.start()
        running = [world.submit_running(), world.submit_running()]  # as many as run at once
        third = world.submit_long()
        world.await_state(third, "QUEUED")
        fs.befall(Fault(CHANGING, error=errno.EROFS, below=third))
        world.tell()
        world.await_ends(*running)
        fs.await_failures(3)
        assert (world.job(third).state, world.runs().total()) == ("QUEUED", 2)
        fs.clear()
        world.await_ends(third)


@pytest.fixture
def spoiled(tmp_path: Path) -> Iterator[tuple[Rig, FaultFs]]:
    """A job on a file system that can be spoiled, and its learner runs; results are stored elsewhere."""
    with fault_fs(tmp_path) as fs, rig(fs.point) as run:
        run.said_in = tmp_path
        yield run, fs


def started(run: Rig) -> list[Event]:
    """Return the events of learners' starts."""
    return [event for event in run.events() if event.kind is EventKind.LEARNER_STARTED]


def begin(run: Rig, code: int, fence_s: float = 120.0) -> None:
    """Its learner waits for the file ``told``, and ends with `code` then."""
    stores = Stores(results=str(run.base.parent / "results"))
    limits = dataclasses.replace(LIMITS, fence_s=fence_s)
    run.write(WAIT.format(told=run.base.parent / "told", code=code), stores=stores, limits=limits)
    run.start()
    run.wait_for_log("up")


def test_controllers_wait_to_record_learner_end_until_full_disk_has_room(spoiled: tuple[Rig, FaultFs]) -> None:
    """Not even what was held back for the last words helps: nothing is taken at all."""
    run, fs = spoiled
    begin(run, 7)
    run.wait(lambda: bool(started(run)), "the event of the learner's start")
    pid = int(started(run)[0].fields["pid"] or 0)
    fs.befall(FULL)
    (fs.point.parent / "told").touch()
    run.wait(lambda: pid not in all_processes(), "the learner's end")
    fs.await_failures(5)
    assert run.is_running()
    assert not [event for event in run.events() if event.kind is EventKind.LEARNER_ENDED]
    fs.clear()
    assert run.await_end() == 7
    assert (run.final().exit_code, run.final().error_code, run.final().stored) == (7, "C201", True)
    assert [event.seq for event in run.events()] == list(range(1, len(run.events()) + 1))


def test_head_controller_exits_with_status_74_when_disk_stays_full(spoiled: tuple[Rig, FaultFs]) -> None:
    """There is no proof then, and the scheduler's word decides: the head must not end as if there were."""
    run, fs = spoiled
    begin(run, 0, fence_s=2.0)
    fs.befall(FULL)
    (fs.point.parent / "told").touch()
    assert run.await_end() == 74
    assert not Path(run.attempt.final).exists()
    assert "these events could not be written" in run.errors and '"x_exit_code":0' in run.errors


def test_pending_upload_stores_results_after_full_results_disk_has_room(tmp_path: Path, disk: SmallDisk) -> None:
    with rig(tmp_path) as run:
        (disk.point / "out").mkdir()
        run.write("head -c 300000 /dev/urandom > $RESULT_DIR/weights", stores=Stores(results=str(disk.point / "out")))
        disk.fill()
        assert run.run() == 74
        assert (run.final().error_code, run.final().stored) == ("S303", False)
        assert "No space left on device" in run.final().message
        disk.free()
        assert run.run("upload") == 0
        assert (disk.point / "out" / "weights").stat().st_size == 300000
