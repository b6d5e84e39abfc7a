"""What ends pods from outside: evictions, preemptions, nodes that are lost. Pure.

Sources: kubernetes.io, "Disruptions", "Node-pressure Eviction", "Taints and Tolerations" (taint-based evictions); for
the wording of evictions kubelet's `eviction/helpers.go`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_kubernetes.objects.names import LEARNER

Plain = Mapping[str, Any]
_PREEMPTED = frozenset({"PreemptionByScheduler", "EvictionByEvictionAPI", "Preempting", "Preempted"})
"""Reasons of DisruptionTarget, and of pods, if other pods need the resources. Other reasons mean that the node is lost
or ended the pod: DeletionByTaintManager, DeletionByPodGC, TerminationByKubelet."""
_OF_NODES = re.compile(
    r"Evicted|NodeLost|NodeShutdown|Shutdown|Terminated|UnexpectedAdmissionError|NodeAffinity|OutOf.+|"
    r"TopologyAffinityError|Admission.*"
)
"""Reasons of pods that their nodes ended, or did not take although the scheduler had chosen them."""
_TOO_LARGE = re.compile(
    r"ephemeral(-| local | )storage (usage exceeds|limit)|exceeds the limit|EmptyDir volume .* exceeds"
)
"""In the message of an eviction: the pod wrote more than its limit."""
_NODE_FULL = "low on resource: ephemeral-storage"
_USED = re.compile(rf"Container {LEARNER} was using (\S+), (?:request is|which exceeds its request of) ([^,. ]+)")
_LEAVES = {
    "PreemptionByScheduler": "a pod of higher priority takes its place",
    "EvictionByEvictionAPI": "it is being evicted, for example because its node is drained",
    "DeletionByTaintManager": "its node does not answer, or has a taint that the pod does not tolerate",
    "TerminationByKubelet": "its node shuts down, or is short of a resource",
}
"""Reasons of DisruptionTarget -> why a pod is about to end."""


def disruption_of(pod: Plain) -> tuple[EndCause, str] | None:
    """Return why something other than its containers ended a pod, with a text for the user; None if nothing did."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    own, message = str(status.get("reason", "")), " ".join(str(status.get("message", "")).split())
    if own == "Evicted" and (why := _own_storage(pod, message)):
        return EndCause.OUT_OF_STORAGE, f"{name}: {why}"
    target = _target(pod)
    if target is not None:
        cause = EndCause.PREEMPTED if target.get("reason") in _PREEMPTED else EndCause.NODE_FAIL
        more = f"; {own}: {message}" if own and message and message not in str(target.get("message", "")) else ""
        return cause, f"{name}: {target.get('reason', '')}: {target.get('message', '')}{more}"
    if own in _PREEMPTED or _OF_NODES.fullmatch(own):
        return EndCause.PREEMPTED if own in _PREEMPTED else EndCause.NODE_FAIL, f"{name}: {own}: {message}"
    return None


def _own_storage(pod: Plain, message: str) -> str:
    """Return how the learner's use of its node's disk led to an eviction ("" = it did not).

    A node that is short of disk space evicts first the pods that use more than they ask for. So a pod that asks for
    nothing is one of them; a pod that stayed below its request is not to blame. What kubelet's message says of a
    container is its root file system and its log (`evictionMessage`), not its volumes, which is where learners write.
    """
    if _TOO_LARGE.search(message):
        return f"the learner wrote more than its limit of storage: {message}; ask for more (storage), or write less"
    if _NODE_FULL not in message:
        return ""
    used = _USED.search(message)
    if used is not None and used[2] != "0":
        what = f"the learner used {used[1]} and asked for {used[2]} of storage"
    elif used is not None or not _asks_for_storage(pod):
        what = "the pod asked for no storage"
    else:
        return ""
    return (
        f"{what}, so its node, which was short of disk space, evicted it first: {message} Its figures leave out /tmp "
        "and other volumes; ask for what the job writes (storage), or write less"
    )


def _asks_for_storage(pod: Plain) -> bool:
    """Return whether the learner requests storage, also if the pod is known without its containers."""
    learners = [one for one in pod.get("spec", {}).get("containers") or () if one.get("name") == LEARNER]
    return not learners or "ephemeral-storage" in (learners[0].get("resources", {}).get("requests") or {})


def why_leaving(pods: Sequence[Plain]) -> str:
    """Return which pod is about to end although its containers run, why and when it is killed ("" = none).

    That time covers the grace for a checkpoint and for storing (``terminationGracePeriodSeconds``).
    """
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        target, by = _target(pod), pod["metadata"].get("deletionTimestamp")
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or not (target or by):
            continue
        reason = str((target or {}).get("reason", ""))
        why = _LEAVES.get(reason, reason) if target else "it is being deleted"
        said = str((target or {}).get("message", ""))
        until = f"; kubelet kills it at {by} if it still runs then" if by else ""
        return f"{pod['metadata']['name']} is about to end: {why}{f' ({said})' if said else ''}{until}"
    return ""


def why_lost(pods: Sequence[Plain], lost: frozenset[str]) -> str:
    """Return which pods are on nodes that do not answer any more."""
    named = sorted(
        f"{pod['metadata']['name']} on {pod.get('spec', {}).get('nodeName', 'no node')}"
        for pod in pods
        if pod["metadata"]["name"] in lost
    )
    return f"a pod cannot end, because its node does not answer: {', '.join(named)}"


def _target(pod: Plain) -> Plain | None:
    conditions = pod.get("status", {}).get("conditions") or ()
    found: Sequence[Plain] = [
        one for one in conditions if (one.get("type"), one.get("status")) == ("DisruptionTarget", "True")
    ]
    return found[0] if found else None
