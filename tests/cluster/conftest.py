"""The real cluster, one for the session, with the project configured for two users as a site would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.images import provide_image
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

CONFIG = """\
images_dirs = ["/shared/images"]
idle_exit_s = 60

[backend]
default = "slurm"

[backend.slurm]
credential_life_s = 15
python = "/opt/ffdl/venv/bin/python"
staging_python = "/opt/ffdl/venv/bin/python"
fence_s = 10
kill_wait_s = 5
gres_devices = {npu = ["/dev/npu[0-9]*"]}
"""


LONG = (
    "test_dying_nodes.py",
    "test_scheduler_faults.py",
    "test_arrays.py",
    "test_interruptions.py",
    "test_distributed.py",
    "test_chain_edges.py",
    "test_examples_resume.py",
    "test_options.py",
    "test_network_level.py",
    "test_why.py",
    "test_proof_faults.py",
)
"""What takes a minute or more: it comes first where runs share out the files, so that they end at about one time."""


LIMIT_S = 1500
"""What takes two minutes on two cores with nothing beside may take ten where all tiers run at once on slower ones."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything here needs the cluster."""
    if config.getoption("shares", None):
        items.sort(key=lambda item: turn(item.path.name))
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(LIMIT_S))


def turn(name: str) -> int:
    """The place of a test file when the files are shared out."""
    return LONG.index(name) if name in LONG else len(LONG)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Slurm on three nodes with fake GPUs, Apptainer, two login nodes; up before the first test, down after them."""
    with Cluster.session() as running:
        print("\nversions:", ", ".join(f"{name} {version}" for name, version in running.versions().items()))
        provide_image(running, "custom")
        yield running


def _person(cluster: Cluster, name: str) -> Iterator[Person]:
    person = Person(cluster, name)
    person.write("~/.config/ffdl/config.toml", CONFIG)
    yield person
    person.leave()


@pytest.fixture(scope="session")
def alice(cluster: Cluster) -> Iterator[Person]:
    """A user of the cluster."""
    yield from _person(cluster, "alice")


@pytest.fixture(scope="session")
def bob(cluster: Cluster) -> Iterator[Person]:
    """Another one."""
    yield from _person(cluster, "bob")
