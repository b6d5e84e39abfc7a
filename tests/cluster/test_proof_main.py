"""The main proof in its short form: both users at once, both gateways."""

from __future__ import annotations

from tests.cluster.rig import Cluster
from tests.proof.main import prove

JOBS = 6


def test_main_proof_completes_each_job_once_for_two_users_and_both_gateways(cluster: Cluster) -> None:
    tally, late = prove(cluster, JOBS, seed=7)
    print(tally.line(late.seconds), f"({late.state} of {late.job_id})")
    assert tally.troubles == ()
    assert (tally.jobs, tally.completed, tally.lost, tally.doubled, tally.wrong) == (JOBS, JOBS, 0, 0, 0)
