"""The scheduler port's own suite, over every gateway that this release has."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest

from tests.cluster.contract_runs import AT_LEAST, GATEWAYS, count_passed, start_contract
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.suites import Suite
from tests.conformance.conftest import NODE_PYTHON


@pytest.fixture(scope="module")
def outcomes(cluster: Cluster, alice: Person) -> Mapping[str, subprocess.CompletedProcess[str]]:
    """By gateway, what its run printed. pyslurm is there where the pinned release of it fits Slurm's."""
    gateways = [name for name in GATEWAYS if name == "slurm-cli" or cluster.versions()["pyslurm"] != "none"]
    running = {name: start_contract(alice, name, NODE_PYTHON) for name in gateways}
    done = {}
    try:
        for name, process in running.items():
            text, _ = process.communicate(timeout=400)
            done[name] = subprocess.CompletedProcess([], process.returncode, text, "")
    finally:
        for process in running.values():
            cluster.kill(process)
    return done


def test_cluster_runs_slurm_release_of_suite(cluster: Cluster, suite: Suite) -> None:
    assert cluster.versions()["slurm"].startswith(f"{suite.slurm}.")


def test_slurm_cli_gateway_passes_scheduler_contract(outcomes: Mapping[str, subprocess.CompletedProcess[str]]) -> None:
    assert count_passed(outcomes["slurm-cli"]) >= AT_LEAST


def test_pyslurm_gateway_passes_scheduler_contract_when_release_matches(
    outcomes: Mapping[str, subprocess.CompletedProcess[str]], suite: Suite
) -> None:
    """PyPI has pyslurm for one release of Slurm at a time; the adapter's default is the command line."""
    assert ("slurm-pyslurm" in outcomes) == (suite.name == "sid")
    for done in outcomes.values():
        assert count_passed(done) >= AT_LEAST
