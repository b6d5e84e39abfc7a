"""kill -9 between any two steps of a removal: the whole job stays, or the janitor removes the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.services.job_files.orphan_cleanup import ORPHAN_AGE_S, sweep
from tests.crash.conftest import MakeWorld
from tests.crash.driver import IN_REMOVE
from tests.crash.world import World, WorldOptions


@pytest.mark.parametrize("point", IN_REMOVE)
def test_removal_leaves_whole_job_or_rest_for_janitor_after_kill(make_world: MakeWorld, point: str) -> None:
    world = make_world(WorldOptions(backend="local"))
    (job_id,) = world.recover("--submit", "1").acknowledged
    before = tree(world)
    world.die("--remove", "--die-in-remove", point)
    left, listed = tree(world), visible(world)
    if point == "before the mark":
        assert (left, listed) == (before, [job_id])
    else:
        assert listed == []
    assert bool(left) and (len(left) < len(before)) is (point == "among the files")
    if point != "before the mark":
        swept(world)
    world.recover("--remove")
    assert (tree(world), visible(world)) == ([], [])
    assert world.runs() == {job_id: 1}


def tree(world: World) -> list[str]:
    """The files of all jobs, without the names of the jobs' directories."""
    jobs = world.state / "jobs"
    return sorted(str(path.relative_to(jobs / path.relative_to(jobs).parts[0])) for path in jobs.rglob("*"))


def visible(world: World) -> list[str]:
    """The ids of the jobs that a new daemon lists."""
    platform = world.platform()
    try:
        return [str(job.id) for job in platform.storage.store.list_jobs(uid=None)]
    finally:
        platform.close()


def swept(world: World) -> None:
    """Let a new daemon's janitor work a long time later."""
    old = (world.state.stat().st_mtime - 2 * ORPHAN_AGE_S,) * 2
    for path in (world.state / "jobs").iterdir():
        os.utime(Path(path), old)
    platform = world.platform()
    try:
        sweep(platform.storage, platform.settings)
    finally:
        platform.close()
