"""Read nodes, quotas and queues of a cluster. Each answer serves all callers for some seconds, and nothing is read for
jobs that no user asks about.

A daemon may not be permitted to list nodes. The explanation then names the permission that is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.pending.node_fit import Node, read_node
from ffdl_kubernetes.pending.queues import Queue
from ffdl_kubernetes.quantities import needed_cpu_limit, needed_storage

Plain = Mapping[str, Any]
_T = TypeVar("_T")
LIFE_S = 10.0
QUOTA_LIFE_S = 1.0
"""One request, of a few objects."""


@dataclass(frozen=True, slots=True)
class Demands:
    """Amounts that a namespace demands of containers, as in BackendFacts."""

    cpu_limit: float | None
    """See :func:`needed_cpu_limit`."""
    storage_bytes: float | None
    """See :func:`needed_storage`; None also if LimitRanges, which may give amounts, cannot be read."""


class ClusterReader:
    """Safe in every thread; one of them asks, and the others wait for its answer."""

    def __init__(self, make: Callable[[], ClusterClient], clock: Callable[[], float] = time.time) -> None:
        self._make, self._clock = make, clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Any]] = {}

    def nodes(self) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """Return the nodes, and why they could not be read. Raises SchedulerUnreachable."""
        return self._asked("nodes", LIFE_S, _nodes)

    def quotas(self) -> tuple[tuple[Plain, ...], tuple[str, ...]]:
        """Return the quotas of the namespace, and why they could not be read. Raises SchedulerUnreachable."""
        return self._asked("quotas", QUOTA_LIFE_S, _quotas)

    def demands(self) -> tuple[Demands, tuple[str, ...]]:
        """Return the amounts that the namespace demands, and why LimitRanges could not be read. Raises
        SchedulerUnreachable."""
        return self._asked("demands", QUOTA_LIFE_S, _demands)

    def queue(self, name: str, group: str) -> Queue:
        """Return a LocalQueue of the namespace. `group` is Kueue's, with its version. Raises SchedulerUnreachable."""
        return self._asked(f"queue {name}", LIFE_S, lambda client: _queue(client, name, group))

    def _asked(self, what: str, life_s: float, ask: Callable[[ClusterClient], _T]) -> _T:
        """Return the last answer of `ask`, at most `life_s` old."""
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


def _nodes(client: ClusterClient) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    try:
        return tuple(read_node(one) for one in client.items("api/v1/nodes")), ()
    except Refused as refused:
        text = f"the capacity of nodes is not known, for nodes may not be listed: {refused}{_cure(client, refused)}"
        return (), (text,)


def _quotas(client: ClusterClient) -> tuple[tuple[Plain, ...], tuple[str, ...]]:
    try:
        return tuple(client.list("ResourceQuota", {})[0]), ()
    except Refused as refused:
        return (), (f"quotas could not be read: {refused}",)


def _demands(client: ClusterClient) -> tuple[Demands, tuple[str, ...]]:
    ranges: list[dict[str, Any]] = []
    lacks: tuple[str, ...] = ()
    try:
        ranges = client.list("LimitRange", {})[0]
    except Refused as refused:
        lacks = (f"LimitRanges cannot be read, so pods may lack CPU limits: {refused}",)
    quotas = _quotas(client)[0]
    return Demands(needed_cpu_limit(ranges, quotas), None if lacks else needed_storage(ranges, quotas)), lacks


def _queue(client: ClusterClient, name: str, group: str) -> Queue:
    local: Plain | None = None
    try:
        local = client.raw("GET", f"{group}/namespaces/{client.namespace}/localqueues/{name}")
        return Queue(client.raw("GET", f"{group}/clusterqueues/{local['spec']['clusterQueue']}"))
    except Refused as refused:
        lacks = (f"the use of the queue {name} is not known: {refused}{_cure(client, refused)}",)
        return Queue(lacks=lacks, is_missing=local is None and refused.status == 404)


def _cure(client: ClusterClient, refused: Refused) -> str:
    if refused.status != 403:
        return ""
    return f"; ffdl-admin tenant create {client.namespace} --nodes --update lets the daemon see it"
