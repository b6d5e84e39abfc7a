"""The proof of faults in its short form: one of each kind that is quick, among a few healthy jobs."""

from __future__ import annotations

import pytest

from tests.cluster.rig import Cluster
from tests.proof.faults.scene import SHORT, Scene

pytestmark = pytest.mark.full


def test_fault_proof_reports_each_planted_fault_and_none_for_healthy_jobs(cluster: Cluster) -> None:
    with Scene(cluster, SHORT) as scene:
        scene.run()
        found = scene.found()
    print(found.report())
    assert found.troubles() == []
    assert found.holds
