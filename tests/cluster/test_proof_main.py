"""The main proof in its short form: both users at once."""

from __future__ import annotations

import pytest

from tests.cluster.rig import Cluster
from tests.proof.main import GATEWAYS, prove

JOBS = 6


@pytest.mark.parametrize(
    "gateways",
    [
        pytest.param({"alice": "cli", "bob": "cli"}, id="command line"),
        pytest.param(GATEWAYS, id="both gateways", marks=pytest.mark.full),
    ],
)
def test_main_proof_completes_each_job_once_for_two_users(cluster: Cluster, gateways: dict[str, str]) -> None:
    tally, late = prove(cluster, JOBS, 7, gateways)
    print(tally.line(late.seconds), f"({late.state} of {late.job_id})")
    assert tally.troubles == ()
    assert (tally.jobs, tally.completed, tally.lost, tally.doubled, tally.wrong) == (JOBS, JOBS, 0, 0, 0)
