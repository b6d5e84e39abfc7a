"""What nodes and pods of a cluster mean for one request, in the values that explain why it waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from ffdl_batch.domain.waiting import Ahead, NodeAway, Room
from ffdl_kubernetes.room.amounts import NOTHING
from ffdl_kubernetes.room.cluster_now import ClusterNow, Holder, Node
from ffdl_kubernetes.room.fitting import (
    Wish,
    free_of,
    has_labels,
    holders_on,
    kept_off,
    open_nodes,
    places,
)
from ffdl_kubernetes.settings import KubernetesSettings

_MOST_AWAY = 8
CLUSTER = "the cluster"
"""What stands in the place of a partition."""


def gpu_of(wish: Wish, settings: KubernetesSettings) -> str:
    """The resource by which the request asks for GPUs ("" = it asks for none)."""
    known = (settings.gpu_resource, *settings.gpu_resources.values())
    return next((name for name in known if wish.each.get(name, NOTHING) > 0), "")


def room_for(wish: Wish, gpu_type: str, cluster: ClusterNow, settings: KubernetesSettings, without: str = "") -> Room:
    """What the nodes have free for it now. `gpu_type` as the manifest has it ("" = any); `without` as in
    :func:`ffdl_kubernetes.room.fitting.find_room`."""
    gpu = gpu_of(wish, settings)
    suited = [node for node in cluster.nodes if has_labels(node, wish) and _count(node.amounts.get(gpu), gpu)]
    nodes = [node for node in suited if not kept_off(node, wish)]
    there = holders_on(nodes, cluster, without)
    free = {node.name: free_of(node, there[node.name]) for node in nodes}
    held = [places(left, wish.each) for left in free.values()]
    away = [NodeAway(node.name, why) for node in suited if (why := kept_off(node, wish))]
    return Room(
        partition="",
        gpu_type=gpu_type if gpu else "",
        gpus=sum(_count(node.amounts.get(gpu), gpu) for node in nodes) if gpu else 0,
        gpus_free=sum(max(0, _count(left.get(gpu), gpu)) for left in free.values()) if gpu else 0,
        nodes=len(nodes),
        fitting=sum(count > 0 for count in held),
        wanted=wish.pods,
        gpus_each=_count(wish.each.get(gpu), gpu) if gpu else 0,
        away=tuple(away[:_MOST_AWAY]),
        away_more=len(away[_MOST_AWAY:]),
        learners_fitting=min(wish.pods, sum(held)),
    )


def ahead_of(
    wish: Wish, cluster: ClusterNow, settings: KubernetesSettings, namespace: str, mine: tuple[Holder, ...] = ()
) -> Ahead:
    """Pods of anybody that wait for a node and may get what it waits for before it; `mine` are the pods of the Job that
    is asked about (none = it is not there yet: all that wait are before it)."""
    gpu = gpu_of(wish, settings)
    wanting = [one for one in cluster.holders if not gpu or one.amounts.get(gpu, NOTHING) > 0]
    own = min(((-one.priority, one.since) for one in mine), default=None)
    waiting = [one for one in wanting if not one.node and one not in mine]
    before = [one for one in waiting if own is None or (-one.priority, one.since) < own]
    open_names = {node.name for node in open_nodes(wish, cluster)}
    running = [one for one in wanting if one.node in open_names]
    return Ahead(
        partition=CLUSTER,
        jobs=len(before),
        own=sum(one.namespace == namespace for one in before),
        gpus=int(sum((one.amounts.get(gpu, NOTHING) for one in before), NOTHING)) if gpu else 0,
        waiting=len(waiting),
        running=len(running),
        next_end=min((one.until for one in running if one.until is not None), default=None),
        counts="pod",
    )


def types_of(cluster: ClusterNow, settings: KubernetesSettings) -> tuple[str, ...]:
    """Types of GPUs that nodes have which take pods, as manifests name them."""
    open_ = [node for node in cluster.nodes if not node.closed]
    by_label = {value: name for name, value in settings.gpu_types.items()}
    found = {
        by_label.get(node.labels[settings.gpu_label], node.labels[settings.gpu_label])
        for node in open_
        if settings.gpu_label in node.labels and _has(node, settings.gpu_resource)
    }
    found |= {name for name, resource in settings.gpu_resources.items() if any(_has(node, resource) for node in open_)}
    return tuple(sorted(found))


def gpus_by_type(nodes: Iterable[Node], settings: KubernetesSettings) -> dict[str, str]:
    """How many GPUs there are, where nobody may know how many are free."""
    found: dict[str, int] = {}
    for node in nodes:
        if not node.closed and (count := _count(node.amounts.get(settings.gpu_resource), settings.gpu_resource)):
            kind = node.labels.get(settings.gpu_label, "")
            found[kind] = found.get(kind, 0) + count
    return {f"GPUs{f' of type {kind}' if kind else ''} in the cluster": str(found[kind]) for kind in sorted(found)}


def _has(node: Node, resource: str) -> bool:
    return node.amounts.get(resource, NOTHING) > 0


def _count(amount: Decimal | None, resource: str) -> int:
    """GPUs of a node; 1 where none are asked for, so that each node counts."""
    return int(amount or 0) if resource else 1
