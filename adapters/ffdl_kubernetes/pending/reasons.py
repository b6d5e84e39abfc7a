"""Read why pods wait from their conditions and events. Pure.

Sources of the wordings: kube-scheduler's FailedScheduling and the condition PodScheduled, ResourceQuota's admission,
kubelet's waiting containers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ffdl_batch.domain.pending.explanation import Reason, WaitKind
from ffdl_kubernetes.observing.cures import reasons_alone, what_to_do
from ffdl_kubernetes.observing.job_states import why_pending
from ffdl_kubernetes.observing.kueue import condition
from ffdl_kubernetes.pending.quotas import read_quota
from ffdl_kubernetes.quantities import QUOTA

Plain = Mapping[str, Any]
_AVAILABLE = re.compile(r"(\d+)/(\d+) nodes are available: ?(.*?)\.?$", re.DOTALL)
_PART = re.compile(r"(\d+) (.+)")
_OF_PARTS: tuple[tuple[str, WaitKind], ...] = (
    (r"Insufficient |Too many pods", WaitKind.NO_CAPACITY),
    (r"untolerated taint \{node\.kubernetes\.io/", WaitKind.NODES_CLOSED),
    (r"untolerated taint", WaitKind.KEPT_FOR_OTHERS),
    (r"node affinity|node selector|didn't match", WaitKind.WRONG_LABELS),
    (r"unschedulable|not ready|unreachable", WaitKind.NODES_CLOSED),
    (r"[Pp]ersistent[Vv]olume|volume", WaitKind.VOLUME),
)
_DEFAULT = "default-scheduler"


def read_scheduling(message: str) -> tuple[WaitKind, dict[str, str]]:
    """Return why the scheduler finds no node for a pod, and how many nodes of how many it counts for each reason.

    If some nodes lack room, the pod waits for these. Otherwise the reason of most nodes counts.
    """
    match = _AVAILABLE.search(reasons_alone(" ".join(message.split())))
    if match is None:
        return next((kind for sign, kind in _OF_PARTS if re.search(sign, message)), WaitKind.NO_CAPACITY), {}
    counts: dict[str, int] = {}
    for text in re.split(r", (?=\d+ )", match[3]):
        if (part := _PART.fullmatch(text.strip())) is not None:
            counts[part[2].strip().rstrip(".")] = int(part[1])
    figures = {_of_nodes(what): f"{count} of {match[2]}" for what, count in counts.items()}
    kinds: dict[WaitKind, int] = {}
    for what, count in counts.items():
        kind = next((kind for sign, kind in _OF_PARTS if re.search(sign, what)), WaitKind.NO_CAPACITY)
        kinds[kind] = kinds.get(kind, 0) + count
    if not kinds:  # the reason is about the pod, not about nodes
        return next((kind for sign, kind in _OF_PARTS if re.search(sign, match[3])), WaitKind.NO_CAPACITY), figures
    if WaitKind.NO_CAPACITY in kinds:
        return WaitKind.NO_CAPACITY, figures
    return max(kinds, key=lambda kind: kinds[kind]), figures


def _of_nodes(what: str) -> str:
    plain = what.removeprefix("node(s) ")
    return f"nodes that {plain}" if plain != what else f"nodes with {what}"


def read_pods(
    pods: Sequence[Plain], refusal: str, pod_warnings: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> tuple[Reason, dict[str, str]]:
    """Return why pods do not run, or are refused, and the figures of the reason.

    `troubles` has, by name of a pod, reason and message of a node's event about its volumes and network.
    """
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            word, said = str(scheduled.get("reason", "")), str(scheduled.get("message", ""))
            if word == "SchedulingGated":
                return Reason(WaitKind.QUEUE, word, said), {}
            kind, figures = read_scheduling(said)
            return Reason(kind, word, "" if figures else f"{said}{what_to_do(said)}"), figures
    if why := why_pending(pods):
        return Reason(WaitKind.IMAGE if why.startswith("the image") else WaitKind.BROKEN, "", why), {}
    if why := why_pending(pods, pod_warnings=pod_warnings):
        return Reason(WaitKind.VOLUME if why.startswith("a volume") else WaitKind.BROKEN, "", why), {}
    if refusal:
        if (limit := read_quota(refusal)) is not None:
            more = QUOTA.sub("", refusal).rpartition("(")[2].rstrip(")") if refusal.endswith(")") else ""
            return Reason(WaitKind.LIMIT, detail=more, limit=limit), {}
        return Reason(WaitKind.REFUSED, "", f"{refusal}{what_to_do(refusal)}"), {}
    open_pods = [pod.get("spec", {}) for pod in pods if not pod.get("spec", {}).get("nodeName")]
    if pods and not open_pods:
        return Reason(WaitKind.STARTING), {}
    named = next((str(spec["schedulerName"]) for spec in open_pods if spec.get("schedulerName")), _DEFAULT)
    cure = "where none of that name runs, correct scheduler in [backend.kubernetes]"
    return Reason(WaitKind.UNCONSIDERED, "", f"it waits for scheduler {named}; {cure}" if named != _DEFAULT else ""), {}
