"""Whether nodes have room for a request, now or when what runs there has reached its time limit. Pure.

As the scheduler counts: amounts, labels and taints of nodes. A Job's pods are alike, so that how many of them a node
holds is known without trying orders. What keeps pods apart beside that (affinities that others have, volumes that are
on some nodes alone) is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from ffdl_kubernetes.room.amounts import NOTHING, Amounts, asked_of
from ffdl_kubernetes.room.cluster_now import PODS, ClusterNow, Holder, Node

Plain = Mapping[str, Any]
SOON_S = 30.0
"""What is overdue, or is ending, still holds what it has: for about so long."""


@dataclass(frozen=True, slots=True)
class Wish:
    """`pods` equal pods, each of which asks for `each`, on nodes with the labels `selector`."""

    pods: int
    each: Amounts
    selector: Mapping[str, str]
    tolerations: tuple[Plain, ...] = ()

    def beside(self, labels: Mapping[str, str], tolerations: Iterable[Plain] = ()) -> Wish:
        """The same, with more labels asked for and more tolerated."""
        return replace(
            self, selector={**self.selector, **labels}, tolerations=(*self.tolerations, *tolerations)
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """When there is room, and on which nodes; `at` None = nobody can say. `ever`: so many pods would have room on the
    nodes that are there if nothing else ran."""

    at: float | None
    nodes: tuple[str, ...] = ()
    ever: int = 0


def wish_of(job: Plain) -> Wish:
    """What a Job of the API asks for."""
    spec = job["spec"]
    pod = spec["template"]["spec"]
    selector = {str(name): str(value) for name, value in (pod.get("nodeSelector") or {}).items()}
    each = {**asked_of(pod), PODS: Decimal(1)}
    return Wish(int(spec.get("completions") or 1), each, selector, tuple(pod.get("tolerations") or ()))


def has_labels(node: Node, wish: Wish) -> bool:
    """Whether the node has the labels that are asked for."""
    return all(node.labels.get(name) == value for name, value in wish.selector.items())


def kept_off(node: Node, wish: Wish) -> str:
    """Why the node takes none of these pods now, whatever it has free ("" = it does)."""
    if node.closed:
        return node.closed
    taint = next((one for one in node.taints if not is_tolerated(one, wish.tolerations)), None)
    return f"kept for others by the taint {taint.get('key')}" if taint is not None else ""


def is_tolerated(taint: Plain, tolerations: Sequence[Plain]) -> bool:
    """Whether one of `tolerations` is for `taint` (kubernetes.io, "Taints and Tolerations")."""
    for one in tolerations:
        if one.get("effect") not in (None, "", taint.get("effect")):
            continue
        if one.get("operator") == "Exists":
            if one.get("key") in (None, "", taint.get("key")):
                return True
        elif one.get("key") == taint.get("key") and (one.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def open_nodes(wish: Wish, cluster: ClusterNow) -> list[Node]:
    """Nodes that would take such pods, if they had room."""
    return [node for node in cluster.nodes if has_labels(node, wish) and not kept_off(node, wish)]


def free_of(node: Node, holders: Iterable[Holder]) -> dict[str, Decimal]:
    """What `holders`, who are on it, leave of the node."""
    free = dict(node.amounts)
    for holder in holders:
        _give(free, holder.amounts, -1)
    return free


def places(free: Amounts, each: Amounts) -> int:
    """How many such pods that holds."""
    asked = [(free.get(name, NOTHING), amount) for name, amount in each.items() if amount > 0]
    return max(0, min((int(left // amount) for left, amount in asked), default=0))


def find_room(wish: Wish, cluster: ClusterNow, now: float, without: str = "") -> Found:
    """When all pods of the request have room at once: now, or when enough of what runs there has reached its time
    limit, if nobody takes it before. `without`: the attempt whose place the request would take."""
    nodes = open_nodes(wish, cluster)
    there = holders_on(nodes, cluster, without)
    free = {node.name: free_of(node, there[node.name]) for node in nodes}
    held = {name: places(left, wish.each) for name, left in free.items()}
    ever = sum(places(node.amounts, wish.each) for node in nodes)
    if sum(held.values()) >= wish.pods:
        return Found(now, _chosen(held, wish.pods), ever)
    ending = ((one.until, one) for here in there.values() for one in here if one.until is not None)
    for until, holder in sorted(ending, key=lambda pair: pair[0]):
        _give(free[holder.node], holder.amounts, 1)
        held[holder.node] = places(free[holder.node], wish.each)
        if sum(held.values()) >= wish.pods:
            return Found(max(now + SOON_S, until), _chosen(held, wish.pods), ever)
    return Found(None, ever=ever)


def holders_on(nodes: Sequence[Node], cluster: ClusterNow, without: str = "") -> dict[str, list[Holder]]:
    """Who holds something of each of `nodes`, by its name."""
    there: dict[str, list[Holder]] = {node.name: [] for node in nodes}
    for holder in cluster.holders:
        if holder.node in there and not (without and holder.token == without):
            there[holder.node].append(holder)
    return there


def _chosen(held: Mapping[str, int], pods: int) -> tuple[str, ...]:
    def fill() -> Iterator[str]:
        left = pods
        for name, count in sorted(held.items(), key=lambda pair: (-pair[1], pair[0])):
            if left <= 0:
                return
            left -= count
            yield name

    return tuple(sorted(fill()))


def _give(free: dict[str, Decimal], amounts: Amounts, sign: int) -> None:
    for name, amount in amounts.items():
        free[name] = free.get(name, NOTHING) + sign * amount
