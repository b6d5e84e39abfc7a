"""Nodes: as they are registered, and what happens when one is heard of no longer."""

from __future__ import annotations

import time

from tests.fakes.kubernetes.conditions import disrupt, set_condition
from tests.fakes.kubernetes.kinds import NODES, PODS, Obj, is_true, key_of, name_of
from tests.fakes.kubernetes.loops import WorkQueue
from tests.fakes.kubernetes.registry import Deletion, Registry
from tests.fakes.kubernetes.scheduler import tolerated
from tests.fakes.kubernetes.store import Change, now

_UNREACHABLE = "node.kubernetes.io/unreachable"
_SILENT = "Kubelet stopped posting node status."


def make_node(wish: Obj, release: str) -> Obj:
    """A node: `name`, `cpu`, `memory`, `pods`, `resources` (extended ones), `labels`, `taints`."""
    name = str(wish["name"])
    capacity = {
        "cpu": str(wish.get("cpu", "8")), "memory": str(wish.get("memory", "32Gi")),
        "pods": str(wish.get("pods", "110")), "ephemeral-storage": str(wish.get("disk", "100Gi")),
        **{key: str(value) for key, value in (wish.get("resources") or {}).items()},
    }  # fmt: skip
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    node: Obj = {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, **(wish.get("labels") or {})}},
        "spec": {"taints": list(wish.get("taints") or [])},
        "status": {
            "capacity": capacity, "allocatable": dict(capacity),
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "nodeInfo": {
                "kubeletVersion": f"v{release}.0", "kubeProxyVersion": f"v{release}.0", "operatingSystem": "linux",
                "architecture": "amd64", "machineID": name, "systemUUID": name, "bootID": name, "kernelVersion": "6.12",
                "osImage": "tests", "containerRuntimeVersion": "containerd://2.2.0",
            },
        },
    }  # fmt: skip
    set_ready(node)
    return node


def set_ready(node: Obj) -> None:
    """The node is well."""
    set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status", probed=False)
    for condition in node["status"]["conditions"]:
        condition["lastHeartbeatTime"] = now()
    node["spec"]["taints"] = [one for one in node["spec"].get("taints") or [] if one["key"] != _UNREACHABLE]


class NodeLifecycle:
    """Taints nodes of which nothing is heard, and deletes their pods when their patience is over; collects pods of
    nodes that are no more."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue(self._look)
        self._lost: dict[str, float] = {}
        registry.store.listeners.append(self._hear)

    def lose(self, name: str) -> None:
        """Nothing is heard of the node from now on."""

        def lose(node: Obj) -> None:
            set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", _SILENT, probed=False)
            taints = node["spec"].setdefault("taints", [])
            taints += [
                {"key": _UNREACHABLE, "effect": effect, "timeAdded": now()} for effect in ("NoSchedule", "NoExecute")
            ]

        self._lost[name] = time.monotonic()
        node = self._registry.change(NODES, "", name, lose)
        assert node is not None
        self._registry.tell(NODES, node, "NodeNotReady", f"Node {name} status is now: NodeNotReady", "node-controller")
        for pod in self._on(name):
            self._registry.change(PODS, *key_of(pod), _unready)
            self.queue.add(key_of(pod))

    def recover(self, name: str) -> None:
        """The node is heard of again."""
        self._lost.pop(name, None)
        self._registry.change(NODES, "", name, set_ready)

    def _on(self, node: str) -> list[Obj]:
        return [pod for pod in self._registry.store.each(PODS) if pod["spec"].get("nodeName") == node]

    def _hear(self, change: Change) -> None:
        if change.kind is PODS and change.what != "DELETED" and _is_left_over(change.obj):
            self.queue.add(key_of(change.obj))
        if change.kind is NODES and change.what == "DELETED":
            for pod in self._on(name_of(change.obj)):
                self.queue.add(key_of(pod))

    def _look(self, key: tuple[str, str]) -> None:
        pod = self._registry.store.get(PODS, *key)
        if pod is None:
            return
        node = pod["spec"].get("nodeName", "")
        if not node:
            if _is_left_over(pod):
                self._registry.change(PODS, *key_of(pod), lambda one: one["status"].update(phase="Failed"))
        elif self._registry.store.get(NODES, "", node) is None:
            self._collect(pod)
        elif node in self._lost and not pod["metadata"].get("deletionTimestamp"):
            self._wait_out(pod, self._lost[node])

    def _wait_out(self, pod: Obj, since: float) -> None:
        taint = {"key": _UNREACHABLE, "effect": "NoExecute"}
        fitting = [one for one in pod["spec"].get("tolerations") or [] if tolerated({"tolerations": [one]}, taint)]
        if fitting and not any("tolerationSeconds" in one for one in fitting):
            return
        patience = min((one["tolerationSeconds"] for one in fitting if "tolerationSeconds" in one), default=0)
        left = since + patience - time.monotonic()
        if left > 0:
            self.queue.later(key_of(pod), left + 0.02)
            return
        message = "Taint manager: deleting due to NoExecute taint"
        self._registry.change(PODS, *key_of(pod), lambda one: disrupt(one, "DeletionByTaintManager", message))
        self._registry.tell(
            PODS,
            pod,
            "TaintManagerEviction",
            f"Marking for deletion Pod {'/'.join(key_of(pod))}",
            "taint-eviction-controller",
        )
        self._registry.delete(PODS, *key_of(pod))

    def _collect(self, pod: Obj) -> None:
        """The pod garbage collector: the node is gone for good."""

        def fail(one: Obj) -> None:
            disrupt(one, "DeletionByPodGC", "PodGC: node no longer exists")
            if one["status"].get("phase") not in ("Succeeded", "Failed"):
                one["status"]["phase"] = "Failed"

        self._registry.change(PODS, *key_of(pod), fail)
        if self._registry.store.get(PODS, *key_of(pod)) is not None:
            self._registry.delete(PODS, *key_of(pod), Deletion(grace=0))


def _is_left_over(pod: Obj) -> bool:
    """Deleted before it had a node: no kubelet ends it, and the pod garbage collector does (podgc,
    `gcUnscheduledTerminating`)."""
    over = pod["status"].get("phase") in ("Succeeded", "Failed")
    return bool(pod["metadata"].get("deletionTimestamp")) and not pod["spec"].get("nodeName") and not over


def _unready(pod: Obj) -> None:
    if is_true(pod, "Ready"):
        set_condition(pod, "Ready", "False", "NodeNotReady")
