"""The local backend when processes are killed, the machine is full, and two want the same attempt."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.job.spec import BatchOptions, Checkpoint
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Phase
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_local.records import LOCK, STARTED, STATE, is_held, local_directory, process_stat, read_record
from tests import preloaded
from tests.contract.scheduler_harness import LocalHarness


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LocalHarness]:
    """A machine with two slots."""
    harness = LocalHarness(tmp_path)
    try:
        yield harness
    finally:
        harness.close()


def record(plan: LaunchPlan, name: str) -> dict[str, Any]:
    found = read_record(local_directory(plan.attempt_dir.path) / name)
    assert found is not None
    return found


def is_running(plan: LaunchPlan) -> bool:
    return bool(record(plan, STATE)["phase"] == "running")


def run_two(world: LocalHarness) -> list[NativeId]:
    """Jobs that have the slots."""
    jobs = [world.submit("sleep 600") for _ in range(2)]
    for _, plan in jobs:
        world.wait(partial(is_running, plan), world.diagnosis)
    return [native for native, _ in jobs]


def pids(world: LocalHarness, plan: LaunchPlan) -> tuple[int, int]:
    """Of supervisor and head, once the supervisor has written down whom it started."""
    world.wait(partial(is_running, plan), world.diagnosis)
    return record(plan, STARTED)["pid"], record(plan, STATE)["head"]


def test_local_scheduler_keeps_job_pending_when_slots_are_taken(world: LocalHarness) -> None:
    running = run_two(world)
    third, _ = world.submit("true")
    seen = world.observe(third)
    assert seen is not None and (seen.phase, seen.reason) == (Phase.PENDING, "Resources")
    world.scheduler.cancel(running[0])
    assert world.await_end(third).end is EndCause.SUCCESS


def test_local_scheduler_cancels_pending_job_without_execution(world: LocalHarness) -> None:
    run_two(world)
    native, plan = world.submit("sleep 600")
    world.scheduler.cancel(native)
    seen = world.await_end(native)
    assert (seen.end, seen.started_at) == (EndCause.CANCELLED, None)
    assert world.executions(plan.attempt_dir) == 0


def test_local_scheduler_cancels_job_after_supervisor_is_killed(world: LocalHarness) -> None:
    native, plan = world.submit("trap 'exit 1' TERM; echo up; sleep 600 & wait")
    world.await_log(plan, "up")
    supervisor, _ = pids(world, plan)
    os.kill(supervisor, signal.SIGKILL)
    world.wait(lambda: process_stat(supervisor) is None, world.diagnosis)
    world.scheduler.cancel(native)
    assert world.await_end(native).end is EndCause.CANCELLED


def test_local_scheduler_reports_node_failure_when_supervisor_and_head_are_killed(world: LocalHarness) -> None:
    native, plan = world.submit("echo up; sleep 600")
    world.await_log(plan, "up")
    for pid in pids(world, plan):
        os.kill(pid, signal.SIGKILL)
    seen = world.await_end(native)
    assert seen.end is EndCause.NODE_FAIL and "killed" in seen.reason
    assert world.scheduler.find(plan.token, plan.attempt_dir) == {native}


def command_line(pid: int) -> bytes:
    """ "" where the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_local_scheduler_ends_learners_when_head_controller_is_killed(world: LocalHarness) -> None:
    native, plan = world.submit('echo "pid=$$"; sleep 600')
    world.await_log(plan, "pid=")
    learner = [pid for pid in world._own_processes() if b"sleep" in command_line(pid)]
    os.kill(pids(world, plan)[1], signal.SIGKILL)
    seen = world.await_end(native)
    assert (seen.end, seen.exit_signal) == (EndCause.FAILURE, signal.SIGKILL)
    assert learner and all(process_stat(pid) is None for pid in learner)


def test_local_scheduler_reports_suspended_job_when_head_controller_is_stopped(world: LocalHarness) -> None:
    native, plan = world.submit("echo up; sleep 600")
    world.await_log(plan, "up")
    _, head = pids(world, plan)
    os.kill(head, signal.SIGSTOP)
    world.await_observation(native, lambda seen: seen.phase is Phase.SUSPENDED)
    os.kill(head, signal.SIGCONT)
    world.await_observation(native, lambda seen: seen.phase is Phase.RUNNING)


def test_local_scheduler_enforces_time_limit(world: LocalHarness) -> None:
    native, _ = world.submit("sleep 600", batch=BatchOptions(time_s=2, checkpoint=Checkpoint(grace_s=1)))
    assert world.await_end(native).end is EndCause.TIMEOUT


def test_local_scheduler_runs_job_once_after_submitter_is_killed(world: LocalHarness) -> None:
    """The submitter is killed right after the supervisor was started; another process finds the job."""
    plan = world.prepare("echo ran")
    submitter = (
        "import os, subprocess, sys, json, fcntl\n"
        "directory, argv = sys.argv[1], json.loads(sys.argv[2])\n"
        "os.makedirs(directory)\n"
        "lock = os.open(directory + '/lock', os.O_RDWR | os.O_CREAT, 0o600)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "subprocess.Popen([*argv, str(lock)], pass_fds=(lock,), stdout=subprocess.DEVNULL)\n"
        "os._exit(9)\n"
    )
    directory = local_directory(plan.attempt_dir.path)
    argv = [sys.executable, "-c", submitter, str(directory), json.dumps(plan.submit_argv)]
    assert preloaded.run(argv, check=False).returncode == 9
    native = NativeId(plan.token)
    world.wait((directory / STARTED).exists, world.diagnosis)
    assert world.scheduler.find(plan.token, plan.attempt_dir) == {native}
    assert world.scheduler.submit(plan) == native
    assert world.await_end(native).end is EndCause.SUCCESS
    assert world.log(plan).count("ran") == 1
    # The end is written down before its writer ends, and the lock with it.
    world.wait(lambda: not is_held(directory / LOCK), world.diagnosis)


def test_local_scheduler_leaves_no_zombie_child_after_job_ends(world: LocalHarness) -> None:
    native, _ = world.submit("true")
    world.await_end(native)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if (process_stat(int(pid)) or ("",))[0] == "Z"]
