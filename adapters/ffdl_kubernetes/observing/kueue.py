"""Queues of Kueue: whether there are any, and what its Workload says of a Job that waits.

A Job with the queue's label is suspended until Kueue admits it, all of its pods at once, and suspended again when Kueue
takes the room back. Each Job has a Workload, which it owns (kueue.sigs.k8s.io, "Workload"; reasons: the API's
`workload_types.go`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ffdl_batch.domain.scheduler_errors import SchedulerError
from ffdl_kubernetes.api_discovery import groups
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.observing.cluster_watch import Watcher

Plain = Mapping[str, Any]
GROUP = "kueue.x-k8s.io"
KIND = "Workload"
_OLDEST = "v1beta1"
NATIVE_GROUP, NATIVE_VERSIONS = "scheduling.k8s.io", ("v1alpha1", "v1alpha2")
"""Of the scheduler's own gangs: Workloads since 1.35, PodGroups since 1.36; alpha, and off unless switched on."""
_EVICTED = {
    "Preempted": "another job took its room",
    "PodsReadyTimeout": "its pods were not all ready in the time that the queue gives",
    "AdmissionCheck": "an admission check took its word back",
    "ClusterQueueStopped": "the queue was stopped",
    "LocalQueueStopped": "the queue was stopped",
    "NodeFailures": "a node failed",
}
_TOO_MUCH = "maximum capacity"
"""In Kueue's message where a queue could never hold so much."""


class Queues:
    """Watches the Workloads of the namespace, from :meth:`start` on. A cluster that refuses it, or has no Kueue, says
    less of what jobs wait for, and nothing else."""

    def __init__(self, make: Callable[[], ClusterClient]) -> None:
        self._make = make
        self._watcher = Watcher(self._prepared, lambda *_: None, {KIND: {}})
        self._version = ""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin, once."""
        self._watcher.start()

    def stop(self) -> None:
        """End the thread."""
        self._watcher.stop()

    def by_owner(self) -> dict[str, Plain]:
        """uid of a Job -> its Workload, where it was seen."""
        seen = self._watcher.things(KIND).values()
        return {owner["uid"]: one for one in seen for owner in one["metadata"].get("ownerReferences") or ()}

    def group(self) -> str:
        """Return the path of Kueue's API in the served version."""
        return f"apis/{GROUP}/{self._version or _OLDEST}"

    def _prepared(self) -> ClusterClient:
        """Return a client for the served version of Workloads."""
        client = self._make()
        with self._lock:
            if not self._version:
                try:
                    self._version = (groups(client).get(GROUP) or ("",))[0]
                except (Refused, SchedulerError):
                    self._version = ""  # the watch fails likewise, and tries again
            client.paths[KIND] = (self.group(), "workloads")
        return client


def why_queued(queue: str, workload: Plain | None) -> str:
    """Return why a suspended Job in `queue` waits, and what helps. Pure."""
    where = f"the queue {queue} (Kueue)"
    if workload is None:
        return f"it waits in {where}"
    name, active = workload["metadata"]["name"], workload.get("spec", {}).get("active", True)
    if not active:
        why = _message(condition(workload, "Evicted"))
        return (
            f"{where} has put it aside{why}: who runs the queue sets spec.active of the Workload {name} to true, or "
            "cancel the job"
        )
    if _is_true(workload, "Admitted"):
        return f"{where} has admitted it: its pods are about to be made"
    reserved, evicted = condition(workload, "QuotaReserved"), condition(workload, "Evicted")
    if reserved.get("status") == "True":
        return f"{where} has room for it, and waits for its admission checks{_checks(workload)}"
    if reserved.get("reason") == "Inadmissible":
        return f"{where} does not take it{_message(reserved)}: ask who runs the queue, or name another one in queue"
    if _TOO_MUCH in reserved.get("message", ""):
        return f"{where} never has so much{_message(reserved)}: ask for less, or for another queue"
    if evicted.get("status") == "True":
        return f"it waits in {where} again, because {why_evicted(workload)}: it starts when there is room"
    more = f"{_message(reserved)}: it starts when others of the queue end" if reserved.get("message") else ""
    return f"it waits in {where}{more}"


def why_evicted(workload: Plain | None) -> str:
    """Return why a running Job was suspended. Pure."""
    evicted = condition(workload, "Evicted") if workload is not None else {}
    if not evicted:
        return "it was suspended"
    return f"{_EVICTED.get(evicted.get('reason', ''), 'its queue took its room back')}{_message(evicted)}"


def describe_gang_start(served: Mapping[str, tuple[str, ...]], queue: str) -> str:
    """Describe how this cluster starts the pods of several learners. `served` maps API groups to versions. Pure."""
    if queue:
        return f"the pods of a job start together, when the queue {queue} (Kueue) admits them"
    there = "Kueue is there: name a LocalQueue in queue" if GROUP in served else "the cluster has no Kueue"
    native = [one for one in served.get(NATIVE_GROUP, ()) if one in NATIVE_VERSIONS]
    if native:
        there += (
            f"; the scheduler's own gangs (alpha, {native[0]}) are served, and whether they hold for Jobs is up to the "
            "cluster's feature gates"
        )
    return f"there is no gang scheduling: pods of several learners start one by one ({there})"


def condition(workload: Plain, kind: str) -> Plain:
    """Return the condition of that type; {} if there is none."""
    for one in workload.get("status", {}).get("conditions") or ():
        if one.get("type") == kind:
            found: Plain = one
            return found
    return {}


def _is_true(workload: Plain, kind: str) -> bool:
    return bool(condition(workload, kind).get("status") == "True")


def _message(condition: Plain) -> str:
    said = str(condition.get("message", "")).strip().rstrip(".")
    return f" ({said})" if said else ""


def _checks(workload: Plain) -> str:
    left = [
        f"{one.get('name')}{_message(one)}"
        for one in workload.get("status", {}).get("admissionChecks") or ()
        if one.get("state") != "Ready"
    ]
    return f": {', '.join(left)}" if left else ""
