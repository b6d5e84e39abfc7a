"""Worlds for the crash tests; each is ended with all its processes, also when its test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.world import World, WorldOptions

MakeWorld = Callable[[WorldOptions], World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    """Makes the test's world with options."""
    made: list[World] = []

    def make(options: WorldOptions) -> World:
        made.append(World(tmp_path, options))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world with the fake Slurm."""
    return make_world(WorldOptions())
