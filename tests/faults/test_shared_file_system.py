"""The shared file system is slow, stale, or gone for a while: no job ends by that, and nobody waits for ever."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, decode_events
from ffdl_batch.host.processes import all_processes
from ffdl_slurm.settings import SlurmSettings
from tests.contract.controller_rig import LIMITS, Rig, rig
from tests.crash.world import WorldOptions
from tests.faultfs import BROKEN, CHANGING, HANGING, SLOW, STALE, Fault, FaultFs, fault_fs
from tests.faults.fault_rig import FaultWorld, fault_world

pytestmark = pytest.mark.usefixtures("own_mounts")

AT_ONCE_S, QUICK_S = 100.0, 100.0
"""Until two questions to the database are answered, and until a command has said that the file system does not answer:
much longer than it takes, as who waits for a file system that hangs waits for ever."""


def test_default_fence_limits_exceed_one_minute() -> None:
    assert min(Limits().fence_s, SlurmSettings().fence_s) > 60.0


@pytest.mark.parametrize(
    ("backend", "first", "last"), [("slurm", (BROKEN,), HANGING), ("local", (SLOW, STALE), None)],
    ids=["broken, then hanging", "slow, then stale, then unmounted"],
)  # fmt: skip
def test_job_survives_outages_of_shared_file_system(
    tmp_path: Path, backend: str, first: tuple[Fault, ...], last: Fault | None
) -> None:
    """It goes away several times; its learner ends while it is away for the last time."""
    with fault_fs(tmp_path) as fs, fault_world(tmp_path, WorldOptions(backend), tree=fs.point / "tree") as world:
        world.start()
        running = world.submit_running()
        for fault in first:
            fs.befall(fault)
            assert_told(world, running)
            fs.clear()
            world.wait(lambda: world.run("ffdl", "logs", running).code == 0, "the log")
        if last is None:
            fs.hide()
        else:
            fs.befall(last)
        world.tell()
        assert_told(world, running)
        if last is None:
            fs.show()
        fs.clear()
        world.await_ends(running)
        world.wait(lambda: world.submit_by_command().code == 0, "a submission")
        world.await_ends(*world.ids())
        assert "Traceback" not in world.log


def assert_told(world: FaultWorld, job_id: str) -> None:
    """What the database knows is told at once, and for the rest why it cannot be told now."""
    began = time.monotonic()
    assert (world.job(job_id).state, world.ids()) == ("PROCESSING", {job_id})
    assert time.monotonic() - began < AT_ONCE_S
    for refused in (world.run("ffdl", "logs", job_id), world.submit_by_command()):
        assert refused.code == 75 and refused.took_s < QUICK_S, refused
        assert "does not answer as it should" in refused.text or "is not there" in refused.text, refused
    assert world.job(job_id).state == "PROCESSING"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[Rig, FaultFs]]:
    """A job on a file system that can be spoiled."""
    with fault_fs(tmp_path) as fs, rig(fs.point) as run:
        run.said_in = tmp_path
        try:
            yield run, fs
        finally:
            fs.clear()  # who hangs cannot be killed


def aloof(fs: FaultFs) -> str:
    """A learner's first words, after which its shell does not touch the shared file system: who hangs there cannot be
    ended by anybody, and does nothing meanwhile."""
    return f"echo up; cd /; exec > /dev/null 2>&1; touch {away(fs)}; "


def away(fs: FaultFs) -> Path:
    """Is there once the shell is aloof."""
    return fs.point.parent / "away"


def behind(fs: FaultFs, path: str) -> Path:
    """Where a file lies that looks as if it lay at `path`; there it can always be read."""
    return fs.behind / Path(path).relative_to(fs.point)


def kinds(run: Rig, fs: FaultFs) -> list[str]:
    """What the node controller has written so far."""
    text = behind(fs, run.attempt.event_file("node-0")).read_text()
    events = decode_events(text)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.kind.value for event in events]


def final(run: Rig, fs: FaultFs) -> FinalRecord:
    return from_plain(FinalRecord, json.loads(behind(fs, run.attempt.final).read_text()))


def learner(run: Rig) -> int:
    """The pid of the learner's main process."""

    def started() -> list[Event]:
        return [event for event in run.events() if event.kind is EventKind.LEARNER_STARTED]

    run.wait(lambda: bool(started()), "the event of the learner's start, which another thread writes")
    return int(started()[-1].fields["pid"] or 0)


