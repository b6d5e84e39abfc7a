"""What the Slurm adapter does to jobs that wait, and how the head of a job submits the next one. Fake executables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow, SchedulerUnreachable
from ffdl_batch.ports.capabilities import AvoidsNodes, ForgetsJobs, ShrinksJobs
from tests import preloaded
from tests.contract.scheduler_harness import FakeSlurmHarness


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    """The fake cluster."""
    with FakeSlurmHarness(tmp_path) as harness:
        yield harness


def running(world: FakeSlurmHarness, command: str) -> tuple[NativeId, Path]:
    """A job whose learner has begun, and its log."""
    native, plan = world.submit(command)
    world.await_log(plan, "begun")
    return native, Path(plan.attempt_dir.training_log(1))


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
    assert isinstance(world.scheduler, AvoidsNodes)
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


def test_shrinking_gives_back_nodes_once_and_reports_outages(world: FakeSlurmHarness) -> None:
    assert isinstance(world.scheduler, ShrinksJobs)
    native, _ = running(world, "echo begun; sleep 60")
    world.scheduler.shrink(native, ["n2", "n3"])
    world.await_observation(native, lambda seen: seen.nodes == "n2,n3")
    asked = len(world.calls("scontrol"))
    world.scheduler.shrink(native, ["n2", "n3"])
    assert len(world.calls("scontrol")) == asked, "each update begins a record in the accounting"
    world.spoil("scontrol", "down")
    with pytest.raises(SchedulerUnreachable):
        world.scheduler.shrink(native, ["n2"])


def test_shrinking_a_waiting_job_would_pin_it_to_nodes(world: FakeSlurmHarness) -> None:
    """So the scaler asks only for jobs that run."""
    assert isinstance(world.scheduler, ShrinksJobs)
    world.freeze()
    waiting, _ = world.submit("true")
    world.scheduler.shrink(waiting, ["n2"])
    assert json.loads((world.state / "jobs" / f"{waiting}.json").read_text())["required"] == "n2"


def test_requeued_job_keeps_id_and_increments_restart_count(world: FakeSlurmHarness) -> None:
    native, _ = running(world, "echo begun; sleep 60")
    preloaded.run(["scontrol", "requeue", str(native)], check=True)
    assert world.await_observation(native, lambda seen: seen.restarts == 1).phase in (Phase.PENDING, Phase.RUNNING)


def test_squeue_parser_observes_readable_rows_and_refuses_to_forget_jobs(world: FakeSlurmHarness) -> None:
    """One row that cannot be read hides no other job, and proves of none that it is gone."""
    world.freeze()
    (first, _), (second, _) = world.submit("true"), world.submit("true")
    world.spoil("squeue", "odd:always")
    seen = world.scheduler.observe([first, second])
    assert {native: one.phase for native, one in seen.items()} == {second: Phase.PENDING}
    assert not world.calls("sacct")  # the one that is not listed may be what cannot be read
    assert isinstance(world.scheduler, ForgetsJobs)
    with pytest.raises(NotNow, match="1 row among 2 cannot be read"):
        world.scheduler.find_absent([first, second])


def test_head_controller_continuation_waits_on_dependency_and_is_found_by_token(world: FakeSlurmHarness) -> None:
    """The argv of the launch file, run as a head runs it, with nothing but the variables that it may keep."""
    native, _ = running(world, "echo begun; sleep 60")
    following = world.prepare("echo begun; sleep 60", lead_s=60)
    chain = following.launch.succession
    assert chain is not None
    script = following.attempt_dir.script
    values = {"native_id": str(native), "script": script, "lead_s": "90", "token": following.token}
    argv = [fill(word, values) for word in chain.submit]
    env = {name: os.environ[name] for name in chain.keep_env if name in os.environ}
    done = preloaded.run(argv, env=env, capture_output=True, text=True, check=True)
    successor = NativeId(done.stdout.strip())
    assert world.await_observation(successor, lambda seen: seen.reason == "Dependency").phase is Phase.PENDING
    assert world.scheduler.find(following.token, following.attempt_dir) == {successor}
    assert json.loads((world.state / "jobs" / f"{successor}.json").read_text())["options"]["signal"] == "URG@90"
    world.scheduler.cancel(native)
    world.await_log(following, "begun")


def excluded(world: FakeSlurmHarness, native: NativeId) -> str:
    """The nodes that a job excludes."""
    return str(json.loads((world.state / "jobs" / f"{native}.json").read_text())["excluded"])
