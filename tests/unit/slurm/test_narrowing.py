"""Nodes that a request rules out are not counted on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.spec import BatchOptions, Placement, Resources
from ffdl_batch.ports.scheduler import InvalidRequest, NodeShape, PartitionShape
from ffdl_slurm.narrowing import Group, may_have, narrow
from ffdl_slurm.plan import make_plan
from ffdl_slurm.settings import SlurmSettings
from tests.unit.slurm.test_plan import FACTS, options, request

GIB = 1024**3
SMALL = NodeShape("n[1-4]", 4, 16 * GIB, partitions=("main",), features=("ib", "old"))
LARGE = NodeShape("m[1-2]", 16, 64 * GIB, {"a100": 4}, ("main", "gpu"), ("ib", "new"))
HERE = replace(FACTS, nodes=(SMALL, LARGE), partitions=(PartitionShape("main", is_default=True), PartitionShape("gpu")))
EIGHT = Resources(learners=8, cpus=1, memory_bytes=GIB)


def count_nodes(placement: Placement, resources: Resources = EIGHT, **batch: str) -> int:
    made = request(resources, BatchOptions(placement=placement, **batch), facts=HERE)  # type: ignore[arg-type]
    return int(options(made)["nodes"] or 0)


@pytest.mark.parametrize(
    ("batch", "packed", "spread"),
    [
        ({}, 1, 6),
        ({"exclude": "m1"}, 1, 5),
        ({"exclude": "m[1-2]"}, 2, 4),
        ({"exclude": "m[1-2],n1"}, 2, 3),
        ({"exclude": "n[1-4]"}, 1, 2),
        ({"exclude": "elsewhere"}, 1, 6),
        ({"exclude": "/home/alice/nodes"}, 1, 6),
        ({"nodelist": "m2"}, 1, 1),
        ({"nodelist": "n[1-2]"}, 2, 2),
        ({"nodelist": "n2"}, 2, 6),
        ({"nodelist": "m1,n[1-2]"}, 3, 3),
        ({"nodelist": "n[1-2]", "exclude": "m[1-2]"}, 2, 2),
        ({"nodelist": "n1", "exclude": "m[1-2]"}, 2, 4),
        ({"constraint": "old"}, 2, 4),
        ({"constraint": "new"}, 1, 2),
        ({"constraint": "ib&new"}, 1, 2),
        ({"constraint": "old|new"}, 1, 6),
        ({"constraint": "[old|new]"}, 1, 6),
        ({"constraint": "old", "exclude": "n4"}, 2, 3),
    ],
)
def test_plan_places_learners_only_on_nodes_left_by_node_options(
    batch: dict[str, str], packed: int, spread: int
) -> None:
    assert (count_nodes(Placement.PACK, EIGHT, **batch), count_nodes(Placement.SPREAD, EIGHT, **batch)) == (
        packed,
        spread,
    )


def test_plan_adds_nodes_beside_nodelist_for_one_learner_per_node() -> None:
    assert count_nodes(Placement.NODE, replace(EIGHT, learners=6), nodelist="m1") == 6


@pytest.mark.parametrize(
    ("resources", "batch", "field", "words"),
    [
        (EIGHT, {"exclude": "n[1-4],m[1-2]"}, "batch.exclude", "batch.exclude leaves no node here"),
        (EIGHT, {"constraint": "nvme"}, "batch.constraint", "batch.constraint leaves no node here; known features: ib"),
        (
            EIGHT, {"constraint": "new", "exclude": "m[1-2]"},
            "batch.constraint", "batch.exclude and batch.constraint leave no node here",
        ),
        (
            replace(EIGHT, cpus=9), {"exclude": "m[1-2]"},
            "cpus", "9 CPUs per learner, but no node here that batch.exclude leaves has more than 4",
        ),
        (replace(EIGHT, cpus=9), {"nodelist": "m1,n1"}, "learners", "main has 0 nodes that hold one"),
        (replace(EIGHT, cpus=9), {"nodelist": "n1"}, "cpus", "that batch.nodelist leaves has more than 4"),
        (replace(EIGHT, cpus=3), {"constraint": "old"}, "learners", "main has 4 nodes that hold one"),
    ],
)  # fmt: skip
def test_plan_rejects_request_that_nodes_left_by_node_options_cannot_hold(
    resources: Resources, batch: dict[str, str], field: str, words: str
) -> None:
    made = request(resources, BatchOptions(placement=Placement.PACK, **batch), facts=HERE)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=words) as error:
        make_plan(made, SlurmSettings())
    assert [finding.path for finding in error.value.findings] == [field]


def test_narrow_excludes_no_node_with_unreadable_name_and_features() -> None:
    strange = replace(SMALL, name="n[1-9/2]", features=())
    assert narrow(BatchOptions(exclude="n1", nodelist="n1", constraint="new"), [strange]) == [Group(strange, 1)]


@pytest.mark.parametrize(
    ("constraint", "features", "may"),
    [
        ("", "a", True),
        ("a", "", True),
        ("a", "a b", True),
        ("a", "b", False),
        ("a", "ab", False),
        ("a&b", "a", False),
        ("a|b", "b", True),
        ("a|b", "c", False),
        # from left to right, or & first: what is right by either is not ruled out
        ("a&b|c", "c", True),
        ("a|b&c", "a", True),
        ("a|b&c", "a c", True),
        ("a|b&c", "b", False),
        ("a|b&c|d", "d", True),
        # not judged
        ("(a|b)&c", "d", True),
        ("[a|b]", "d", True),
        ("a*2", "d", True),
        ("a,b", "d", True),
        ("!a", "a", True),
        ("a&", "d", True),
    ],
)
def test_may_have_rejects_only_features_that_cannot_meet_constraint(constraint: str, features: str, may: bool) -> None:
    assert may_have(constraint, features.split()) is may
