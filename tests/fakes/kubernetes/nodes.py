"""Nodes: as they are registered, which pods they get (nothing is preempted), and what happens when one is heard of no
longer."""

from __future__ import annotations

import time
from collections import Counter
from decimal import Decimal

from tests.fakes.kubernetes.kinds import CLAIMS, NODES, PODS, Key, Obj
from tests.fakes.kubernetes.objects import (
    disrupt,
    is_deleted,
    is_over,
    is_true,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    set_condition,
)
from tests.fakes.kubernetes.quantities import Amounts, amount, pod_requests
from tests.fakes.kubernetes.registry import Deletion, Registry
from tests.fakes.kubernetes.store import Change, WorkQueue

_ROUND = "round"
_UNREACHABLE = "node.kubernetes.io/unreachable"


class Scheduler:
    """One round whenever pods or nodes have changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.queue: WorkQueue[str] = WorkQueue(lambda _: self._round())
        self._pending: set[Key] = set()
        self._used: dict[str, dict[Key, Amounts]] = {}
        """Node -> pod -> what it asks for."""
        registry.store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        pod, key = change.obj, key_of(change.obj)
        if change.kind is NODES:
            self.queue.add(_ROUND)
        elif change.kind is PODS and (change.what == "DELETED" or is_over(pod)):
            self._pending.discard(key)
            for used in self._used.values():
                if used.pop(key, None) is not None:
                    self.queue.add(_ROUND)
        elif change.kind is PODS and (node := pod["spec"].get("nodeName")):
            self._pending.discard(key)
            self._used.setdefault(node, {}).setdefault(key, _asked(pod))
        elif change.kind is PODS and key not in self._pending:
            self._pending.add(key)
            self.queue.add(_ROUND)

    def _round(self) -> None:
        pods = [pod for key in self._pending if (pod := self._registry.store.get(PODS, *key)) is not None]
        pods.sort(key=lambda pod: (-pod["spec"]["priority"], pod["metadata"]["creationTimestamp"], name_of(pod)))
        nodes = self._registry.store.list(NODES)
        for pod in pods:
            if is_deleted(pod) or pod["spec"]["schedulerName"] != "default-scheduler":
                continue
            against = {name_of(node): self._against(pod, node) for node in nodes}
            fitting = [node for node in nodes if not against[name_of(node)]]
            if missing := self._missing_claim(pod):
                message = f'persistentvolumeclaim "{missing}" not found. not found'
            elif fitting:
                self._bind(pod, max(fitting, key=lambda node: (self._free(node).get("cpu", Decimal(0)), name_of(node))))
                continue
            else:
                message = _explain(list(against.values()))
            message = f"0/{len(nodes)} nodes are available: {message}"
            self._refuse(pod, message if nodes else "no nodes available to schedule pods")

    def _missing_claim(self, pod: Obj) -> str:
        for volume in pod["spec"].get("volumes") or []:
            name = volume.get("persistentVolumeClaim", {}).get("claimName")
            if name and self._registry.store.get(CLAIMS, namespace_of(pod), name) is None:
                return str(name)
        return ""

    def _against(self, pod: Obj, node: Obj) -> list[str]:
        """Return why the pod cannot run on the node."""
        spec, free = pod["spec"], self._free(node)
        if node["spec"].get("unschedulable"):
            return ["node(s) were unschedulable"]
        for taint in node["spec"].get("taints") or []:
            if not any(tolerates(one, taint) for one in spec.get("tolerations") or []):
                return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
        if not (spec.get("nodeSelector") or {}).items() <= labels_of(node).items():
            return ["node(s) didn't match Pod's node affinity/selector"]
        lacking = [name for name, value in sorted(_asked(pod).items()) if value > free.get(name, Decimal(0))]
        return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]

    def _free(self, node: Obj) -> Amounts:
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
        message = f"Successfully assigned {'/'.join(key_of(pod))} to {name_of(node)}"
        self._registry.tell(PODS, pod, "Scheduled", message, "Normal")

    def _refuse(self, pod: Obj, message: str) -> None:
        def refuse(one: Obj) -> None:
            set_condition(one, "PodScheduled", "False", "Unschedulable", message)

        self._registry.change(PODS, *key_of(pod), refuse)
        self._registry.tell(PODS, pod, "FailedScheduling", message)


def _asked(pod: Obj) -> Amounts:
    return {**pod_requests(pod["spec"]), "pods": Decimal(1)}


def _explain(against: list[list[str]]) -> str:
    """Return the scheduler's sentences about nodes, and about lower priorities, which these pods do not have."""
    reasons = Counter(one for found in against for one in found)
    lacking = sum(all(one.startswith("Insufficient") for one in found) for found in against)
    preemption = {"No preemption victims found for incoming pod": lacking,
                  "Preemption is not helpful for scheduling": len(against) - lacking}  # fmt: skip
    first, then = (sorted(f"{count} {text}" for text, count in all_.items() if count) for all_ in (reasons, preemption))
    return f"{', '.join(first)}. preemption: 0/{len(against)} nodes are available: {', '.join(then)}."


