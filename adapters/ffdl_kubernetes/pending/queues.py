"""Read what Kueue reports of a Job that waits and of its queue. Pure.

Source: kueue.sigs.k8s.io, "Workload" (conditions) and "Cluster Queue" (flavors, reservations); the names are the same
in v1beta1 and v1beta2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.pending.explanation import Reason, WaitKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.observing.kueue import condition
from ffdl_kubernetes.quantities import NOTHING, read_amounts

Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Queue:
    """A LocalQueue of the namespace."""

    cluster_queue: Plain | None = None
    """The ClusterQueue behind it; None = it does not exist or may not be read."""
    lacks: tuple[str, ...] = ()
    """Why it could not be read."""
    is_missing: bool = False
    """The namespace has no such LocalQueue."""


def read_queue(queue: str, workload: Plain | None) -> Reason:
    """Return why a queue of Kueue has not admitted a Job."""
    if workload is None:
        return Reason(WaitKind.QUEUE, queue)
    reserved, evicted = condition(workload, "QuotaReserved"), condition(workload, "Evicted")
    said = str(reserved.get("message") or evicted.get("message") or "").strip().rstrip(".")
    if not workload.get("spec", {}).get("active", True) or reserved.get("reason") == "Inadmissible":
        return Reason(WaitKind.QUEUE_CLOSED, queue, said)
    if "maximum capacity" in said:
        return Reason(WaitKind.IMPOSSIBLE, queue, said)
    if condition(workload, "Admitted").get("status") == "True":
        return Reason(WaitKind.STARTING, queue)
    return Reason(WaitKind.QUEUE, queue, said)


def position_in(queue: str, workload: Plain, workloads: Sequence[Plain]) -> int:
    """Return its place among the pending Workloads of the namespace in the queue, from 1: by priority, then by age."""

    def place(one: Plain) -> tuple[int, str]:
        return -int(one.get("spec", {}).get("priority") or 0), str(one["metadata"].get("creationTimestamp", ""))

    return 1 + sum(place(one) < place(workload) for one in _waiting_in(queue, workloads))


def queue_figures(queue: str, workloads: Sequence[Plain]) -> dict[str, str]:
    """Return how many jobs of the namespace wait in the queue; an empty table if `queue` is ""."""
    if not queue:
        return {}
    count = len(_waiting_in(queue, workloads))
    return {f"queue {queue}": f"{counted(count, 'job')} of the namespace {'waits' if count == 1 else 'wait'} in it"}


def _waiting_in(queue: str, workloads: Sequence[Plain]) -> list[Plain]:
    return [
        one
        for one in workloads
        if one.get("spec", {}).get("queueName") == queue
        and one.get("spec", {}).get("active", True)
        and condition(one, "QuotaReserved").get("status") != "True"
        and condition(one, "Finished").get("status") != "True"
    ]


def cluster_queue_figures(queue: Queue) -> dict[str, str]:
    """Return how much of each flavor of the ClusterQueue is in use, and how many jobs wait in it."""
    if queue.cluster_queue is None:
        return {}
    about, found = f"ClusterQueue {queue.cluster_queue['metadata']['name']}", {}
    status = queue.cluster_queue.get("status") or {}
    reserved = {
        (flavor["name"], one["name"]): one.get("total")
        for flavor in status.get("flavorsReservation") or ()
        for one in flavor.get("resources") or ()
    }
    for group in (queue.cluster_queue.get("spec") or {}).get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for one in flavor.get("resources") or ():
                used = reserved.get((flavor["name"], one["name"]), "0")
                shown = f"{_number(used)} of {_number(one.get('nominalQuota'))} in use"
                found[f"{about}, {one['name']} of flavor {flavor['name']}"] = shown
    waiting = status.get("pendingWorkloads")
    if isinstance(waiting, int):
        found[about] = f"{counted(waiting, 'job')} of all namespaces {'waits' if waiting == 1 else 'wait'} in it"
    return found


def _number(text: object) -> str:
    return f"{read_amounts({'': text}).get('', NOTHING).normalize():f}"
