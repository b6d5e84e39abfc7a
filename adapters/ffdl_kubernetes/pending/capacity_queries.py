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
from ffdl_kubernetes.pending.cluster_snapshot import ClusterNow, read_holder, read_node
from ffdl_kubernetes.pending.queue_capacity import QueueNow
from ffdl_kubernetes.quantities import needed_cpu_limit

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
        self._known: dict[str, tuple[float, Any]] = {}

    def cluster(self) -> ClusterNow:
        """Nodes and pods. Raises SchedulerUnreachable."""
        return self._asked("cluster", LIFE_S, lambda client: _cluster(client, self._clock()))

    def quotas(self) -> tuple[tuple[Plain, ...], tuple[str, ...]]:
        """The quotas of the namespace, and why they could not be read. Raises SchedulerUnreachable."""
        return self._asked("quotas", QUOTA_LIFE_S, _quotas)

    def cpu_limit(self) -> tuple[float | None, tuple[str, ...]]:
        """Return which CPU limit the namespace demands (:func:`needed_cpu_limit`), and why LimitRanges could not be
        read. Raises SchedulerUnreachable."""
        return self._asked("CPU limit", QUOTA_LIFE_S, _cpu_limit)

    def queue(self, name: str, group: str) -> QueueNow:
        """What is behind a LocalQueue of the namespace; `group`: Kueue's, with its version. Raises
        SchedulerUnreachable."""
        return self._asked(f"queue {name}", LIFE_S, lambda client: _queue(client, name, group))

    def _asked(self, what: str, life_s: float, ask: Callable[[ClusterClient], _T]) -> _T:
        """What `ask` answered when it was asked last, at most `life_s` ago."""
        with self._lock:
            at, known = self._known.get(what, (float("-inf"), None))
            if not 0 <= self._clock() - at < life_s:
                client = self._make()
                try:
                    at, known = self._clock(), ask(client)
                finally:
                    client.close()
                self._known[what] = at, known
            answer: _T = known
            return answer


def _cluster(client: ClusterClient, now: float) -> ClusterNow:
    try:
        nodes = tuple(read_node(one) for one in client.items("api/v1/nodes"))
    except Refused as refused:
        return ClusterNow(now, lacks=_lack("nodes", client, refused))
    try:
        found = map(read_holder, client.items("api/v1/pods", {"fieldSelector": _PRESENT}))
        return ClusterNow(now, nodes, tuple(one for one in found if one is not None))
    except Refused as refused:
        return ClusterNow(now, nodes, lacks=_lack("pods of all namespaces", client, refused))


def _quotas(client: ClusterClient) -> tuple[tuple[Plain, ...], tuple[str, ...]]:
    try:
        return tuple(client.list("ResourceQuota", {})[0]), ()
    except Refused as refused:
        return (), (f"quotas could not be read: {refused}",)


def _cpu_limit(client: ClusterClient) -> tuple[float | None, tuple[str, ...]]:
    ranges: list[dict[str, Any]] = []
    lacks: tuple[str, ...] = ()
    try:
        ranges = client.list("LimitRange", {})[0]
    except Refused as refused:
        lacks = (f"LimitRanges cannot be read, so pods may lack CPU limits: {refused}",)
    return needed_cpu_limit(ranges, _quotas(client)[0]), lacks


def _queue(client: ClusterClient, name: str, group: str) -> QueueNow:
    local: Plain | None = None
    try:
        local = client.raw("GET", f"{group}/namespaces/{client.namespace}/localqueues/{name}")
        there = client.raw("GET", f"{group}/clusterqueues/{local['spec']['clusterQueue']}")
        flavors = {str(one["metadata"]["name"]): one for one in client.items(f"{group}/resourceflavors")}
    except Refused as refused:
        lacks = (f"what the queue {name} has left is not known: {refused}{_cure(client, refused)}",)
        return QueueNow(lacks=lacks, is_missing=local is None and refused.status == 404)
    return QueueNow(there, flavors)


def _lack(what: str, client: ClusterClient, refused: Refused) -> str:
    return f"what nodes have free is not known, for {what} may not be listed: {refused}{_cure(client, refused)}"


def _cure(client: ClusterClient, refused: Refused) -> str:
    if refused.status != 403:
        return ""
    return f"; ffdl-admin tenant create {client.namespace} --nodes --update lets the daemon see it"
