"""What the Slurm adapter does to jobs that wait, and how the head of a job submits the next one. Fake executables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from ffdl_batch.domain.observation import EndCause, NativeId, Phase
from ffdl_batch.domain.placeholders import fill
from ffdl_batch.domain.spec import BatchOptions
from ffdl_batch.ports.capabilities import AvoidsNodes, KnowsNodes, Withdraws
from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerUnreachable
from tests import preloaded
from tests.contract.scheduler_harness import FakeSlurmHarness


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    """The fake cluster."""
    harness = FakeSlurmHarness(tmp_path)
    try:
        yield harness
    finally:
        harness.close()


def running(world: FakeSlurmHarness, command: str) -> tuple[NativeId, Path]:
    """A job whose learner has begun, and its log."""
    native, plan = world.submit(command)
    world.await_log(plan, "begun")
    return native, Path(plan.attempt_dir.training_log(1))


def test_withdraw_cancels_pending_job_and_leaves_running_job(world: FakeSlurmHarness) -> None:
    assert isinstance(world.scheduler, Withdraws)
    native, _ = running(world, "echo begun; sleep 60")
    world.scheduler.withdraw(native)
    assert (world.observe(native) or fail()).phase is Phase.RUNNING
    world.freeze()
    waiting, _ = world.submit("true")
    world.scheduler.withdraw(waiting)
    world.scheduler.withdraw(waiting)
    assert world.await_end(waiting).end is EndCause.CANCELLED
    world.scheduler.withdraw(NativeId("999"))
    assert all("--state=PENDING" in call["argv"] for call in world.calls("scancel"))


def test_signal_kill_targets_first_job_step_instead_of_batch_script(world: FakeSlurmHarness) -> None:
    native, _ = running(world, "echo begun; sleep 60")
    world.scheduler.signal(native, "KILL")
    assert world.await_end(native).end is EndCause.FAILURE
    assert world.calls("scancel")[-1]["argv"] == ["--signal=KILL", f"{native}.0"]


@pytest.mark.parametrize("name", ["KILL", "URG"])
def test_signal_leaves_pending_job_pending(world: FakeSlurmHarness, name: str) -> None:
    world.freeze()
    native, _ = world.submit("true")
    world.scheduler.signal(native, name)
    world.scheduler.signal(NativeId("999"), name)
    assert (world.observe(native) or fail()).phase is Phase.PENDING


def test_node_exclusion_extends_existing_exclude_list_of_pending_job(world: FakeSlurmHarness) -> None:
    assert isinstance(world.scheduler, AvoidsNodes)
    world.freeze()
    native, _ = world.submit("true", batch=BatchOptions(exclude="n[2-3]"))
    plain, _ = world.submit("true")
    world.scheduler.avoid(native, ["n1", "m7"])
    world.scheduler.avoid(plain, ["n1"])
    assert (excluded(world, native), excluded(world, plain)) == ("n[2-3],m7,n1", "n1")
    before = len(world.calls("scontrol"))
    world.scheduler.avoid(plain, [])
    world.scheduler.avoid(NativeId("999"), ["n1"])
    assert len(world.calls("scontrol")) == before


def test_nodes_of_partition_returns_expanded_sinfo_names_and_none_if_unknown(world: FakeSlurmHarness) -> None:
    """By them the share of a partition is counted that jobs may keep off."""
    assert isinstance(world.scheduler, KnowsNodes)
    facts = world.scheduler.probe()
    names = world.scheduler.nodes_of(facts, "")
    default = next(one.name for one in facts.partitions if one.is_default)
    assert names and names == world.scheduler.nodes_of(facts, default)
    assert not any("[" in name for name in names)
    asked = len(world.calls("sinfo"))
    assert world.scheduler.nodes_of(facts, "elsewhere") == frozenset()
    assert len(world.calls("sinfo")) == asked
    world.freeze()
    native, _ = world.submit("true", batch=BatchOptions(exclude=min(names)))
    assert excluded(world, native) == min(names)


def test_node_exclusion_rejects_running_job_and_reports_scontrol_outage(world: FakeSlurmHarness) -> None:
    assert isinstance(world.scheduler, AvoidsNodes)
    native, _ = running(world, "echo begun; sleep 60")
    with pytest.raises(InvalidRequest, match="no longer pending"):
        world.scheduler.avoid(native, ["n1"])
    world.spoil("scontrol", "down")
    with pytest.raises(SchedulerUnreachable):
        world.scheduler.avoid(native, ["n1"])


def test_requeued_job_keeps_id_and_increments_restart_count(world: FakeSlurmHarness) -> None:
    native, _ = running(world, "echo begun; sleep 60")
    scontrol("requeue", native)
    assert world.await_observation(native, lambda seen: seen.restarts == 1).phase in (Phase.PENDING, Phase.RUNNING)


def test_observation_marks_job_held_for_good_after_max_requeue(world: FakeSlurmHarness) -> None:
    world.freeze()
    native, _ = world.submit("true")
    scontrol("hold", native)
    held = world.await_observation(native, lambda seen: seen.reason == "JobHeldUser")
    assert held.phase is Phase.PENDING and not held.held_for_good
    change(world, native, reason="JobHoldMaxRequeue", state="REQUEUE_HOLD")
    given_up = world.await_observation(native, lambda seen: seen.reason == "JobHoldMaxRequeue")
    assert given_up.phase is Phase.PENDING and given_up.held_for_good


def test_head_controller_continuation_waits_on_dependency_and_is_found_by_token(world: FakeSlurmHarness) -> None:
    """The argv of the launch file, run as a head runs it, with nothing but the variables that it may keep."""
    native, _ = running(world, "echo begun; sleep 60")
    following = world.prepare("echo begun; sleep 60", lead_s=60)
    chain = following.launch.succession
    assert chain is not None
    values = {
        "native_id": str(native),
        "script": following.attempt_dir.script,
        "lead_s": "90",
        "token": following.token,
    }
    argv = [fill(word, values) for word in chain.submit]
    env = {name: os.environ[name] for name in chain.keep_env if name in os.environ}
    done = preloaded.run(argv, env=env, capture_output=True, text=True, check=True)
    successor = NativeId(done.stdout.strip())
    assert world.await_observation(successor, lambda seen: seen.reason == "Dependency").phase is Phase.PENDING
    assert world.scheduler.find(following.token, following.attempt_dir) == {successor}
    assert json.loads((world.state / "jobs" / f"{successor}.json").read_text())["options"]["signal"] == "URG@90"
    world.scheduler.cancel(native)
    world.await_log(following, "begun")


def scontrol(verb: str, native: NativeId) -> None:
    """As a person would."""
    preloaded.run(["scontrol", verb, str(native)], check=True)


def change(world: FakeSlurmHarness, native: NativeId, **fields: str) -> None:
    """What the controller thinks of a job."""
    world.change(native, **fields)


def excluded(world: FakeSlurmHarness, native: NativeId) -> str:
    """The nodes that a job excludes."""
    return str(json.loads((world.state / "jobs" / f"{native}.json").read_text())["excluded"])


def fail() -> NoReturn:
    """The job is not there."""
    raise AssertionError("the scheduler does not list the job")
