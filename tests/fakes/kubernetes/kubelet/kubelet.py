"""The kubelets of all nodes."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

from tests.fakes.kubernetes.executing import Begin, internal
from tests.fakes.kubernetes.kinds import CONFIG_MAPS, PODS, SECRETS, SERVICES, Obj, key_of, namespace_of
from tests.fakes.kubernetes.kubelet.conduct import Conduct
from tests.fakes.kubernetes.kubelet.logs import check_started, container_of, read_log, slot_of, unreachable, wanted_of
from tests.fakes.kubernetes.kubelet.process import Attached, StartFailed
from tests.fakes.kubernetes.kubelet.worker import Worker
from tests.fakes.kubernetes.refusals import bad_request
from tests.fakes.kubernetes.registry import Registry
from tests.fakes.kubernetes.store import Change
from tests.fakes.kubernetes.web import Request

_ADDRESSES = ipaddress.ip_address("127.16.0.2")
"""The first address that a pod can have. Clusters on this machine must not share one: pods listen at fixed ports."""


class Kubelets:
    """A worker for each pod that is on a node."""

    def __init__(self, registry: Registry, conduct: Conduct, place: Path) -> None:
        self._registry, self.conduct, self._place = registry, conduct, place
        self._workers: dict[str, Worker] = {}
        self._silent: set[str] = set()
        self._next_address = _ADDRESSES + os.getpid() % 2048 * 4096
        registry.store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        if change.kind is PODS and change.obj["spec"].get("nodeName"):
            self._pod(change)
        elif change.kind in (CONFIG_MAPS, SECRETS) and change.what == "MODIFIED":
            for worker in self._workers.values():
                if worker.key[0] == namespace_of(change.obj):
                    asyncio.get_running_loop().call_later(self.conduct.sync_s, worker.follow)
        if change.kind is SERVICES or (change.kind is PODS and _address(change.obj) != _address(change.before)):
            for worker in self._workers.values():
                if worker.key[0] == namespace_of(change.obj) and not worker.over:
                    worker.write_hosts()

    def _pod(self, change: Change) -> None:
        pod, uid = change.obj, change.obj["metadata"]["uid"]
        worker = self._workers.get(uid)
        if pod["spec"]["nodeName"] in self._silent:
            return
        if worker is None:
            if change.what != "DELETED" and pod["status"].get("phase") == "Pending":
                self._begin(pod)
        elif change.what == "DELETED":
            worker.removed()
            self._workers.pop(uid)
        else:
            worker.changed(pod)

    def _begin(self, pod: Obj) -> None:
        uid = str(pod["metadata"]["uid"])
        worker = Worker(self._registry, self.conduct, self._place / "pods" / uid, pod, str(self._next_address))
        self._next_address += 1
        self._workers[uid] = worker
        worker.begin()
        if pod["metadata"].get("deletionTimestamp"):
            worker.changed(pod)

    def worker(self, namespace: str, name: str) -> Worker:
        """The worker of a pod."""
        pod = self._registry.get(PODS, namespace, name)
        return self._workers[pod["metadata"]["uid"]]

    def log_of(self, pod: Obj, request: Request) -> AsyncIterator[bytes]:
        """The API server's way to a log."""
        worker = self._workers.get(pod["metadata"]["uid"])
        wanted = wanted_of(request)
        if worker is None:
            names = [one["name"] for one in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]]
            name = request.query.get("container") or names[-1]
            node = pod["spec"].get("nodeName", "")
            if node in self._silent:
                raise unreachable(node, key_of(pod), name)
            what = "ContainerCreating" if node else "no host is assigned to it"
            raise bad_request(f'container "{name}" in pod "{key_of(pod)[1]}" is waiting to start: {what}')
        slot = slot_of(worker, request)
        if pod["spec"]["nodeName"] in self._silent:
            raise unreachable(pod["spec"]["nodeName"], worker.key, slot.name)
        previous = request.asks("previous")
        check_started(worker, slot, previous=previous)
        return read_log(worker, slot, wanted, previous=previous)

    def execute_in(self, pod: Obj, request: Request) -> Begin:
        """The API server's way into a container."""
        node, key = pod["spec"].get("nodeName", ""), key_of(pod)
        if not node:
            raise bad_request(f"pod {key[1]} does not have a host assigned")
        name = container_of(pod, request)

        async def begin(argv: list[str]) -> Attached:
            worker = self._workers.get(pod["metadata"]["uid"])
            if node in self._silent:
                raise internal(f"error sending request: Post to {node}: dial tcp: connect: connection refused")
            slot = worker.slot(name) if worker is not None else None
            if slot is None or slot.running is None:
                raise internal(f'unable to upgrade connection: container not found ("{name}")')
            try:
                return await slot.running.attach(argv, slot.place / f"exec-{uuid4().hex}")
            except StartFailed as error:
                raise internal(f"error executing command in container: {error}") from error

        return begin

    def _on(self, node: str) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.pod["spec"]["nodeName"] == node]

    def silence(self, node: str, *, power: bool) -> None:
        """Nothing is heard of the node's kubelet; without `power` its processes end, too."""
        self._silent.add(node)
        for worker in self._on(node):
            worker.offline = True
            if not power:
                worker.cut_power()

    def resume(self, node: str) -> None:
        """The kubelet is back: it learns what happened meanwhile, and tells."""
        self._silent.discard(node)
        for worker in self._on(node):
            worker.offline = False
            found = self._registry.store.get(PODS, *worker.key)
            if found is None or found["metadata"]["uid"] != worker.uid:
                worker.removed()
                self._workers.pop(worker.uid, None)
            else:
                worker.changed(found)
                worker.publish()
        for pod in self._registry.store.list(PODS):
            fresh = pod["metadata"]["uid"] not in self._workers and pod["status"].get("phase") == "Pending"
            if fresh and pod["spec"].get("nodeName") == node:
                self._begin(pod)

    def evict(self, namespace: str, name: str, message: str) -> None:
        """The node ends a pod for want of something (node pressure)."""
        self.worker(namespace, name).evicted(message)

    async def stop(self) -> None:
        """End everything, and wait for it: no process outlives the cluster."""
        for worker in self._workers.values():
            worker.cut_power()
        await asyncio.gather(*(worker.dead() for worker in self._workers.values()))


def _address(pod: Obj | None) -> object:
    return None if pod is None else (pod["status"].get("podIP"), pod["status"].get("phase"))