def tolerates(toleration: Obj, taint: Obj) -> bool:
    exists = toleration.get("operator") == "Exists"
    key, value, effect = (toleration.get(name) or "" for name in ("key", "value", "effect"))
    is_meant = key == taint["key"] and (exists or value == taint.get("value", ""))
    return effect in ("", taint["effect"]) and (is_meant or (exists and not key))


def make_node(given: Obj) -> Obj:
    """Return a node: `name`, `cpu`, `memory`, `pods`, `resources` (extended ones), `labels`, `taints`."""
    name = str(given["name"])
    amounts = {"cpu": given["cpu"], "memory": given["memory"], "pods": given.get("pods", "110"),
               "ephemeral-storage": "100Gi", **given["resources"]}  # fmt: skip
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    node: Obj = {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, **given.get("labels", {})}},
        "spec": {"taints": list(given.get("taints", []))},
        "status": {
            "allocatable": {key: str(value) for key, value in amounts.items()},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        },
    }  # fmt: skip
    set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status")
    return node


class NodeLifecycle:
    """Taints nodes of which nothing is heard, and deletes their pods when their patience is over; collects pods of
    nodes that are no more."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.queue: WorkQueue[Key] = WorkQueue(self._look)
        self._lost: dict[str, float] = {}
        registry.store.listeners.append(self._hear)

    def lose(self, name: str) -> None:
        """Hear nothing of the node from now on."""

        def lose(node: Obj) -> None:
            set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
            node["spec"]["taints"] += [{"key": _UNREACHABLE, "effect": one} for one in ("NoSchedule", "NoExecute")]

        def unready(pod: Obj) -> None:
            if is_true(pod, "Ready"):
                set_condition(pod, "Ready", "False", "NodeNotReady")

        self._lost[name] = time.monotonic()
        self._registry.change(NODES, "", name, lose)
        for pod in self._on(name):
            self._registry.change(PODS, *key_of(pod), unready)
            self.queue.add(key_of(pod))

    def _on(self, node: str) -> list[Obj]:
        return [pod for pod in self._registry.store.list(PODS) if pod["spec"].get("nodeName") == node]

    def _hear(self, change: Change) -> None:
        if change.kind is PODS and change.what != "DELETED" and _is_left_over(change.obj):
            self.queue.add(key_of(change.obj))
        if change.kind is NODES and change.what == "DELETED":
            for pod in self._on(name_of(change.obj)):
                self.queue.add(key_of(pod))

    def _look(self, key: Key) -> None:
        pod = self._registry.store.get(PODS, *key)
        node = pod["spec"].get("nodeName", "") if pod is not None else ""
        if pod is None:
            return
        if not node:
            if _is_left_over(pod):
                self._registry.change(PODS, *key, lambda one: one["status"].update(phase="Failed"))
        elif self._registry.store.get(NODES, "", node) is None:
            self._collect(key)
        elif node in self._lost and not is_deleted(pod):
            self._wait_out(pod, self._lost[node])

    def _wait_out(self, pod: Obj, since: float) -> None:
        """Evict the pod from a lost node when its toleration is over."""
        taint = {"key": _UNREACHABLE, "effect": "NoExecute"}
        fitting = [one for one in pod["spec"].get("tolerations") or [] if tolerates(one, taint)]
        patience = min(one.get("tolerationSeconds", float("inf")) for one in fitting) if fitting else 0
        left = since + patience - time.monotonic()
        if left > 0:
            self.queue.later(key_of(pod), min(left, 3600) + 0.02)
            return
        message = "Taint manager: deleting due to NoExecute taint"
        self._registry.change(PODS, *key_of(pod), lambda one: disrupt(one, "DeletionByTaintManager", message))
        self._registry.delete(PODS, *key_of(pod))

    def _collect(self, key: Key) -> None:
        """The pod garbage collector: the node is gone for good."""

        def fail(one: Obj) -> None:
            disrupt(one, "DeletionByPodGC", "PodGC: node no longer exists")
            if not is_over(one):
                one["status"]["phase"] = "Failed"

        self._registry.change(PODS, *key, fail)
        if self._registry.store.get(PODS, *key) is not None:
            self._registry.delete(PODS, *key, Deletion(grace=0))


def _is_left_over(pod: Obj) -> bool:
    """Whether it was deleted before it had a node: no kubelet ends it, and the pod garbage collector does (podgc,
    `gcUnscheduledTerminating`)."""
    return is_deleted(pod) and not pod["spec"].get("nodeName") and not is_over(pod)
