"""kill -9 between any two steps of going on, halting and resuming: one execution per attempt, and a whole history.

The fake Slurm keeps the first attempt waiting, and the test plays its head; what comes after is executed in earnest.
"""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import Outcome
from tests.crash.world import Findings, Life, World

WATCHING = ("asked", "requested", "judged", "noted")
ADOPTING = ("claimed", "looked", "queued")
DEPLOYING = ("claimed", "deploying", "written", "template", "fenced", "marked", "submitted", "queued")


def held(world: World) -> Life:
    """One job whose first attempt Slurm has, and never starts."""
    world.hold()
    return world.live("--submit", "1", "--deploy")


def submit_successor(world: World) -> None:
    """What the head runs for its successor."""
    (script,) = (world.state / "jobs").glob("*/attempt-2/script.sh")
    world.command("sbatch", "--parsable", str(script))


def let_run(world: World, first: str) -> None:
    """The first job is over for Slurm too; the others may run."""
    world.end(first, "COMPLETED")
    world.release()


@pytest.mark.parametrize("step", ["judged", "noted", *ADOPTING])
def test_continuation_is_adopted_once_after_daemon_dies_at_each_step(world: World, step: str) -> None:
    life = held(world)
    (first,) = world.accepted()
    head = world.head()
    head.starts()
    head.begins_successor()
    submit_successor(world)
    head.goes_on()
    if step in ADOPTING:
        world.live("--watch")
        world.die("--deploy", "--die-at", step)
    else:
        world.die("--watch", "--die-at", step)
    let_run(world, first["id"])
    world.recover()
    assert world.examine(life.acknowledged, attempts=2) == Findings(), world.diagnosis()
    assert (len(world.accepted()), world.jobs()[0].attempt) == (2, 2)


@pytest.mark.parametrize("step", [*WATCHING, *DEPLOYING])
def test_preempted_job_continues_once_after_daemon_dies_at_each_step(world: World, step: str) -> None:
    life = held(world)
    (first,) = world.accepted()
    head = world.head()
    head.starts()
    head.saves()
    head.ends(Outcome.CANCELLED, message="ended from outside")
    world.end(first["id"], "PREEMPTED")
    if step in DEPLOYING:
        world.live("--watch")
        world.die("--deploy", "--die-at", step)
    else:
        world.die("--watch", "--die-at", step)
    world.release()
    world.recover()
    assert world.examine(life.acknowledged, attempts=2) == Findings(), world.diagnosis()
    assert (len(world.accepted()), world.jobs()[0].attempt, world.jobs()[0].spent.preemptions) == (2, 2, 1)


@pytest.mark.parametrize("step", WATCHING)
def test_halt_completes_without_execution_after_daemon_dies_at_each_step(world: World, step: str) -> None:
    held(world)
    if step in ("judged", "noted"):
        world.live("--halt", "--watch")
        world.die("--watch", "--die-at", step)
    else:
        world.die("--halt", "--watch", "--die-at", step)
    world.recover()
    world.release()
    (job,) = world.jobs()
    assert (job.state, world.accepted()[0]["state"], world.runs()) == (JobState.HALTED, "CANCELLED", {})


@pytest.mark.parametrize("step", ["deploying", "fenced", "marked", "submitted"])
def test_resume_runs_one_new_attempt_after_daemon_dies_at_each_step(world: World, step: str) -> None:
    life = held(world)
    world.recover("--halt")
    world.die("--resume", "--deploy", "--die-at", step)
    world.release()
    world.recover()
    assert world.examine(life.acknowledged, attempts=2) == Findings(), world.diagnosis()
    assert (len(world.accepted()), world.jobs()[0].attempt) == (2, 2)
