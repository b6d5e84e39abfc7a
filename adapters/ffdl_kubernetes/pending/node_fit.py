"""Which nodes could ever hold a request: by their whole capacity, their labels and their taints. Pure.

It does not repeat the scheduler's work: what is in use, affinities and volumes are not considered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.pending.explanation import Capacity, NodeAway
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.quantities import NOTHING, Amounts, amount_text, asked_of, read_amounts
from ffdl_kubernetes.settings import KubernetesSettings

Plain = Mapping[str, Any]
PODS = "pods"
"""The resource that counts pods."""
_MOST_AWAY = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster."""

    name: str
    labels: Mapping[str, str]
    amounts: Amounts
    """What pods may have of it together."""
    taints: tuple[Plain, ...] = ()
    """Those that keep pods off."""
    closed: str = ""
    """Why it takes no pods at all; "" = it takes pods."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A request for `pods` equal pods, which ask for `each`, on nodes with the labels `selector`."""

    pods: int
    each: Amounts
    selector: Mapping[str, str]
    tolerations: tuple[Plain, ...] = ()

    @property
    def resources(self) -> dict[str, Decimal]:
        """Return what each pod asks for, without its place among the pods of a node."""
        return {name: amount for name, amount in self.each.items() if amount > 0 and name != PODS}


@dataclass(frozen=True, slots=True)
class Fit:
    """The nodes for a request: `suited` have its labels, and `open` of them would take its pods."""

    request: PodRequest
    suited: tuple[Node, ...]
    open: tuple[Node, ...]

    @property
    def pods(self) -> int:
        """For how many of the pods the open nodes have room together when they are empty."""
        return sum(places(node.amounts, self.request.each) for node in self.open)


def read_node(thing: Plain) -> Node:
    """Return a Node of the API."""
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    ready: Plain = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), {})
    closed = "cordoned" if spec.get("unschedulable") else ""
    if ready.get("status") != "True":
        closed = "not ready"
    kept = tuple(one for one in spec.get("taints") or () if one.get("effect") in ("NoSchedule", "NoExecute"))
    labels = {str(name): str(value) for name, value in (thing["metadata"].get("labels") or {}).items()}
    return Node(str(thing["metadata"]["name"]), labels, read_amounts(status.get("allocatable")), kept, closed)


def read_request(job: Plain, pods: Sequence[Plain] = ()) -> PodRequest:
    """Return what a Job of the API asks for. `pods` are those that exist: the cluster may have added tolerations."""
    spec = job["spec"]
    pod = spec["template"]["spec"]
    selector = {str(name): str(value) for name, value in (pod.get("nodeSelector") or {}).items()}
    added = pods[0].get("spec", {}).get("tolerations") if pods else ()
    tolerations = (*(pod.get("tolerations") or ()), *(added or ()))
    return PodRequest(int(spec.get("completions") or 1), {**asked_of(pod), PODS: Decimal(1)}, selector, tolerations)


def fit_on(nodes: Sequence[Node], request: PodRequest) -> Fit:
    """Return the nodes that could hold the request."""
    labels = request.selector.items()
    suited = tuple(node for node in nodes if all(node.labels.get(name) == value for name, value in labels))
    return Fit(request, suited, tuple(node for node in suited if not kept_off(node, request)))


def kept_off(node: Node, request: PodRequest) -> str:
    """Return why the node takes none of the pods, whatever its capacity; "" = it takes them."""
    if node.closed:
        return node.closed
    taint = next((one for one in node.taints if not is_tolerated(one, request.tolerations)), None)
    return f"kept for others by the taint {taint.get('key')}" if taint is not None else ""


