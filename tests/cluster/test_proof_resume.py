"""The proof of resumption in its short form: a warning with the daemon dead, then dead controllers."""

from __future__ import annotations

from tests.cluster.rig import Cluster
from tests.proof.continuity import judge
from tests.proof.resume import SHORT, report, run


def test_a_training_over_three_allocations_ends_with_the_weights_of_an_uninterrupted_one(cluster: Cluster) -> None:
    remains = run(cluster, SHORT)
    verdict = judge(remains)
    print(report(remains, verdict))
    assert verdict.troubles == []
    warned, killed = verdict.interruptions
    assert (warned.kind, warned.lost, killed.kind) == ("timeout", 0, "node_failure")
    assert warned.took_s is not None and killed.lost > 0
