"""Which jobs are offered a network of their own, and the mark by which they ask for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape, PartitionShape
from ffdl_batch.domain.job.array import ArrayId, expand
from ffdl_batch.domain.job.spec import BatchOptions, Egress, NetworkLevel, Placement, Resources
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.sbatch_script import parse_options
from ffdl_slurm.settings import read_settings
from tests.unit.slurm.test_plan import FACTS, JOB, request

ABLE = ("ffdl-network", "ffdl-egress", "avx")
ALL = replace(FACTS, nodes=tuple(replace(node, features=ABLE) for node in FACTS.nodes))
SOME = replace(ALL, nodes=(*ALL.nodes[:2], replace(ALL.nodes[2], features=("avx",))))
"""c1, which is in main and cpu, cannot."""
TWO = Resources(learners=2, cpus=1, memory_bytes=10**9)
ONE = Resources(cpus=1, memory_bytes=10**9)
EGRESS = (Egress("data.example.org", 443), Egress("192.0.2.7", 80))


def plan(facts: BackendFacts, resources: Resources = TWO, settings: Any = None, **batch: Any) -> LaunchPlan:
    return make_plan(request(resources, BatchOptions(**batch), facts=facts), read_settings(settings or {}))


def refused(*args: Any, **more: Any) -> tuple[str, str | None]:
    """What `plan` reports of a request that it rejects: the message, and the path of its first finding."""
    with pytest.raises(InvalidRequest) as error:
        plan(*args, **more)
    return str(error.value), error.value.findings[0].path


def comment(made: LaunchPlan) -> str | None:
    return {option.name: option.value for option in parse_options(made.script)}.get("comment")


def test_plan_uses_job_network_for_several_learners_if_all_nodes_support_it() -> None:
    made = plan(ALL, comment="my run")
    assert (made.network.requested, made.network.level, made.network.mechanism) == ("auto", "job", "overlay")
    assert made.network.directory == "/run/ffdl" and made.launch.host.allocation == "SLURM_JOB_ID"
    assert comment(made) == "ffdl-batch:job/1 my run"
    assert "--netns-path" in made.launch.learner.argv


def test_job_network_mark_contains_learner_count_of_fullest_node() -> None:
    made = plan(ALL, replace(TWO, learners=5, cpus=4), placement=Placement.PACK, partition="main")
    fullest = max(len(made.launch.learners_on(rank)) for rank in range(made.launch.nodes))
    assert fullest > 1 and comment(made) == f"ffdl-batch:job/{fullest} digits"


@pytest.mark.parametrize(
    ("facts", "batch", "level"),
    [
        (SOME, {}, "host"),
        (SOME, {"partition": "main"}, "host"),
        (SOME, {"exclude": "c1"}, "job"),
        (SOME, {"nodelist": "n1,n2"}, "job"),
        (SOME, {"nodelist": "n1"}, "host"),
        (SOME, {"nodelist": "n1,c1"}, "host"),
        (SOME, {"constraint": "ffdl-network"}, "job"),
        (SOME, {"constraint": "avx&ffdl-network"}, "job"),
        (SOME, {"constraint": "avx|ffdl-network"}, "host"),
        (SOME, {"constraint": "[ffdl-network]"}, "host"),
        (FACTS, {"constraint": "ffdl-network"}, "host"),
        (replace(FACTS, nodes=()), {}, "host"),
        (ALL, {"network": NetworkLevel.HOST}, "host"),
    ],
)
def test_plan_auto_network_is_job_only_if_every_eligible_node_has_feature(
    facts: BackendFacts, batch: dict[str, Any], level: str
) -> None:
    made = plan(facts, **batch)
    assert made.network.level == level
    assert (comment(made) == "digits") is (level == "host")
    said = "batch.network: auto is host for this job: network level job cannot be proved: c1 has not the feature"
    assert any(one.startswith(said) for one in made.warnings) is (facts is SOME and level == "host")


def test_plan_uses_no_network_for_one_learner_unless_requested() -> None:
    made = plan(ALL, ONE, comment="my run")
    assert (made.network.level, made.network.directory, comment(made)) == ("none", "", "my run")
    assert plan(ALL, ONE, network=NetworkLevel.JOB).network.level == "job"


def test_plan_omits_network_warning_for_one_learner_host_level_or_unsupported_site() -> None:
    assert plan(SOME, ONE).warnings == plan(FACTS).warnings == plan(SOME, settings={"network_feature": ""}).warnings
    assert plan(SOME, network=NetworkLevel.HOST).warnings == plan(FACTS).warnings == ()


def with_features(*each: tuple[str, ...]) -> BackendFacts:
    """A site of nodes x1, x2, ... with these features."""
    nodes = (replace(ALL.nodes[0], name=f"x{n}", features=features) for n, features in enumerate(each, 1))
    return replace(ALL, nodes=tuple(nodes))


BOTH = "ffdl-network&ffdl-egress"
EGRESS_OPTIONS = {"network": NetworkLevel.EGRESS, "egress": EGRESS}


@pytest.mark.parametrize(
    ("facts", "constraint", "options", "said"),
    [
        (FACTS, "ffdl-network", {"network": NetworkLevel.JOB}, "none of n[1-2], c1 has the feature 'ffdl-network'"),
        (with_features(("ffdl-network",), ()), BOTH, EGRESS_OPTIONS,
         "none of x1, x2 has the feature 'ffdl-egress'"),
        (with_features(("ffdl-network",), (), ("ffdl-egress",)), BOTH, EGRESS_OPTIONS,
         "none of x1, x2, x3 has all of ffdl-network, ffdl-egress"),
    ],
)  # fmt: skip
def test_plan_rejects_constraint_without_eligible_node_and_names_missing_feature(
    facts: BackendFacts, constraint: str, options: dict[str, Any], said: str
) -> None:
    message, path = refused(facts, ONE, constraint=constraint, **options)
    assert f"the constraint {constraint} leaves no node, for {said}" in message
    assert path == "batch.constraint" and "--constraint=" not in message


def test_plan_checks_network_feature_only_in_partitions_of_job() -> None:
    facts = replace(SOME, partitions=(*SOME.partitions, PartitionShape("new")),
                    nodes=(*SOME.nodes, NodeShape("x[1-4]", 8, 4000 * 1024**2, {}, ("new",), ABLE)))  # fmt: skip
    assert plan(facts, partition="new").network.level == "job"
    assert plan(facts, partition="new,cpu").network.level == "host"


@pytest.mark.parametrize(
    ("facts", "settings", "said"),
    [
        (SOME, {}, "c1 has not the feature 'ffdl-network'"),
        (FACTS, {}, "n[1-2], c1 has not the feature 'ffdl-network'"),
        (ALL, {"network_feature": "other"}, "n[1-2], c1 has not the feature 'other'"),
        (ALL, {"network_feature": ""}, "not offered here: network_feature of [backend.slurm] is empty"),
        (replace(FACTS, nodes=()), {}, "every node of the partition has not the feature"),
    ],
)
def test_plan_rejects_job_network_without_feature(facts: BackendFacts, settings: dict[str, object], said: str) -> None:
    message, path = refused(facts, settings=settings, network=NetworkLevel.JOB)
    assert (said in message, path) == (True, "batch.network")


def test_plan_egress_network_requires_egress_feature() -> None:
    network_only = replace(ALL, nodes=tuple(replace(node, features=ABLE[:1]) for node in ALL.nodes))
    with pytest.raises(InvalidRequest, match="n\\[1-2\\], c1 has not the feature 'ffdl-egress'"):
        plan(network_only, network=NetworkLevel.EGRESS, egress=EGRESS)
    made = plan(ALL, network=NetworkLevel.EGRESS, egress=(*EGRESS, EGRESS[0]), comment="c")
    assert comment(made) == "ffdl-batch:egress/1/data.example.org:443,192.0.2.7:80 c"
    assert (made.network.level, made.network.mechanism) == ("egress", "overlay+nat")
    assert plan(ALL, ONE, network=NetworkLevel.EGRESS, egress=EGRESS).launch.names == f"learner-{JOB}"


@pytest.mark.parametrize(
    ("most", "batch", "why"),
    [
        (62, {"placement": Placement.PACK}, "63 learners on a node, and a network of the job's own has at most 62"),
        (250, {}, "251 nodes, and a network of the job's own has at most 250"),
    ],
)
def test_plan_limits_job_network_to_62_learners_a_node_and_250_nodes(
    most: int, batch: dict[str, Any], why: str
) -> None:
    facts = replace(ALL, nodes=(NodeShape("x[001-300]", 128, 2**40, {}, ("main",), ABLE),))
    more = replace(ONE, learners=most + 1)
    assert why in refused(facts, more, network=NetworkLevel.JOB, **batch)[0]
    made = plan(facts, more, **batch)
    assert made.network.level == "host"
    assert any(why in warning for warning in made.warnings)
    assert plan(facts, replace(ONE, learners=most), **batch).network.level == "job"
    assert plan(facts, ONE).warnings == ()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"network_dir": "run/ffdl"}, "an absolute path"),
        ({"job_mark": ""}, "job_mark"),
        ({"job_mark": "a b"}, "job_mark"),
    ],
)
def test_plan_uses_configured_network_dir_and_job_mark_unless_invalid(settings: dict[str, object], said: str) -> None:
    made = plan(ALL, settings={"network_dir": "/var/run/ffdl", "job_mark": "site:"})
    assert (made.network.directory, comment(made)) == ("/var/run/ffdl", "site:job/1 digits")
    with pytest.raises(InvalidRequest, match=said):
        read_settings(settings)


def test_plan_rejects_job_below_minimum_network_level() -> None:
    wanted = request(TWO, facts=SOME, minimum_network=NetworkLevel.JOB)
    with pytest.raises(InvalidRequest, match=r"asks for network level job or tighter.*c1 has not the feature"):
        make_plan(wanted, read_settings({}))
    assert make_plan(replace(wanted, facts=ALL), read_settings({})).network.level == "job"


def test_array_script_contains_job_network_mark() -> None:
    array = ArrayId("array-0a1b2c3d4")
    element = expand(replace(request(TWO).spec, batch=BatchOptions(array="0-1", comment="c")), array)[0]
    root = Root("/shared/alice")
    made = make_plan(request(spec=element, facts=ALL, array_dir=root.array(array)), read_settings({}))
    for script in (made.script, made.array_script):
        options = {option.name: option.value for option in parse_options(script)}
        assert options["comment"] == "ffdl-batch:job/1 c"
    assert made.launch.host.native_id != made.launch.host.allocation == "SLURM_JOB_ID"
