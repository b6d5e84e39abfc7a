"""Node lists of Slurm, the nodes of a partition by their names, and nodes that a request excludes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape, PartitionShape
from ffdl_batch.domain.job.spec import SITE_DEFAULT, BatchOptions, Placement, Resources
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_slurm.hostlist import expand
from ffdl_slurm.planning.eligible_nodes import Group, may_have, names_in, narrow
from ffdl_slurm.planning.launch_plan import make_plan
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
        ({"constraint": "old", "exclude": "n4"}, 2, 3),
    ],
)
def test_plan_places_learners_on_nodes_left_by_node_options(batch: dict[str, str], packed: int, spread: int) -> None:
    assert count_nodes(Placement.PACK, EIGHT, **batch) == packed
    assert count_nodes(Placement.SPREAD, EIGHT, **batch) == spread


def test_plan_adds_nodes_beside_nodelist_for_one_learner_per_node() -> None:
    assert count_nodes(Placement.NODE, replace(EIGHT, learners=6), nodelist="m1") == 6


@pytest.mark.parametrize(
    ("resources", "batch", "field", "words"),
    [
        (EIGHT, {"exclude": "n[1-4],m[1-2]"}, "batch.exclude", "batch.exclude leaves no node here"),
        (EIGHT, {"constraint": "nvme"}, "batch.constraint", "batch.constraint leaves no node here; known features: ib"),
        (EIGHT, {"constraint": "new", "exclude": "m[1-2]"}, "batch.constraint",
         "batch.exclude and batch.constraint leave no node here"),
        (replace(EIGHT, cpus=9), {"exclude": "m[1-2]"}, "cpus",
         "9 CPUs per learner, but no node here that batch.exclude leaves has more than 4"),
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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", {"n1"}),
        ("n1,m2", {"n1", "m2"}),
        ("n[01-03,7]", {"n01", "n02", "n03", "n7"}),
        ("r[1-2]n[08-09],x", {"r1n08", "r1n09", "r2n08", "r2n09", "x"}),
        ("n[9-10]-ib", {"n9-ib", "n10-ib"}),
        ("n[098-101]", {"n098", "n099", "n100", "n101"}),
        *((text, None) for text in ("./nodes", "n[1-8/2]", "n[3-1]", "n[a-c]", "n[1", "n1,,n2", "n[]", "n*")),
        *((text, None) for text in ("n[0-99999]", "n[1-999]m[1-999]")),
    ],
)
def test_expand_reads_ranges_and_padding_or_returns_none_if_unsupported(text: str, names: set[str] | None) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("nodelist", "words"),
    [("n1,n9", r"there is no node 'n9' here; known: n\[1-2\], m1, c1"), ("n[2-5]", r"no node 'n3' and 2 more")],
)
def test_plan_rejects_nodelist_with_unknown_node(nodelist: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"batch.nodelist: .*{words}"):
        options(request(batch=BatchOptions(nodelist=nodelist)))


@pytest.mark.parametrize(
    ("nodelist", "facts"),
    [
        *((nodelist, FACTS) for nodelist in ("n[1-2]", "n2,c1", "/home/alice/nodes", "n[1-9/2]")),
        ("n9", replace(FACTS, nodes=(*FACTS.nodes, NodeShape("x[1-9/2]", 1, 1, {}, ())))),
    ],
)
def test_plan_passes_nodelist_of_known_nodes_or_unreadable_syntax(nodelist: str, facts: BackendFacts) -> None:
    assert options(request(batch=BatchOptions(nodelist=nodelist), facts=facts))["nodelist"] == nodelist


def test_plan_rejection_names_site_default_memory_if_manifest_sets_none() -> None:
    asked = request(Resources(cpus=1, memory_bytes=80 * 10**9))
    with pytest.raises(InvalidRequest, match=r"memory: 80GB per learner, but no node here has more than 64000MiB$"):
        options(asked)
    words = (
        r"80GB per learner \(the site's default_memory: the manifest names none\), but no node here has more "
        r"than 64000MiB \(write memory: in the manifest or give --mem; default_memory is set in the configuration\)"
    )
    with pytest.raises(InvalidRequest, match=words):
        options(replace(asked, spec=replace(asked.spec, sources={"memory": SITE_DEFAULT})))


def test_names_in_returns_nodes_of_partition_or_default_or_nothing_if_partition_or_nodes_are_unknown() -> None:
    assert names_in(HERE, "gpu") == {"m1", "m2"}
    assert names_in(HERE, "") == names_in(HERE, "main") == {"n1", "n2", "n3", "n4", "m1", "m2"}
    odd = replace(HERE, nodes=(*HERE.nodes, NodeShape("n[1-", 1, 1, partitions=("main",))))
    assert names_in(HERE, "elsewhere") == names_in(odd, "main") == names_in(BackendFacts(), "") == frozenset()
