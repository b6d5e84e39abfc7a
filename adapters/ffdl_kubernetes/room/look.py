"""Asks a cluster what it has free. One answer serves everybody for some seconds; nobody is asked for a job that runs,
or that nobody asks about.

Nodes and the pods of all namespaces are more than a daemon may see by itself: where it may not, that is said, with what
would change it, and what else is known counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.room.cluster_now import ClusterNow, read_holder, read_node
from ffdl_kubernetes.room.queue_room import QueueNow

Plain = Mapping[str, Any]
_T = TypeVar("_T")
LIFE_S = 10.0
QUOTA_LIFE_S = 1.0
"""One request, of a few objects."""
_PRESENT = "status.phase!=Succeeded,status.phase!=Failed"


class Look:
    """Safe in every thread; one of them asks, and the others wait for its answer."""

    def __init__(self, make: Callable[[], ClusterClient], clock: Callable[[], float] = time.time) -> None:
        self._make, self._clock = make, clock
        self._lock = threading.Lock()
        self._cluster: ClusterNow | None = None
        self._queues: dict[str, tuple[float, QueueNow]] = {}
        self._quotas: tuple[float, tuple[Plain, ...], tuple[str, ...]] = (0.0, (), ())

    def cluster(self) -> ClusterNow:
        """Nodes and pods. Raises SchedulerUnreachable."""
        with self._lock:
            known = self._cluster
            if known is None or not 0 <= self._clock() - known.known_at < LIFE_S:
                known = self._cluster = self._asked(_cluster)
            return known

    def quotas(self) -> tuple[tuple[Plain, ...], tuple[str, ...]]:
        """The quotas of the namespace, and why they could not be read. Raises SchedulerUnreachable."""
        with self._lock:
            if not 0 <= self._clock() - self._quotas[0] < QUOTA_LIFE_S:
                found, lacks = self._asked(_quotas)
                self._quotas = self._clock(), found, lacks
            return self._quotas[1:]

    def queue(self, name: str, group: str) -> QueueNow:
        """What is behind a LocalQueue of the namespace; `group`: Kueue's, with its version. Raises
        SchedulerUnreachable."""
        with self._lock:
            at, known = self._queues.get(name, (0.0, QueueNow()))
            if not 0 <= self._clock() - at < LIFE_S:
                known = self._asked(lambda client, _: _queue(client, name, group))
                self._queues[name] = self._clock(), known
            return known

    def _asked(self, ask: Callable[[ClusterClient, float], _T]) -> _T:
        client = self._make()
        try:
            return ask(client, self._clock())
        finally:
            client.close()


def _cluster(client: ClusterClient, now: float) -> ClusterNow:
    lacks: list[str] = []
    try:
        nodes = tuple(read_node(one) for one in client.items("api/v1/nodes"))
    except Refused as refused:
        return ClusterNow(now, knows_nodes=False, knows_pods=False, lacks=(_lack("nodes", client, refused),))
    try:
        found = map(read_holder, client.items("api/v1/pods", {"fieldSelector": _PRESENT}))
        holders = tuple(one for one in found if one is not None)
    except Refused as refused:
        lacks.append(_lack("pods of all namespaces", client, refused))
        return ClusterNow(now, nodes, knows_pods=False, lacks=tuple(lacks))
    return ClusterNow(now, nodes, holders)


def _quotas(client: ClusterClient, _: float) -> tuple[tuple[Plain, ...], tuple[str, ...]]:
    try:
        return tuple(client.list("ResourceQuota", {})[0]), ()
    except Refused as refused:
        return (), (f"quotas could not be read: {refused}",)


def _queue(client: ClusterClient, name: str, group: str) -> QueueNow:
    try:
        local = client.raw("GET", f"{group}/namespaces/{client.namespace}/localqueues/{name}")
        there = client.raw("GET", f"{group}/clusterqueues/{local['spec']['clusterQueue']}")
        flavors = {str(one["metadata"]["name"]): one for one in client.items(f"{group}/resourceflavors")}
    except Refused as refused:
        return QueueNow(lacks=(f"what the queue {name} has left is not known: {refused}{_cure(client, refused)}",))
    return QueueNow(there, flavors)


def _lack(what: str, client: ClusterClient, refused: Refused) -> str:
    return f"what nodes have free is not known, for {what} may not be listed: {refused}{_cure(client, refused)}"


def _cure(client: ClusterClient, refused: Refused) -> str:
    if refused.status != 403:
        return ""
    return f"; ffdl-admin tenant create {client.namespace} --nodes --update lets the daemon see it"