def is_tolerated(taint: Plain, tolerations: Sequence[Plain]) -> bool:
    """Return whether one of `tolerations` is for `taint` (kubernetes.io, "Taints and Tolerations")."""
    for one in tolerations:
        if one.get("effect") not in (None, "", taint.get("effect")):
            continue
        if one.get("operator") == "Exists":
            if one.get("key") in (None, "", taint.get("key")):
                return True
        elif one.get("key") == taint.get("key") and (one.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def are_closed(fit: Fit) -> bool:
    """Return whether the nodes that take none of its pods take no pods at all now. (The scheduler of 1.36 does not
    report which taints keep a pod off a node, and nodes that are not ready have some.)"""
    off = [node for node in fit.suited if node not in fit.open]
    return bool(off) and all(node.closed for node in off)


def places(capacity: Amounts, each: Amounts) -> int:
    """Return how many such pods the capacity holds."""
    asked = [(capacity.get(name, NOTHING), amount) for name, amount in each.items() if amount > 0]
    return max(0, min((int(most // amount) for most, amount in asked), default=0))


def capacity_of(fit: Fit, gpu_type: str, settings: KubernetesSettings) -> Capacity:
    """Return the capacity of the nodes for the request. `gpu_type` is the manifest's ("" = any)."""
    request = fit.request
    known = (settings.gpu_resource, *settings.gpu_resources.values())
    gpu = next((name for name in known if request.each.get(name, NOTHING) > 0), "")
    nodes = [node for node in fit.open if not gpu or _count(node.amounts, gpu)]
    suited = [node for node in fit.suited if not gpu or _count(node.amounts, gpu)]
    away = [NodeAway(node.name, why) for node in suited if (why := kept_off(node, request))]
    return Capacity(
        partition="",
        gpu_type=gpu_type if gpu else "",
        gpus=sum(_count(node.amounts, gpu) for node in nodes),
        gpus_free=None,
        nodes=len(nodes),
        fitting=sum(places(node.amounts, request.each) > 0 for node in nodes),
        wanted=request.pods,
        gpus_each=_count(request.each, gpu),
        away=tuple(away[:_MOST_AWAY]),
        away_more=len(away[_MOST_AWAY:]),
        learners_fitting=min(request.pods, fit.pods),
    )


def too_much(fit: Fit, settings: KubernetesSettings) -> str:
    """Return what the open nodes lack for the request when they are empty; "" if they can hold it or none is open.

    The text says whether they could hold it without controllers.
    """
    request, ever = fit.request, fit.pods
    if not fit.open or ever >= request.pods:
        return ""
    asked = request.resources
    largest = {name: max(node.amounts.get(name, NOTHING) for node in fit.open) for name in asked}
    room = f"empty they have room for {ever} of {counted(request.pods, 'learner')}"
    text = f"{room}; one node has at most {amounts_text(largest)}, and each learner asks for {amounts_text(asked)}"
    own = read_amounts({"cpu": settings.controller_cpus, "memory": str(settings.controller_memory_bytes)})
    alone = {name: amount - own.get(name, NOTHING) for name, amount in request.each.items()}
    if replace(fit, request=replace(request, each=alone)).pods < request.pods:
        return text
    return (
        f"{text}, including {amounts_text(own)} for its controller: ask for less, or lower controller_cpus or "
        "controller_memory_bytes in [backend.kubernetes]"
    )


def gpus_by_type(nodes: Iterable[Node], settings: KubernetesSettings) -> dict[str, str]:
    """Return how many GPUs of each type the nodes have that take pods."""
    found: dict[str, int] = {}
    for node in nodes:
        if not node.closed and (count := _count(node.amounts, settings.gpu_resource)):
            kind = node.labels.get(settings.gpu_label, "")
            found[kind] = found.get(kind, 0) + count
    return {f"GPUs{f' of type {kind}' if kind else ''} in the cluster": str(found[kind]) for kind in sorted(found)}


def amounts_text(amounts: Amounts) -> str:
    """Return amounts as text: ``1 GPU, 2 CPUs, 512 MiB of memory``."""
    return ", ".join(_one_amount(name, amounts[name]) for name in sorted(amounts, key=_place))


def _one_amount(name: str, amount: Decimal) -> str:
    shown = amount_text(name, amount)
    what = {"cpu": "CPU", "memory": "of memory", "ephemeral-storage": "of disk"}.get(name, name)
    what = "GPU" if name.endswith("/gpu") else what
    return f"{shown} {what}{'s' if what.endswith('PU') and amount != 1 else ''}"


def _place(name: str) -> tuple[bool, bool, str]:
    return not name.endswith("/gpu"), name != "cpu", name


def _count(amounts: Amounts, resource: str) -> int:
    return int(amounts.get(resource, NOTHING))
