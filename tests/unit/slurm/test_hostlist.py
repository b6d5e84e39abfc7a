"""Node lists of Slurm, and names that a cluster does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.spec import SITE_DEFAULT, BatchOptions, Resources
from ffdl_batch.ports.scheduler import InvalidRequest, NodeShape
from ffdl_slurm.hostlist import expand
from tests.unit.slurm.test_plan import FACTS, options, request


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", {"n1"}),
        ("n1,m2", {"n1", "m2"}),
        ("n[01-03,7]", {"n01", "n02", "n03", "n7"}),
        ("r[1-2]n[08-09],x", {"r1n08", "r1n09", "r2n08", "r2n09", "x"}),
        ("n[9-10]-ib", {"n9-ib", "n10-ib"}),
        ("n[098-101]", {"n098", "n099", "n100", "n101"}),
    ],
)
def test_expand_reads_ranges_and_padding_of_node_list(text: str, names: set[str]) -> None:
    assert expand(text) == frozenset(names)


@pytest.mark.parametrize(
    "text", ["./nodes", "n[1-8/2]", "n[3-1]", "n[a-c]", "n[1", "n1,,n2", "n[]", "n*", "n[0-99999]", "n[1-999]m[1-999]"]
)
def test_expand_returns_none_for_unsupported_or_malformed_node_list(text: str) -> None:
    assert expand(text) is None


def test_plan_rejects_nodelist_with_unknown_node() -> None:
    with pytest.raises(InvalidRequest, match=r"batch.nodelist: there is no node 'n9' here; known: n\[1-2\], m1, c1"):
        options(request(batch=BatchOptions(nodelist="n1,n9")))
    with pytest.raises(InvalidRequest, match=r"no node 'n3' and 2 more"):
        options(request(batch=BatchOptions(nodelist="n[2-5]")))


@pytest.mark.parametrize("nodelist", ["n[1-2]", "n2,c1", "/home/alice/nodes", "n[1-9/2]"])
def test_plan_passes_nodelist_of_known_nodes_or_unreadable_syntax(nodelist: str) -> None:
    assert options(request(batch=BatchOptions(nodelist=nodelist)))["nodelist"] == nodelist


def test_plan_accepts_any_nodelist_if_node_facts_are_unreadable() -> None:
    facts = replace(FACTS, nodes=(*FACTS.nodes, NodeShape("x[1-9/2]", 1, 1, {}, ())))
    assert options(request(batch=BatchOptions(nodelist="n9"), facts=facts))["nodelist"] == "n9"


def test_plan_rejection_names_site_default_memory_if_manifest_sets_none() -> None:
    asked = request(Resources(cpus=1, memory_bytes=80 * 10**9))
    with pytest.raises(InvalidRequest, match=r"memory: 80GB per learner, but no node here has more than 64000MiB$"):
        options(asked)
    silent = replace(asked, spec=replace(asked.spec, sources={"memory": SITE_DEFAULT}))
    with pytest.raises(
        InvalidRequest,
        match=r"80GB per learner \(the site's default_memory: the manifest names none\), but no node here has more "
        r"than 64000MiB \(write memory: in the manifest or give --mem; default_memory is set in the configuration\)",
    ):
        options(silent)
