"""Worlds for the crash tests; each is ended with all its processes, also when its test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import POSTGRES
from tests.crash.world import World, WorldOptions

MakeWorld = Callable[[WorldOptions], World]


@pytest.fixture(params=["sqlite", POSTGRES])
def make_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeWorld]:
    """Makes the test's world with options; on each of the two databases."""
    made: list[World] = []
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""

    def make(options: WorldOptions) -> World:
        made.append(World(tmp_path, replace(options, database_url=url)))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world with the fake Slurm."""
    return make_world(WorldOptions())
