"""What a cluster says of a Job that waits, as values of the core. Pure.

Sources of the wordings: kube-scheduler's FailedScheduling and the condition PodScheduled, ResourceQuota's admission,
kubelet's waiting containers, Kueue's Workload (kueue.sigs.k8s.io, "Workload").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.pending.explanation import Limit, Per, Reason, WaitKind
from ffdl_kubernetes.observing.cures import reasons_alone, what_to_do
from ffdl_kubernetes.observing.job_states import why_pending
from ffdl_kubernetes.pod_resources import amount_text
from ffdl_kubernetes.quantities import QUOTA, amount, amounts, never_given

Plain = Mapping[str, Any]
_AVAILABLE = re.compile(r"(\d+)/(\d+) nodes are available: ?(.*?)\.?$", re.DOTALL)
_PART = re.compile(r"(\d+) (.+)")
_OF_PARTS: tuple[tuple[str, WaitKind], ...] = (
    (r"Insufficient |Too many pods", WaitKind.NO_ROOM),
    (r"untolerated taint \{node\.kubernetes\.io/", WaitKind.NODES_CLOSED),
    (r"untolerated taint", WaitKind.KEPT_FOR_OTHERS),
    (r"node affinity|node selector|didn't match", WaitKind.WRONG_LABELS),
    (r"unschedulable|not ready|unreachable", WaitKind.NODES_CLOSED),
    (r"[Pp]ersistent[Vv]olume|volume", WaitKind.VOLUME),
)
_DEFAULT = "default-scheduler"
_RESOURCE = re.compile(r"(?:requests|limits|count)/?\.?(.+)")


def read_scheduling(message: str) -> tuple[WaitKind, dict[str, str]]:
    """What the scheduler says of pods that find no node: the kind, and by reason how many nodes of how many.

    Nodes that lack room are what the pod waits for; where there are none of these, the reason that most nodes give.
    """
    match = _AVAILABLE.search(reasons_alone(" ".join(message.split())))
    if match is None:
        return next((kind for sign, kind in _OF_PARTS if re.search(sign, message)), WaitKind.NO_ROOM), {}
    counts: dict[str, int] = {}
    for text in re.split(r", (?=\d+ )", match[3]):
        if (part := _PART.fullmatch(text.strip())) is not None:
            counts[part[2].strip().rstrip(".")] = int(part[1])
    figures = {_of_nodes(what): f"{count} of {match[2]}" for what, count in counts.items()}
    kinds: dict[WaitKind, int] = {}
    for what, count in counts.items():
        kind = next((kind for sign, kind in _OF_PARTS if re.search(sign, what)), WaitKind.NO_ROOM)
        kinds[kind] = kinds.get(kind, 0) + count
    if not kinds:  # said of the pod, and of no node
        return next((kind for sign, kind in _OF_PARTS if re.search(sign, match[3])), WaitKind.NO_ROOM), figures
    if WaitKind.NO_ROOM in kinds:
        return WaitKind.NO_ROOM, figures
    return max(kinds, key=lambda kind: kinds[kind]), figures


def _of_nodes(what: str) -> str:
    plain = what.removeprefix("node(s) ")
    return f"nodes that {plain}" if plain != what else f"nodes with {what}"


def read_quota(refusal: str) -> Limit | None:
    """The quota that refuses pods, with its figures; None where it is no quota that refuses."""
    match = QUOTA.search(refusal)
    if match is None:
        return None
    asked, used, most = amounts(match["asked"]), amounts(match["used"]), amounts(match["limit"])
    never = never_given(match)
    resource, *more = never or list(asked)
    return Limit(
        "quota",
        f"{plain_name(resource)}{f' (and {len(more)} more)' if more else ''}",
        per=Per.JOB if never else Per.ALL,  # whoever else uses it
        name=match["name"],
        most=most.get(resource, ""),
        used=used.get(resource, ""),
        asked=asked[resource],
    )


def plain_name(resource: str) -> str:
    match = _RESOURCE.fullmatch(resource)
    name = match[1] if match is not None else resource
    return {"nvidia.com/gpu": "GPUs", "amd.com/gpu": "GPUs", "cpu": "CPUs"}.get(name, name)


def quota_figures(quotas: Sequence[Plain]) -> dict[str, str]:
    """What of each quota of the namespace is in use, where it is limited."""
    found: dict[str, str] = {}
    for quota in quotas:
        status = quota.get("status") or {}
        hard = status.get("hard") or quota.get("spec", {}).get("hard") or {}
        for resource, most in sorted(hard.items()):
            used = (status.get("used") or {}).get(resource, "0")
            shown = f"{_shown(resource, used)} of {_shown(resource, most)} in use"
            found[f"quota {quota['metadata']['name']}, {resource}"] = shown
    return found


def _shown(resource: str, text: str) -> str:
    known = amount(text)
    return text if known is None else amount_text(resource, known)


def read_queue(queue: str, workload: Plain | None) -> Reason:
    """Why a queue of Kueue has not let a Job in."""
    if workload is None:
        return Reason(WaitKind.QUEUE, queue)
    reserved, evicted = _condition(workload, "QuotaReserved"), _condition(workload, "Evicted")
    said = str(reserved.get("message") or evicted.get("message") or "").strip().rstrip(".")
    if not workload.get("spec", {}).get("active", True) or reserved.get("reason") == "Inadmissible":
        return Reason(WaitKind.QUEUE_CLOSED, queue, said)
    if "maximum capacity" in said:
        return Reason(WaitKind.IMPOSSIBLE, queue, said)
    if _condition(workload, "Admitted").get("status") == "True":
        return Reason(WaitKind.STARTING, queue)
    return Reason(WaitKind.QUEUE, queue, said)


def position_in(queue: str, workload: Plain, workloads: Sequence[Plain]) -> int:
    """Its place among the Workloads of the namespace that wait in the queue, from 1: by priority, then by age."""

    def place(one: Plain) -> tuple[int, str]:
        return -int(one.get("spec", {}).get("priority") or 0), str(one["metadata"].get("creationTimestamp", ""))

    return 1 + sum(place(one) < place(workload) for one in _waiting_in(queue, workloads))


def queue_figures(queue: str, workloads: Sequence[Plain]) -> dict[str, str]:
    """How many of the namespace wait in the queue that a request would come into; "" is none."""
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
        and _condition(one, "QuotaReserved").get("status") != "True"
        and _condition(one, "Finished").get("status") != "True"
    ]


def read_pods(
    pods: Sequence[Plain], refusal: str, troubles: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> tuple[Reason, dict[str, str]]:
    """Why pods that were made, or are refused, do not run; and the figures that this rests on. `troubles`: reason and
    message of what nodes said of volumes and networks of pods, by their names."""
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        scheduled = _condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            word, said = str(scheduled.get("reason", "")), str(scheduled.get("message", ""))
            if word == "SchedulingGated":
                return Reason(WaitKind.QUEUE, word, said), {}
            kind, figures = read_scheduling(said)
            return Reason(kind, word, "" if figures else f"{said}{what_to_do(said)}"), figures
    if why := why_pending(pods):
        return Reason(WaitKind.IMAGE if why.startswith("the image") else WaitKind.BROKEN, "", why), {}
    if why := why_pending(pods, troubles=troubles):
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


def _condition(thing: Plain, kind: str) -> Plain:
    for one in thing.get("status", {}).get("conditions") or ():
        if one.get("type") == kind:
            found: Plain = one
            return found
    return {}