def test_node_controller_ends_learner_in_time_while_event_write_hangs(shared: tuple[Rig, FaultFs]) -> None:
    """The write of "asked" hangs: the request, the grace period and the KILL must not wait for it."""
    run, fs = shared
    limits = dataclasses.replace(LIMITS, grace_s=1, kill_wait_s=1)
    run.write("trap '' TERM; " + aloof(fs) + "sleep 600", limits=limits)
    run.start()
    run.wait(away(fs).exists, "the learner's leave")
    pid = learner(run)
    fs.befall(Fault(("write",), "events/node-0", hang=True))
    os.kill(run.node_pid(), signal.SIGURG)
    run.wait(lambda: bool(fs.held()), "the write of an event")
    run.wait(lambda: pid not in all_processes(), "the learner's end")
    assert fs.held() and "asked" not in kinds(run, fs)
    fs.clear()
    assert run.await_end() == 124
    found = kinds(run, fs)
    assert found.index("asked") < found.index("learner_ended") < found.index("ended")
    assert final(run, fs).error_code == "C203"


@pytest.mark.parametrize(
    ("fault", "fenced_for"),
    [(HANGING, "could not be read"), (Fault(CHANGING, error=errno.EIO), "could not be written")],
    ids=["hangs", "fails to write"],
)
def test_learner_is_fenced_when_file_system_hangs_or_fails_to_write(
    shared: tuple[Rig, FaultFs], fault: Fault, fenced_for: str
) -> None:
    """Others hear nothing of this node, and take its learners for ended. The learner stays off the file system."""
    run, fs = shared
    run.write(aloof(fs) + "sleep 600", limits=dataclasses.replace(LIMITS, fence_s=6.0))
    run.start()
    run.wait(away(fs).exists, "the learner's leave")
    pid = learner(run)
    fs.befall(fault)
    run.wait(lambda: pid not in all_processes(), "the fence")
    fs.clear()
    assert run.await_end() == 74
    assert (final(run, fs).error_code, fenced_for in final(run, fs).message) == ("S106", True)


def test_controllers_exit_with_status_74_when_file_system_stays_read_only(shared: tuple[Rig, FaultFs]) -> None:
    """Their allocation is free then: nobody waits for a last word that nothing takes."""
    run, fs = shared
    run.write(aloof(fs) + "sleep 600", limits=dataclasses.replace(LIMITS, fence_s=3.0))
    run.start()
    run.wait(away(fs).exists, "the learner's leave")
    fs.befall(Fault(CHANGING, error=errno.EROFS))
    assert run.await_end() == 74
    assert "could not be written" in run.errors and not Path(run.attempt.final).exists()


def test_learner_is_fenced_when_file_system_hangs_during_start_event(shared: tuple[Rig, FaultFs]) -> None:
    """The event of its start takes a moment to be durable; when it is, nothing answers any more."""
    run, fs = shared
    run.write(aloof(fs) + "sleep 600", limits=dataclasses.replace(LIMITS, fence_s=6.0))
    fs.befall(Fault(("fsync",), "events/node-0", delay_s=1.5))
    run.start()
    pid = learner(run)
    run.wait(away(fs).exists, "the learner's leave")
    fs.befall(HANGING)
    run.wait(lambda: pid not in all_processes(), "the fence")
    fs.clear()
    assert run.await_end() == 74


def test_head_controller_records_learner_end_after_file_system_outage(shared: tuple[Rig, FaultFs]) -> None:
    run, fs = shared
    told = fs.point.parent / "told"
    run.write(f"echo up; until [ -e {told} ]; do sleep 0.1; done; exit 5")
    run.start()
    run.wait_for_log("up")
    pid = learner(run)
    fs.befall(STALE)
    told.touch()
    run.wait(lambda: pid not in all_processes(), "the learner's end")
    fs.await_failures(10)
    assert run.is_running()
    fs.clear()
    assert run.await_end() == 5
    assert (final(run, fs).error_code, final(run, fs).exit_code) == ("C201", 5)


def test_head_controller_waits_to_start_during_file_system_outage(shared: tuple[Rig, FaultFs]) -> None:
    run, fs = shared
    run.write("echo up")
    fs.befall(dataclasses.replace(BROKEN, below="attempt-1"))
    run.start()
    fs.await_failures(5)
    assert run.is_running()
    fs.clear()
    assert run.await_end() == 0
    assert final(run, fs).error_code == "000"
