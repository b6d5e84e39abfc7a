"""Worlds for the crash tests; each is ended with all its processes, also when its test fails."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_slurm.commands import config_argv, sinfo_argv
from tests.conftest import POSTGRES
from tests.crash.world import World, WorldOptions

MakeWorld = Callable[[WorldOptions], World]


SITE_ANSWERS: dict[str, str] = {}


def answer_site_questions(world: World) -> None:
    """Have a shell answer what the site is, which costs a fifth of what an interpreter does; all sites here are the
    same."""
    for argv in (sinfo_argv(), config_argv()):
        words = shlex.join(argv)
        if words not in SITE_ANSWERS:
            SITE_ANSWERS[words] = world.command(*argv)
        told = world.base / f"told-{argv[0]}"
        told.write_text(SITE_ANSWERS[words])
        asked = shlex.quote(" ".join(argv[1:]))
        world.wrap(argv[0], f'[ "$*" = {asked} ] && exec cat {told}\nexec "$FAKE" "$@"')


@pytest.fixture(params=["sqlite", POSTGRES])
def make_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeWorld]:
    """Makes the test's world with options; on each of the two databases."""
    made: list[World] = []
    url = request.getfixturevalue("emptied_database").url if request.param == "postgresql" else ""

    def make(options: WorldOptions) -> World:
        made.append(World(tmp_path, replace(options, database_url=url)))
        if options.backend == "slurm":
            answer_site_questions(made[-1])
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world with the fake Slurm."""
    return make_world(WorldOptions())
