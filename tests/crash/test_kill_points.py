"""kill -9 between any two steps of accepting and deploying: nothing acknowledged is lost, nothing is executed twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.services.job_files.orphan_cleanup import ORPHAN_AGE_S, sweep
from tests.crash.conftest import MakeWorld
from tests.crash.world import Findings, World, WorldOptions

STEPS = ("claimed", "deploying", "written", "marked", "submitted", "queued")


@pytest.mark.parametrize("backend", ["slurm", "local"])
@pytest.mark.parametrize("step", STEPS)
def test_deployment_runs_each_job_once_after_kill_at_each_step(make_world: MakeWorld, backend: str, step: str) -> None:
    world = make_world(WorldOptions(backend=backend))
    life = world.die("--submit", "2", "--deploy", "--die-at", step)
    assert len(life.acknowledged) == 2
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert _swept(world) == 0
    assert _job_directories(world) == set(life.acknowledged)


@pytest.mark.parametrize("step", STEPS)
def test_deployment_runs_each_job_once_after_kill_of_step_beside_unanswered_one(world: World, step: str) -> None:
    """The sbatch of the first job outlives the daemon."""
    answer = world.base / "answer"
    silent = f"if mkdir {world.base}/first 2>/dev/null; then until [ -e {answer} ]; do sleep 0.05; done; fi"
    world.wrap("sbatch", f'{silent}; exec "$FAKE" "$@"')
    life = world.die("--submit", "2", "--deploy-beside", "--die-at", step)
    answer.touch()
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert len(world.accepted()) == 2


def test_recovery_runs_each_job_once_after_second_kill_during_lookup(world: World) -> None:
    life = world.die("--submit", "2", "--deploy", "--die-at", "submitted")
    world.die("--deploy", "--die-at", "looked")
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()


def test_submit_leaves_no_job_after_kill_before_commit(world: World) -> None:
    life = world.die("--submit", "2", "--die-in-submit", "before the commit")
    assert life.acknowledged == ()
    assert len(_job_directories(world)) == 2, "this submission exports variables, which lie in a directory by now"
    world.recover()
    assert world.jobs() == []
    assert (world.runs(), world.calls("sbatch")) == ({}, [])
    assert _swept(world) == 2
    assert _job_directories(world) == set()


def test_submit_retry_acknowledges_same_jobs_after_kill_between_commit_and_reply(world: World) -> None:
    life = world.die("--submit", "2", "--die-in-submit", "before the answer")
    assert life.acknowledged == ()
    again = world.recover("--submit", "2")
    assert len(again.acknowledged) == 2
    assert world.examine(again.acknowledged) == Findings(), world.diagnosis()
    assert [str(job.id) for job in world.jobs()] == sorted(again.acknowledged, key=list(again.acknowledged).index)
    assert _job_directories(world) == set(again.acknowledged)


def test_examine_detects_job_acknowledged_before_commit(world: World) -> None:
    """The counter-check: with the answer before the commit, death between them must show."""
    life = world.die("--submit", "2", "--die-in-submit", "answered before the commit")
    assert len(life.acknowledged) == 2
    world.recover()
    assert world.examine(life.acknowledged) == Findings(lost=life.acknowledged)


def _job_directories(world: World) -> set[str]:
    return {path.name for path in (world.state / "jobs").iterdir()}


def _swept(world: World) -> int:
    """How many directories and archives the janitor removes a long time later."""
    old = (world.state.stat().st_mtime - 2 * ORPHAN_AGE_S,) * 2
    for path in (world.state / "jobs").iterdir():
        os.utime(Path(path), old)
    platform = world.platform()
    try:
        return sweep(platform.storage, platform.settings)
    finally:
        platform.close()
