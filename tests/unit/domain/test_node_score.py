"""Scores of nodes: halved every fourteen days, an attempt once, capped."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.fault_policy import NodeRules
from ffdl_batch.domain.incident import Incident
from ffdl_batch.domain.node_score import DAY_S, NodeScore, left_out, lemons, score_nodes

NOW = 1_800_000_000.0
RULES = NodeRules(exclude_lemons=True)


def fault(
    job: str, *nodes: str, kind: str = "node.failed", days: float = 0, attempt: int = 1, word: str = "end-0"
) -> Incident:
    return Incident(job, attempt, word, kind, NOW - days * DAY_S, nodes=nodes)


def test_node_score_halves_fault_weight_every_fourteen_days() -> None:
    (n1,) = score_nodes([fault("a", "n1"), fault("b", "n1", days=14), fault("c", "n1", days=28)], NOW)
    assert n1.score == pytest.approx(1.75)
    assert (n1.kinds, n1.last, n1.jobs) == ({"node.failed": 3}, NOW, 3)


def test_node_score_counts_attempt_once_by_heaviest_incident() -> None:
    incidents = [fault("a", "n1"), fault("a", "n1", kind="node.gpu", word="end-1"), fault("a", "n1", attempt=2)]
    (n1,) = score_nodes(incidents, NOW)
    assert (n1.score, n1.jobs, n1.kinds) == (3.0, 1, {"node.failed": 2, "node.gpu": 1})


def test_node_score_counts_only_node_faults_for_each_named_node() -> None:
    incidents = [fault("a", "n1", kind="user.exit"), fault("b", "n3", "n2"), fault("c", kind="node.gpu")]
    assert [(one.node, one.score) for one in score_nodes(incidents, NOW)] == [("n2", 1.0), ("n3", 1.0)]


def test_node_score_caps_weight_of_fault_with_future_timestamp() -> None:
    (n1,) = score_nodes([fault("a", "n1", days=-1)], NOW)
    assert n1.score == 1.0


def score(node: str, value: float, hours_ago: float = 1.0) -> NodeScore:
    return NodeScore(node, value, {}, NOW - hours_ago * 3600)


def test_unreliable_nodes_need_score_at_threshold_and_recent_fault() -> None:
    scores = [score("a", 9), score("b", 4), score("c", 3.9), score("d", 50, hours_ago=25)]
    assert [one.node for one in lemons(scores, RULES, NOW)] == ["a", "b"]
    assert lemons(scores, NodeRules(), NOW) == []  # nobody wants it


@pytest.mark.parametrize(("nodes", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (20, 1), (21, 2), (100, 5)])
def test_node_exclusion_respects_share_limit_and_keeps_last_node(nodes: int, most: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    found = [score("elsewhere", 99), *(score(name, 10) for name in names)]
    assert [one.node for one in left_out(found, names, RULES)] == names[:most]


def test_node_exclusion_excludes_no_node_at_zero_percent() -> None:
    assert left_out([score("n1", 9)], ["n1", "n2"], NodeRules(exclude_lemons=True, percent=0)) == []
