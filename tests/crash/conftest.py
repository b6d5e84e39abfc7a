"""Worlds for the crash tests; each is ended with all its processes, also when its test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import POSTGRES
from tests.crash.world import World, WorldOptions

MakeWorld = Callable[[WorldOptions], World]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each step on one of the two databases, in turn; on both with ``--both-databases``, and for whoever names it."""
    if config.getoption("--both-databases") or any("::" in argument for argument in config.args):
        return
    steps: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "make_world" in item.callspec.params:
            others = {name: value for name, value in item.callspec.params.items() if name != "make_world"}
            steps.setdefault((item.path, item.originalname, str(others)), []).append(item)
    left_out = {both[number % len(both)] for number, both in enumerate(steps.values()) if len(both) > 1}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


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
