"""kill -9 around the submission of a native array, and arrays that are lost, late or doubled: each element is executed
exactly once, and what Slurm may have is never sent again."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from ffdl_batch.domain.outcome.observation import NativeId
from tests.crash.conftest import MakeWorld
from tests.crash.world import Findings, World, WorldOptions

STEPS = ("claimed", "deploying", "planned together", "chunk written", "chunk marked", "chunk submitted", "queued")
ELEMENTS = 3
ARRAY = "{array: 0-2}"


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world whose manifest is an array."""
    return make_world(WorldOptions(batch=ARRAY))


def natives(world: World) -> Counter[str]:
    """The native arrays that the jobs' ids name, with how many jobs each has."""
    return Counter(NativeId.parse(job.native_id).job for job in world.jobs())


def sent(world: World) -> int:
    """How many native arrays the controller ever accepted, with the elements that went alone."""
    return len({record.get("array", record["id"]) for record in world.accepted()})


@pytest.mark.parametrize("step", STEPS)
def test_array_deployment_runs_each_element_once_after_kill_at_each_step(world: World, step: str) -> None:
    life = world.die("--submit", "2", "--deploy", "--die-at", step)
    assert len(life.acknowledged) == 2 * ELEMENTS
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    whole = [parts for parts in natives(world).values() if parts == ELEMENTS]
    assert sum(natives(world).values()) == 2 * ELEMENTS
    # Two arrays go side by side: where one dies, the other may have marked some of its elements; the rest goes first.
    assert len(whole) == 2 or (len(whole) == 1 and "chunk" in step), natives(world)
    assert sent(world) == len(world.calls("sbatch")) == len(natives(world))


def test_array_deployment_runs_each_element_once_after_kill_on_local_backend(make_world: MakeWorld) -> None:
    world = make_world(WorldOptions(backend="local", batch="{array: 0-2%2}"))
    life = world.die("--submit", "1", "--deploy", "--die-at", "submitted")
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()


def test_array_recovery_submits_once_after_second_kill_during_lookup(world: World) -> None:
    life = world.die("--submit", "1", "--deploy", "--die-at", "chunk submitted")
    world.die("--deploy", "--die-at", "looked")
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert len(world.calls("sbatch")) == 1


@pytest.mark.parametrize("when", ["before it sends", "after it was told"])
def test_array_recovery_submits_once_after_daemon_dies_during_sbatch(world: World, when: str) -> None:
    """sbatch outlives the daemon; the next one waits for it and reads what it was told."""
    began, dead = world.base / "began", world.base / "dead"
    outlives = f"touch {began}; until [ -e {dead} ]; do sleep 0.05; done; sleep 1"
    slow = f'{outlives}; exec "$FAKE" "$@"'
    told = f'"$FAKE" "$@"; code=$?; {outlives}; exit $code'
    world.wrap("sbatch", slow if when == "before it sends" else told)
    life = world.live("--submit", "1")
    victim = world.begin("--deploy")
    world.wait(began.exists, "the start of sbatch")
    victim.kill()
    assert victim.wait() == -signal.SIGKILL
    dead.touch()
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert len(world.calls("sbatch")) == 1


@pytest.mark.parametrize("fault", ["lose_reply", "garbage"])
def test_array_deployment_runs_each_element_once_after_sbatch_fault(world: World, fault: str) -> None:
    world.spoil("sbatch", fault)
    life = world.recover("--submit", "1")
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert len(world.accepted()) == ELEMENTS
    if fault == "lose_reply":  # it was accepted; else one element goes first to see whether Slurm answers
        assert len(world.calls("sbatch")) == 1


def test_array_recovery_cancels_pending_duplicate_array(world: World) -> None:
    world.spoil("sbatch", "twice")
    world.hold()
    life = world.die("--submit", "1", "--deploy", "--die-at", "chunk submitted")
    assert world.live("--deploy").returncode == 0
    (kept,) = natives(world)
    states = {(record.get("array", record["id"]) == kept, record["state"]) for record in world.accepted()}
    assert states == {(True, "PENDING"), (False, "CANCELLED")}
    world.release()
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()


def test_array_deployment_runs_each_element_once_after_submit_limit_refusal(world: World) -> None:
    world.spoil(
        "sbatch", "refuse=Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    )
    life = world.recover("--submit", "1")
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert sum(natives(world).values()) == ELEMENTS
