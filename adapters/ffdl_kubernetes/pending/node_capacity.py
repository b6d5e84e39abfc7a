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

from ffdl_kubernetes.pending.cluster_snapshot import PODS, ClusterNow, Holder, Node
from ffdl_kubernetes.pod_resources import NOTHING, Amounts, added, asked_of

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
        return replace(self, selector={**self.selector, **labels}, tolerations=(*self.tolerations, *tolerations))

    @property
    def resources(self) -> dict[str, Decimal]:
        """What each asks for of what people ask for: not its own place among the pods of a node."""
        return {name: amount for name, amount in self.each.items() if amount > 0 and name != PODS}


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


@dataclass(frozen=True, slots=True)
class Opening:
    """The nodes that would take a request's pods if they had room, and by node who holds something of it and what that
    leaves free."""

    wish: Wish
    nodes: tuple[Node, ...]
    holders: Mapping[str, tuple[Holder, ...]]
    free: Mapping[str, Amounts]

    def pods_now(self) -> dict[str, int]:
        """For how many of the pods each node has room, by its name."""
        return {name: places(left, self.wish.each) for name, left in self.free.items()}

    def pods_ever(self) -> int:
        """For how many of them all nodes have room together when they are empty."""
        return sum(places(node.amounts, self.wish.each) for node in self.nodes)


def opening_for(wish: Wish, cluster: ClusterNow, without: str = "") -> Opening:
    """Where the request's pods may go. `without`: the attempt whose place they would take."""
    nodes = tuple(node for node in cluster.nodes if has_labels(node, wish) and not kept_off(node, wish))
    there: dict[str, list[Holder]] = {node.name: [] for node in nodes}
    for holder in cluster.holders:
        if holder.node in there and not (without and holder.token == without):
            there[holder.node].append(holder)
    free = {node.name: _less(node.amounts, (holder.amounts for holder in there[node.name])) for node in nodes}
    return Opening(wish, nodes, {name: tuple(here) for name, here in there.items()}, free)


def places(free: Amounts, each: Amounts) -> int:
    """How many such pods that holds."""
    asked = [(free.get(name, NOTHING), amount) for name, amount in each.items() if amount > 0]
    return max(0, min((int(left // amount) for left, amount in asked), default=0))


def find_room(opening: Opening, now: float) -> Found:
    """When all pods of the request have room at once: now, or when enough of what runs there has reached its time
    limit, if nobody takes it before."""
    each, pods, ever = opening.wish.each, opening.wish.pods, opening.pods_ever()
    held = opening.pods_now()
    if sum(held.values()) >= pods:
        return Found(now, _chosen(held, pods), ever)
    free = dict(opening.free)
    ending = ((one.until, one) for here in opening.holders.values() for one in here if one.until is not None)
    for until, holder in sorted(ending, key=lambda pair: pair[0]):
        free[holder.node] = added((free[holder.node], holder.amounts))
        held[holder.node] = places(free[holder.node], each)
        if sum(held.values()) >= pods:
            return Found(max(now + SOON_S, until), _chosen(held, pods), ever)
    return Found(None, ever=ever)


def _chosen(held: Mapping[str, int], pods: int) -> tuple[str, ...]:
    def fill() -> Iterator[str]:
        left = pods
        for name, count in sorted(held.items(), key=lambda pair: (-pair[1], pair[0])):
            if left <= 0:
                return
            left -= count
            yield name

    return tuple(sorted(fill()))


def _less(amounts: Amounts, taken: Iterable[Amounts]) -> dict[str, Decimal]:
    gone = added(taken)
    return {name: amounts.get(name, NOTHING) - gone.get(name, NOTHING) for name in {**amounts, **gone}}
