"""The proof of resumption in its short form: a warning with the daemon dead, then dead controllers."""

from __future__ import annotations

import pytest

from tests.cluster.rig import Cluster
from tests.proof.continuity import judge
from tests.proof.resume import SHORT, report, run

pytestmark = pytest.mark.full


def test_resume_proof_matches_uninterrupted_run_after_warning_and_controller_kill(cluster: Cluster) -> None:
    remains = run(cluster, SHORT)
    verdict = judge(remains)
    print(report(remains, verdict))
    assert verdict.troubles == []
    warned, killed = verdict.interruptions
    assert (warned.kind, warned.lost, killed.kind) == ("timeout", 0, "node_failure")
    assert warned.took_s is not None and killed.lost > 0
