"""The proof of faults in its short form: one of each kind that is quick, among a few healthy jobs."""

from __future__ import annotations

from tests.cluster.rig import Cluster
from tests.proof.faults.scene import SHORT, Scene


def test_each_fault_is_told_as_it_was_planted_and_healthy_jobs_have_none(cluster: Cluster) -> None:
    with Scene(cluster, SHORT) as scene:
        scene.run()
        found = scene.found()
    print(found.report())
    assert found.troubles() == []
    assert found.holds
