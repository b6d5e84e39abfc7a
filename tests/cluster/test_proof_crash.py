"""The proof of kills in its short form on real Slurm: daemons die under jobs, arrays, drills, halts and cancels."""

from __future__ import annotations

import secrets

import pytest

from tests.cluster.rig import Cluster
from tests.proof.crash import WITH_SLURM, prove_real

KILLS = 10


def test_ten_kills_with_real_slurm_lose_nothing_and_do_nothing_twice(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbelow(10**6)
    verdict = prove_real(cluster, KILLS, seed)
    with capsys.disabled():
        print(f"\n{verdict.line()} (seed {seed})")
    assert verdict.troubles == []
    assert verdict.holds
    assert verdict.deaths.total() >= KILLS
    assert verdict.deaths.keys() >= set(WITH_SLURM), "native arrays were sent, and drills played"
