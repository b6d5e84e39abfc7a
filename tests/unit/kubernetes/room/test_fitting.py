"""Room on nodes: counted as one that places pod after pod would find it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.launch.pod_protocol import TIME_LIMIT
from ffdl_kubernetes.pending.cluster_snapshot import ClusterNow, Holder, Node, read_holder, read_node
from ffdl_kubernetes.pending.evidence import are_closed
from ffdl_kubernetes.pending.node_capacity import SOON_S, Found, Wish, find_room, is_tolerated, kept_off, opening_for
from ffdl_kubernetes.pending.start_estimate import There, foretell
from ffdl_kubernetes.pod_resources import asked_of

NOW = 1000.0
GPU = "nvidia.com/gpu"


def amounts(gpus: float = 0, cpu: float = 1, pods: int = 1) -> dict[str, Decimal]:
    return {"cpu": Decimal(str(cpu)), GPU: Decimal(str(gpus)), "pods": Decimal(pods)}


def node(name: str, gpus: int = 4, **more: Any) -> Node:
    return Node(name, more.pop("labels", {}), amounts(gpus, 16, 110), **more)


def holder(where: str, gpus: int, until: float | None = None, token: str = "") -> Holder:
    return Holder(where, amounts(gpus), token=token, until=until)


def wish(pods: int = 1, gpus: int = 2, **selector: str) -> Wish:
    return Wish(pods, amounts(gpus), selector)


@pytest.mark.parametrize(("asked", "holders", "found"), [
    (wish(), (), Found(NOW, ("a",), 4)),
    (wish(pods=3), (holder("a", 1), holder("b", 1)), Found(None, (), 4)),
    (wish(pods=3), (holder("a", 1, 1600), holder("b", 1)), Found(1600, ("a", "b"), 4)),
    (wish(), (holder("a", 3, 1600), holder("b", 3, 1300)), Found(1300, ("b",), 4)),
    (wish(), (holder("a", 3, 900), holder("b", 4)), Found(NOW + SOON_S, ("a",), 4)),  # it is overdue
    (wish(gpus=4), (holder("a", 1), holder("b", 1, token="own")), Found(None, (), 2)),
    (wish(gpus=8), (), Found(None, (), 0)),
    (wish(), (holder("", 9), holder("elsewhere", 9)), Found(NOW, ("a",), 4)),
])  # fmt: skip
def test_capacity_fitting_returns_earliest_time_and_fitting_nodes(
    asked: Wish, holders: tuple[Holder, ...], found: Found
) -> None:
    assert find_room(opening_for(asked, ClusterNow(NOW, (node("a"), node("b")), holders)), NOW) == found


KEPT: dict[str, Any] = {"taints": ({"key": "pool", "value": "x", "effect": "NoSchedule"},)}


@pytest.mark.parametrize(("nodes", "closed"), [
    ((node("a", closed="not ready"), node("b", closed="cordoned")), True),
    ((node("a", closed="not ready"), node("b")), True),  # the other one has no room
    ((node("a", closed="not ready"), node("b", **KEPT)), False),
    ((node("a"),), False),
    ((), False),
])  # fmt: skip
def test_capacity_evidence_reports_closed_only_if_every_excluded_node_is_closed(
    nodes: tuple[Node, ...], closed: bool
) -> None:
    there = ClusterNow(NOW, nodes)
    assert are_closed(opening_for(wish(), there), there) == closed


def test_capacity_fitting_counts_resources_of_replaced_job_as_free() -> None:
    there = ClusterNow(NOW, (node("a"),), (holder("a", 4, token="training-1-1"),))
    assert find_room(opening_for(wish(), there), NOW).at is None
    assert find_room(opening_for(wish(), there, "training-1-1"), NOW) == Found(NOW, ("a",), 2)


def test_capacity_fitting_skips_nodes_with_wrong_labels_taints_or_cordon() -> None:
    nodes = (
        node("other", labels={"gpu": "v100"}), node("closed", labels={"gpu": "a100"}, closed="cordoned"),
        node("kept", labels={"gpu": "a100"}, taints=({"key": "team", "value": "x", "effect": "NoSchedule"},)),
    )  # fmt: skip
    assert find_room(opening_for(wish(gpu="a100"), ClusterNow(NOW, nodes)), NOW) == Found(None, (), 0)
    tolerant = wish(gpu="a100").beside({}, [{"key": "team", "operator": "Exists"}])
    assert find_room(opening_for(tolerant, ClusterNow(NOW, nodes)), NOW).nodes == ("kept",)
    assert kept_off(nodes[1], tolerant) == "cordoned" and "taint team" in kept_off(nodes[2], wish())


@pytest.mark.parametrize(("toleration", "is_one"), [
    ({"operator": "Exists"}, True), ({"key": "a", "operator": "Exists"}, True), ({"key": "a", "value": "1"}, True),
    ({"key": "a"}, False), ({"key": "b", "operator": "Exists"}, False),
    ({"key": "a", "value": "1", "effect": "NoExecute"}, False),
    ({"key": "a", "operator": "Exists", "effect": "NoSchedule"}, True),
])  # fmt: skip
def test_is_tolerated_matches_key_value_operator_and_effect(toleration: Mapping[str, str], is_one: bool) -> None:
    assert is_tolerated({"key": "a", "value": "1", "effect": "NoSchedule"}, [toleration]) is is_one


NODES = st.lists(st.integers(0, 8), min_size=1, max_size=4)
HELD = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.none() | st.integers(900, 2000)), max_size=8)


@given(sizes=NODES, held=HELD, pods=st.integers(1, 4), gpus=st.integers(0, 4))
def test_capacity_fitting_time_matches_placing_pods_one_by_one(
    sizes: list[int], held: list[tuple[int, int, int | None]], pods: int, gpus: int
) -> None:
    nodes = tuple(node(f"n{at}", size) for at, size in enumerate(sizes))
    holders = tuple(holder(f"n{at % len(sizes)}", count, until) for at, count, until in held)

    def has_room(at: float) -> bool:
        present = [one for one in holders if one.until is None or one.until > at or at == NOW]
        free = {one.name: dict(one.amounts) for one in nodes}
        for one in present:
            for name, amount in one.amounts.items():
                free[one.node][name] -= amount
        for _ in range(pods):
            fit = [left for left in free.values() if all(left[n] >= a or a == 0 for n, a in amounts(gpus).items())]
            if not fit:
                return False
            for name, amount in amounts(gpus).items():
                fit[0][name] -= amount
        return True

    ends = (max(NOW + SOON_S, until) for _, _, until in held if until is not None)
    moments = sorted({NOW, *map(float, ends)})
    expected = next((moment for moment in moments if has_room(moment)), None)
    assert find_room(opening_for(wish(pods, gpus), ClusterNow(NOW, nodes, holders)), NOW).at == expected


def test_cluster_reader_parses_nodes_and_pods_of_the_api() -> None:
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
    pod: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "x", "creationTimestamp": "2026-11-24T10:00:00Z"},
        "spec": {"nodeName": "n", "activeDeadlineSeconds": 60, "containers": [{"resources": {"requests": {"cpu": 1}}}]},
        "status": {"phase": "Running", "startTime": "1970-01-01T00:01:00Z"},
    }
    assert read_holder(pod) == Holder(
        "n", {"cpu": Decimal(1), "pods": Decimal(1)}, namespace="x", since=1795514400.0, until=120.0
    )
    going = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "1970-01-01T00:01:30Z"}}
    assert (leaves := read_holder(going)) is not None and leaves.until == 90.0
    assert read_holder({**pod, "status": {"phase": "Succeeded"}}) is None
    ours = {**pod, "metadata": {**pod["metadata"], "annotations": {TIME_LIMIT: "20"}}}
    assert (limited := read_holder(ours)) is not None and limited.until == 80.0


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


def test_foretell_returns_none_without_known_nodes_and_explains_missing_capacity() -> None:
    there = There(ClusterNow(NOW, lacks="may not"))
    assert foretell([], wish(), there, NOW, "") is None
    known = There(ClusterNow(NOW, (node("a"),)))
    assert (found := foretell([], wish(pods=3), known, NOW, "")) is not None
    assert found.at is None and found.said.startswith(
        "even if nothing else ran, the nodes that take such pods now have"
    )
    full = There(ClusterNow(NOW, (node("a"),), (holder("a", 4),)))
    assert (found := foretell([], wish(), full, NOW, "")) is not None and "no time limit" in found.said
