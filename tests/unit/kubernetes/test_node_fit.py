"""Which nodes could ever hold a request."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_kubernetes.pending.node_fit import (
    Node,
    PodRequest,
    are_closed,
    capacity_of,
    fit_on,
    gpus_by_type,
    is_tolerated,
    kept_off,
    read_node,
    read_request,
)
from ffdl_kubernetes.quantities import asked_of
from ffdl_kubernetes.settings import KubernetesSettings

GPU = "nvidia.com/gpu"
TAINT = {"key": "team", "value": "x", "effect": "NoSchedule"}


def amounts(gpus: float = 0, cpu: float = 1, pods: int = 1) -> dict[str, Decimal]:
    return {"cpu": Decimal(str(cpu)), GPU: Decimal(str(gpus)), "pods": Decimal(pods)}


def node(name: str, gpus: int = 4, **more: Any) -> Node:
    return Node(name, more.pop("labels", {}), amounts(gpus, 16, 110), **more)


def request(pods: int = 1, gpus: int = 2, **selector: str) -> PodRequest:
    return PodRequest(pods, amounts(gpus), selector)


@pytest.mark.parametrize(("nodes", "closed"), [
    ((node("a", closed="not ready"), node("b", closed="cordoned")), True),
    ((node("a", closed="not ready"), node("b")), True),  # the other one has no room
    ((node("a", closed="not ready"), node("b", taints=(TAINT,))), False),
    ((node("a"),), False),
    ((), False),
])  # fmt: skip
def test_node_fit_reports_closed_only_if_every_excluded_node_is_closed(nodes: tuple[Node, ...], closed: bool) -> None:
    assert are_closed(fit_on(nodes, request())) == closed


def test_node_fit_skips_nodes_with_wrong_labels_taints_or_cordon() -> None:
    labels = {"gpu": "a100"}
    nodes = (
        node("other", labels={"gpu": "v100"}), node("closed", labels=labels, closed="cordoned"),
        node("kept", labels=labels, taints=(TAINT,)),
    )  # fmt: skip
    fit = fit_on(nodes, request(gpu="a100"))
    assert (fit.open, fit.pods, [one.name for one in fit.suited]) == ((), 0, ["closed", "kept"])
    room = capacity_of(fit, "a100", KubernetesSettings())
    assert [(one.name, one.state) for one in room.away] == [
        ("closed", "cordoned"), ("kept", "kept for others by the taint team")
    ]  # fmt: skip
    tolerant = PodRequest(1, amounts(2), labels, ({"key": "team", "operator": "Exists"},))
    assert [one.name for one in fit_on(nodes, tolerant).open] == ["kept"]
    assert kept_off(nodes[1], tolerant) == "cordoned"


def test_node_fit_counts_whole_capacity_of_open_nodes() -> None:
    fit = fit_on((node("a"), node("b", 2), node("c", 0)), request(pods=9, gpus=2))
    room = capacity_of(fit, "", KubernetesSettings())
    assert (room.gpus, room.gpus_free, room.nodes, room.fitting) == (6, None, 2, 2)
    assert (room.wanted, room.gpus_each, room.learners_fitting) == (9, 2, 3)


@pytest.mark.parametrize(("toleration", "is_one"), [
    ({"operator": "Exists"}, True), ({"key": "a", "operator": "Exists"}, True), ({"key": "a", "value": "1"}, True),
    ({"key": "a"}, False), ({"key": "b", "operator": "Exists"}, False),
    ({"key": "a", "value": "1", "effect": "NoExecute"}, False),
    ({"key": "a", "operator": "Exists", "effect": "NoSchedule"}, True),
])  # fmt: skip
def test_is_tolerated_matches_key_value_operator_and_effect(toleration: Mapping[str, str], is_one: bool) -> None:
    assert is_tolerated({"key": "a", "value": "1", "effect": "NoSchedule"}, [toleration]) is is_one


@given(sizes=st.lists(st.integers(0, 8), min_size=1, max_size=4), pods=st.integers(1, 4), gpus=st.integers(0, 4))
def test_node_fit_matches_placing_pods_one_by_one(sizes: list[int], pods: int, gpus: int) -> None:
    nodes = tuple(node(f"n{at}", size) for at, size in enumerate(sizes))
    free, placed = {one.name: dict(one.amounts) for one in nodes}, 0
    while placed < pods:
        able = [left for left in free.values() if all(left[name] >= want for name, want in amounts(gpus).items())]
        if not able:
            break
        for name, want in amounts(gpus).items():
            able[0][name] -= want
        placed += 1
    assert min(pods, fit_on(nodes, request(pods, gpus)).pods) == placed


def test_read_node_parses_labels_taints_capacity_and_readiness() -> None:
    ready = {"type": "Ready", "status": "True"}
    thing: dict[str, Any] = {
        "metadata": {"name": "n", "labels": {"gpu": "a100"}},
        "spec": {"taints": [{"key": "soft", "effect": "PreferNoSchedule"}, {"key": "hard", "effect": "NoExecute"}]},
        "status": {"allocatable": {"cpu": "7900m", "memory": "32Gi", GPU: 4}, "conditions": [ready]},
    }
    found = read_node(thing)
    assert (found.closed, [one["key"] for one in found.taints]) == ("", ["hard"])
    assert found.amounts == {"cpu": Decimal("7.9"), "memory": Decimal(32 * 1024**3), GPU: Decimal(4)}
    assert read_node({**thing, "spec": {"unschedulable": True}}).closed == "cordoned"
    assert read_node({**thing, "status": {"conditions": []}}).closed == "not ready"


def test_read_request_takes_tolerations_that_the_cluster_added_to_pods() -> None:
    pod = {"containers": [container("2")], "nodeSelector": {"gpu": "a100"}, "tolerations": [{"key": "own"}]}
    job = {"spec": {"completions": 3, "template": {"spec": pod}}}
    made = [{"spec": {"tolerations": [{"key": "own"}, {"key": "added"}]}}]
    found = read_request(job, made)
    assert (found.pods, found.selector, found.resources) == (3, {"gpu": "a100"}, {"cpu": Decimal(2)})
    assert {one["key"] for one in found.tolerations} == {"own", "added"}
    assert read_request(job).tolerations == ({"key": "own"},)


def test_gpus_by_type_skips_closed_nodes() -> None:
    label = KubernetesSettings().gpu_label
    nodes = (node("a", labels={label: "A100"}), node("b", 2, labels={label: "A100"}), node("c", closed="cordoned"))
    assert gpus_by_type((*nodes, node("d", 1)), KubernetesSettings()) == {
        "GPUs in the cluster": "1", "GPUs of type A100 in the cluster": "6"
    }  # fmt: skip


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(("spec", "cpu"), [
    ({"containers": [container("1"), container("500m")]}, "1.5"),
    ({"containers": [container("1")], "initContainers": [container("3")]}, "3"),
    ({"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]}, "3"),
    ({"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always"), container("4")]}, "6"),
    ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, "2"),
    ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, "1.25"),
    ({"containers": [container("1")], "resources": {"requests": {"cpu": "8"}}}, "8"),
    ({"containers": [{}]}, None),
])  # fmt: skip
def test_pod_request_sums_containers_init_containers_and_overhead(spec: dict[str, Any], cpu: str | None) -> None:
    assert asked_of(spec).get("cpu") == (None if cpu is None else Decimal(cpu))
