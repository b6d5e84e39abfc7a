"""Whether a queue of Kueue would let a request in at once. Pure.

Source: kueue.sigs.k8s.io, "Cluster Queue" (resource groups, flavors, borrowing, queueing strategy, stopPolicy),
"Resource Flavor" (labels of nodes, taints); the names are the same in v1beta1 and v1beta2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ffdl_batch.domain.number_text import counted
from ffdl_kubernetes.pending.cluster_snapshot import PODS
from ffdl_kubernetes.pending.node_capacity import Wish, is_tolerated
from ffdl_kubernetes.pod_resources import NOTHING, Amounts, read_amounts

Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueueNow:
    """The ClusterQueue behind a LocalQueue and the flavors, as they were. `cluster_queue` None = it may not be read, or
    is not there; `lacks` says why. `is_missing`: the namespace has no such LocalQueue."""

    cluster_queue: Plain | None = None
    flavors: Mapping[str, Plain] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether the request would be let in now, else why not; and the labels and tolerations that its flavors add."""

    obstacle: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Plain, ...] = ()


@dataclass(frozen=True, slots=True)
class _Flavor:
    """A flavor of a queue: the resources of its group, and by resource what the queue has of it by itself."""

    name: str
    covers: tuple[str, ...]
    nominal: Mapping[str, Decimal]


def figures_of(queue: QueueNow) -> dict[str, str]:
    """What of the ClusterQueue is taken."""
    if queue.cluster_queue is None:
        return {}
    about, found = f"ClusterQueue {queue.cluster_queue['metadata']['name']}", {}
    reserved = _reserved(queue.cluster_queue)
    for flavor in _flavors(queue.cluster_queue):
        for resource, most in flavor.nominal.items():
            taken = reserved.get((flavor.name, resource), NOTHING)
            found[f"{about}, {resource} of flavor {flavor.name}"] = (
                f"{taken.normalize():f} of {most.normalize():f} in use"
            )
    waiting = (queue.cluster_queue.get("status") or {}).get("pendingWorkloads")
    if isinstance(waiting, int):
        found[about] = f"{counted(waiting, 'job')} of all namespaces {'waits' if waiting == 1 else 'wait'} in it"
    return found


def admit(wish: Wish, queue: QueueNow, *, waits_itself: bool) -> Admission:
    """Within what the queue has by itself: what it might borrow others may have. `waits_itself`: one of those that wait
    is the job whose place the request would take."""
    there = queue.cluster_queue
    if there is None:
        return Admission("nobody may see what the queue has left")
    spec, status = there.get("spec") or {}, there.get("status") or {}
    if spec.get("stopPolicy") not in (None, "", "None"):
        return Admission("the queue is stopped")
    if spec.get("queueingStrategy") == "StrictFIFO" and int(status.get("pendingWorkloads") or 0) > waits_itself:
        return Admission("others are before it, and the queue keeps to its order")
    flavors, reserved = list(_flavors(there)), _reserved(there)
    need = {name: amount * wish.pods for name, amount in wish.each.items() if amount > 0}
    covered = {name for flavor in flavors for name in flavor.covers}
    if uncovered := sorted(set(need) - covered - {PODS}):
        return Admission(f"the queue gives no {uncovered[0]}")
    labels: dict[str, str] = {}
    tolerations: list[Plain] = []
    for group in dict.fromkeys(flavor.covers for flavor in flavors):
        asked = {name: need[name] for name in group if name in need}
        able = (one for one in flavors if one.covers == group and _holds(one, asked, reserved))
        chosen = next((own for one in able if _suits(own := _spec_of(queue, one.name), wish)), None)
        if asked and chosen is None:
            return Admission(f"the queue has not so much {' and '.join(sorted(asked))} left")
        if asked and chosen is not None:
            labels |= {str(name): str(value) for name, value in (chosen.get("nodeLabels") or {}).items()}
            tolerations += chosen.get("tolerations") or ()
    return Admission("", labels, tuple(tolerations))


def _spec_of(queue: QueueNow, flavor: str) -> Plain:
    return queue.flavors.get(flavor, {}).get("spec") or {}


def _holds(flavor: _Flavor, asked: Amounts, reserved: Mapping[tuple[str, str], Decimal]) -> bool:
    left = {name: most - reserved.get((flavor.name, name), NOTHING) for name, most in flavor.nominal.items()}
    return all(amount <= left[name] for name, amount in asked.items())


def _suits(flavor: Plain, wish: Wish) -> bool:
    """Whether the pods may run on the flavor's nodes."""
    labels, own = flavor.get("nodeLabels") or {}, (*wish.tolerations, *(flavor.get("tolerations") or ()))
    if any(wish.selector.get(name, value) != value for name, value in labels.items()):
        return False
    kept = [one for one in flavor.get("nodeTaints") or () if one.get("effect") in ("NoSchedule", "NoExecute")]
    return all(is_tolerated(one, own) for one in kept)


def _flavors(there: Plain) -> Iterator[_Flavor]:
    for group in (there.get("spec") or {}).get("resourceGroups") or ():
        covers = tuple(str(one) for one in group.get("coveredResources") or ())
        for flavor in group.get("flavors") or ():
            nominal = {str(one["name"]): _total(one, "nominalQuota") for one in flavor.get("resources") or ()}
            if set(nominal) >= set(covers):
                yield _Flavor(str(flavor["name"]), covers, nominal)


def _reserved(there: Plain) -> dict[tuple[str, str], Decimal]:
    """Flavor and resource -> what is taken of it."""
    status = there.get("status") or {}
    return {
        (str(flavor["name"]), str(one["name"])): _total(one, "total")
        for flavor in status.get("flavorsReservation") or ()
        for one in flavor.get("resources") or ()
    }


def _total(resource: Plain, key: str) -> Decimal:
    return read_amounts({key: resource.get(key, "0")}).get(key, NOTHING)
