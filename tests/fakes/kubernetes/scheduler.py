"""The scheduler: pods to nodes, by what fits. Nothing is preempted."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from tests.fakes.kubernetes.conditions import set_condition
from tests.fakes.kubernetes.kinds import (
    CLAIMS,
    NODES,
    PODS,
    Obj,
    condition_of,
    key_of,
    labels_of,
    name_of,
    namespace_of,
)
from tests.fakes.kubernetes.loops import WorkQueue
from tests.fakes.kubernetes.quantities import amount, pod_requests
from tests.fakes.kubernetes.registry import Registry
from tests.fakes.kubernetes.selectors import expression_matches
from tests.fakes.kubernetes.store import Change

_SOURCE = "default-scheduler"
_ROUND = "round"
_NO_SELECTOR = "node(s) didn't match Pod's node affinity/selector"


class Scheduler:
    """One round whenever pods or nodes have changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.queue: WorkQueue[str] = WorkQueue(lambda _: self._round())
        self._pending: set[tuple[str, str]] = set()
        self._used: dict[str, dict[tuple[str, str], dict[str, Decimal]]] = {}
        registry.store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        if change.kind is NODES:
            self.queue.add(_ROUND)
        elif change.kind is PODS:
            pod, key = change.obj, key_of(change.obj)
            node, over = pod["spec"].get("nodeName"), pod["status"].get("phase") in ("Succeeded", "Failed")
            if change.what == "DELETED" or over:
                self._pending.discard(key)
                for used in self._used.values():
                    if used.pop(key, None) is not None:
                        self.queue.add(_ROUND)
            elif node:
                self._pending.discard(key)
                self._used.setdefault(node, {}).setdefault(key, _asked(pod))
            elif key not in self._pending:
                self._pending.add(key)
                self.queue.add(_ROUND)
            elif change.before is not None and change.before["spec"] != pod["spec"]:
                self.queue.add(_ROUND)

    def _round(self) -> None:
        pods = [pod for key in self._pending if (pod := self._registry.store.get(PODS, *key)) is not None]
        pods.sort(key=lambda pod: (-pod["spec"].get("priority", 0), pod["metadata"]["creationTimestamp"], name_of(pod)))
        nodes = self._registry.store.list(NODES)
        for pod in pods:
            if pod["metadata"].get("deletionTimestamp") or pod["spec"].get("schedulerName") != "default-scheduler":
                continue
            if pod["spec"].get("schedulingGates"):
                self._say(pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
                continue
            missing = self._missing_claim(pod)
            reasons: dict[str, list[str]] = (
                {} if missing else {name_of(node): self._against(pod, node) for node in nodes}
            )
            fitting = [node for node in nodes if reasons.get(name_of(node)) == []]
            if fitting:
                self._bind(pod, max(fitting, key=lambda node: (self._free(node).get("cpu", Decimal(0)), name_of(node))))
                continue
            self._refuse(pod, len(nodes), reasons, missing)

    def _missing_claim(self, pod: Obj) -> str:
        for volume in pod["spec"].get("volumes") or []:
            name = volume.get("persistentVolumeClaim", {}).get("claimName")
            if name and self._registry.store.get(CLAIMS, namespace_of(pod), name) is None:
                return str(name)
        return ""

    def _against(self, pod: Obj, node: Obj) -> list[str]:
        spec = pod["spec"]
        if node["spec"].get("unschedulable"):
            return ["node(s) were unschedulable"]
        for taint in node["spec"].get("taints") or []:
            if taint["effect"] != "PreferNoSchedule" and not tolerated(spec, taint):
                shown = f"{taint['key']}: {taint.get('value', '')}"
                return [f"node(s) had untolerated taint {{{shown}}}"]
        if not _selected(spec, node):
            return [_NO_SELECTOR]
        free, found = self._free(node), []
        for name, value in sorted(_asked(pod).items()):
            if value > free.get(name, Decimal(0)):
                found.append("Too many pods" if name == "pods" else f"Insufficient {name}")
        return found

    def _free(self, node: Obj) -> dict[str, Decimal]:
        free = {name: amount(value) for name, value in node["status"]["allocatable"].items()}
        for used in self._used.get(name_of(node), {}).values():
            for name, value in used.items():
                free[name] = free.get(name, Decimal(0)) - value
        return free

    def _bind(self, pod: Obj, node: Obj) -> None:
        def bind(one: Obj) -> None:
            one["spec"]["nodeName"] = name_of(node)
            set_condition(one, "PodScheduled", "True")

        self._registry.change(PODS, *key_of(pod), bind)
        where = f"{namespace_of(pod)}/{name_of(pod)}"
        self._registry.tell(PODS, pod, "Scheduled", f"Successfully assigned {where} to {name_of(node)}", _SOURCE)

    def _refuse(self, pod: Obj, nodes: int, reasons: dict[str, list[str]], missing: str) -> None:
        if missing:
            message = f'0/{nodes} nodes are available: persistentvolumeclaim "{missing}" not found. not found'
        else:
            message = f"0/{nodes} nodes are available: {_counted(reasons)}. {_preemption(nodes, reasons)}"
        if not nodes:
            message = "no nodes available to schedule pods"
        self._say(pod, "Unschedulable", message)
        self._registry.tell(PODS, pod, "FailedScheduling", message, _SOURCE, warning=True)

    def _say(self, pod: Obj, reason: str, message: str) -> None:
        found = condition_of(pod, "PodScheduled")
        if found is None or (found.get("reason"), found.get("message")) != (reason, message):
            self._registry.change(
                PODS, *key_of(pod), lambda one: set_condition(one, "PodScheduled", "False", reason, message)
            )


def _preemption(nodes: int, reasons: dict[str, list[str]]) -> str:
    """The scheduler's sentence about lower priorities, which these pods do not have."""
    lacking = [found for found in reasons.values() if found and all(one.startswith("Insufficient") for one in found)]
    parts = Counter({"No preemption victims found for incoming pod": len(lacking),
                     "Preemption is not helpful for scheduling": nodes - len(lacking)})  # fmt: skip
    said = ", ".join(sorted(f"{count} {text}" for text, count in parts.items() if count))
    return f"preemption: 0/{nodes} nodes are available: {said}."


def _asked(pod: Obj) -> dict[str, Decimal]:
    return {**pod_requests(pod["spec"]), "pods": Decimal(1)}


def _counted(reasons: dict[str, list[str]]) -> str:
    counts = Counter(one for found in reasons.values() for one in found)
    return ", ".join(sorted(f"{count} {text}" for text, count in counts.items()))


def tolerated(spec: Obj, taint: Obj) -> bool:
    """Whether a pod tolerates a taint."""
    for one in spec.get("tolerations") or []:
        if one.get("effect") not in (None, "", taint["effect"]):
            continue
        if not one.get("key") and one.get("operator") == "Exists":
            return True
        if one.get("key") == taint["key"] and (
            one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", "")
        ):
            return True
    return False


def _selected(spec: Obj, node: Obj) -> bool:
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms is None:
        return True
    return any(
        all(expression_matches(one, labels) for one in term.get("matchExpressions") or [])
        and all(
            expression_matches(one, {"metadata.name": name_of(node)}) for one in term.get("matchFields") or []
        )
        for term in terms
    )  # fmt: skip
