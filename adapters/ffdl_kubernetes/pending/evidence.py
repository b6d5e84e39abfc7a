"""What nodes and pods of a cluster mean for one request, in the values that explain why it waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.pending.explanation import Ahead, NodeAway, Room
from ffdl_kubernetes.pending.cluster_snapshot import ClusterNow, Holder, Node
from ffdl_kubernetes.pending.node_capacity import Opening, Wish, has_labels, kept_off, places
from ffdl_kubernetes.pod_resources import NOTHING, Amounts, amount_text, read_amounts
from ffdl_kubernetes.settings import KubernetesSettings

_MOST_AWAY = 8
CLUSTER = "the cluster"
"""What stands in the place of a partition."""


def gpu_of(wish: Wish, settings: KubernetesSettings) -> str:
    """The resource by which the request asks for GPUs ("" = it asks for none)."""
    known = (settings.gpu_resource, *settings.gpu_resources.values())
    return next((name for name in known if wish.each.get(name, NOTHING) > 0), "")


def room_for(opening: Opening, gpu_type: str, cluster: ClusterNow, settings: KubernetesSettings) -> Room:
    """What the nodes have free for it now. `gpu_type` as the manifest has it ("" = any)."""
    wish = opening.wish
    gpu = gpu_of(wish, settings)
    nodes = [node for node in opening.nodes if not gpu or _gpus(node.amounts, gpu)]
    held = [places(opening.free[node.name], wish.each) for node in nodes]
    suited = (node for node in cluster.nodes if has_labels(node, wish) and (not gpu or _gpus(node.amounts, gpu)))
    away = [NodeAway(node.name, why) for node in suited if (why := kept_off(node, wish))]
    return Room(
        partition="",
        gpu_type=gpu_type if gpu else "",
        gpus=sum(_gpus(node.amounts, gpu) for node in nodes),
        gpus_free=sum(max(0, _gpus(opening.free[node.name], gpu)) for node in nodes),
        nodes=len(nodes),
        fitting=sum(count > 0 for count in held),
        wanted=wish.pods,
        gpus_each=_gpus(wish.each, gpu),
        away=tuple(away[:_MOST_AWAY]),
        away_more=len(away[_MOST_AWAY:]),
        learners_fitting=min(wish.pods, sum(held)),
    )


def are_closed(opening: Opening, cluster: ClusterNow) -> bool:
    """Whether the nodes that take none of its pods are those that take nobody's now. (The scheduler of 1.36 does
    not tell which taints keep a pod off a node, and nodes that are not ready have some.)"""
    off = [node for node in cluster.nodes if has_labels(node, opening.wish) and kept_off(node, opening.wish)]
    return bool(off) and all(node.closed for node in off)


def ahead_of(opening: Opening, cluster: ClusterNow, namespace: str, gpu: str, mine: tuple[Holder, ...] = ()) -> Ahead:
    """Pods of anybody that wait for a node and want what is short for this request, and those that hold it; `gpu` is
    the resource by which it asks for GPUs, and `mine` are the pods of the Job that is asked about (none = it is not
    there yet: all that wait are before it)."""
    short = _short(opening)
    wanting = [one for one in cluster.holders if any(one.amounts.get(name, NOTHING) > 0 for name in short)]
    own = min(((-one.priority, one.since) for one in mine), default=None)
    waiting = [one for one in wanting if not one.node and one.until is None and one not in mine]
    before = [one for one in waiting if own is None or (-one.priority, one.since) < own]
    running = [one for one in wanting if one.node in opening.free and one not in mine]
    return Ahead(
        partition=CLUSTER,
        jobs=len(before),
        own=sum(one.namespace == namespace for one in before),
        gpus=sum(_gpus(one.amounts, gpu) for one in before) if gpu in short else 0,
        waiting=len(waiting),
        running=len(running),
        next_end=min((one.until for one in running if one.until is not None), default=None),
        counts="pod",
    )


def _short(opening: Opening) -> list[str]:
    """Resources of which no open node has enough free for one of its pods; all that it asks for where it is not one by
    itself."""
    asked = opening.wish.resources
    short = [
        name
        for name, amount in asked.items()
        if all(left.get(name, NOTHING) < amount for left in opening.free.values())
    ]
    return short or list(asked)


def shortage_of(opening: Opening) -> dict[str, str]:
    """What each learner asks for and what a node has free at most, where not all of them have room."""
    if not opening.nodes or sum(opening.pods_now().values()) >= opening.wish.pods:
        return {}
    asked = opening.wish.resources
    most = {name: max(*(left.get(name, NOTHING) for left in opening.free.values()), NOTHING) for name in asked}
    return {
        "each learner asks for, with its controller": amounts_text(asked),
        "the most that one open node has free": amounts_text(most),
    }


def too_much(opening: Opening, settings: KubernetesSettings) -> str:
    """How far the nodes that take such pods are from holding it when they are empty ("" = they hold it, or there are
    none); and whether they would if controllers asked for nothing."""
    wish, ever = opening.wish, opening.pods_ever()
    if not opening.nodes or ever >= wish.pods:
        return ""
    asked = wish.resources
    largest = {name: max(node.amounts.get(name, NOTHING) for node in opening.nodes) for name in asked}
    room = f"empty they have room for {ever} of {counted(wish.pods, 'learner')}"
    said = f"{room}; one node has at most {amounts_text(largest)}, and each learner asks for {amounts_text(asked)}"
    own = read_amounts({"cpu": settings.controller_cpus, "memory": str(settings.controller_memory_bytes)})
    alone = {name: amount - own.get(name, NOTHING) for name, amount in wish.each.items()}
    if sum(places(node.amounts, alone) for node in opening.nodes) < wish.pods:
        return said
    return (
        f"{said}, of which {amounts_text(own)} are its controller's: ask for less, or lower controller_cpus or "
        "controller_memory_bytes in [backend.kubernetes]"
    )


def amounts_text(amounts: Amounts) -> str:
    """``1 GPU, 2 CPUs, 512 MiB of memory``."""
    return ", ".join(_one_amount(name, amounts[name]) for name in sorted(amounts, key=_place))


def _one_amount(name: str, amount: Decimal) -> str:
    shown = amount_text(name, amount)
    what = {"cpu": "CPU", "memory": "of memory", "ephemeral-storage": "of disk"}.get(name, name)
    what = "GPU" if name.endswith("/gpu") else what
    return f"{shown} {what}{'s' if what.endswith('PU') and amount != 1 else ''}"


def _place(name: str) -> tuple[bool, bool, str]:
    return not name.endswith("/gpu"), name != "cpu", name


def types_of(cluster: ClusterNow, settings: KubernetesSettings) -> tuple[str, ...]:
    """Types of GPUs that nodes have which take pods, as manifests name them."""
    open_ = [node for node in cluster.nodes if not node.closed]
    by_label = {value: name for name, value in settings.gpu_types.items()}
    found = {
        by_label.get(node.labels[settings.gpu_label], node.labels[settings.gpu_label])
        for node in open_
        if settings.gpu_label in node.labels and _gpus(node.amounts, settings.gpu_resource)
    }
    found |= {
        name
        for name, resource in settings.gpu_resources.items()
        if any(_gpus(node.amounts, resource) for node in open_)
    }
    return tuple(sorted(found))


def gpus_by_type(nodes: Iterable[Node], settings: KubernetesSettings) -> dict[str, str]:
    """How many GPUs there are, where nobody may know how many are free."""
    found: dict[str, int] = {}
    for node in nodes:
        if not node.closed and (count := _gpus(node.amounts, settings.gpu_resource)):
            kind = node.labels.get(settings.gpu_label, "")
            found[kind] = found.get(kind, 0) + count
    return {f"GPUs{f' of type {kind}' if kind else ''} in the cluster": str(found[kind]) for kind in sorted(found)}


def _gpus(amounts: Amounts, resource: str) -> int:
    """`resource` may be "": none are asked for."""
    return int(amounts.get(resource, NOTHING))
