"""The proof of kills in its short form on real Slurm: daemons die under jobs, arrays, drills, halts and cancels."""

from __future__ import annotations

import secrets

import pytest

from tests.cluster.rig import Cluster
from tests.proof.crash import WITH_SLURM, prove_real

pytestmark = pytest.mark.full

KILLS = 10


def test_crash_proof_loses_and_doubles_no_job_after_ten_daemon_kills(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbelow(10**6)
    verdict = prove_real(cluster, KILLS, seed)
    with capsys.disabled():
        print(f"\n{verdict.line()} (seed {seed})")
    assert verdict.troubles == []
    assert verdict.holds
    assert verdict.deaths.total() >= KILLS
    assert verdict.deaths.keys() >= set(WITH_SLURM), "native arrays were sent, and drills made"
