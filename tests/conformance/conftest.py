"""One cluster of the suite that FFDL_TEST_SUITE names; its versions head and end the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.images import provide_image
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.suites import SUITES, Suite
from tests.conformance.refusing import Answers, refuse
from tests.conformance.scenes import Stage, play

NODE_PYTHON = "/usr/bin/python3"
"""What runs controllers on the nodes: the suite's own Python, which is 3.9 in Debian 11."""
_VERSIONS = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of ``make conformance CONFORMANCE=...``."""
    parser.addoption(
        "--write-captures", action="store_true", help="keep what Slurm printed as tests/captured/slurm-<release>"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the cluster."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(600))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What the outcome is about."""
    versions = config.stash.get(_VERSIONS, "no cluster came up")
    terminalreporter.write_line(f"conformance: {versions}")


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Slurm of that suite on three nodes."""
    with Cluster.session() as running:
        pytestconfig.stash[_VERSIONS] = ", ".join(f"{name} {version}" for name, version in running.versions().items())
        print("\nversions:", pytestconfig.stash[_VERSIONS])
        provide_image(running, "custom")
        yield running


@pytest.fixture(scope="session")
def suite(cluster: Cluster) -> Suite:
    """Its row in the table of suites."""
    return SUITES[cluster.blueprint.suite]


@pytest.fixture(scope="session")
def alice(cluster: Cluster) -> Iterator[Person]:
    """Who trains."""
    person = Person(cluster, "alice")
    person.write("~/.config/ffdl/config.toml", CONFIG.replace("/opt/ffdl/venv/bin/python", NODE_PYTHON))
    yield person
    person.leave()


@pytest.fixture(scope="session")
def stage(cluster: Cluster) -> Iterator[Stage]:
    """Bob's plain jobs."""
    bob = Person(cluster, "bob")
    yield Stage(cluster, bob)
    bob.leave()


@pytest.fixture(scope="session")
def texts(stage: Stage) -> Mapping[str, str]:
    """What the listings print of jobs in every situation."""
    return play(stage)


@pytest.fixture(scope="session")
def answers(stage: Stage, texts: object) -> Answers:
    """What the commands say where they print no listing."""
    return refuse(stage)
