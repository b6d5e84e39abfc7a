"""The kubelets of all nodes, and containers' logs as they give them: of the latest file alone."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fakes.kubernetes.executing import Begin, internal
from tests.fakes.kubernetes.kinds import CONFIG_MAPS, PODS, SECRETS, SERVICES, Obj
from tests.fakes.kubernetes.kubelet.conduct import Conduct
from tests.fakes.kubernetes.kubelet.process import Process, StartFailed
from tests.fakes.kubernetes.kubelet.slot import Slot
from tests.fakes.kubernetes.kubelet.worker import Worker
from tests.fakes.kubernetes.objects import is_deleted, key_of, namespace_of
from tests.fakes.kubernetes.refusals import Refusal, bad_request
from tests.fakes.kubernetes.registry import Registry
from tests.fakes.kubernetes.store import Change
from tests.fakes.kubernetes.web import Request

_ADDRESSES = ipaddress.ip_address("127.16.0.2")
"""The first address that a pod can have. Clusters on this machine must not share one: pods listen at fixed ports."""
_POLL_S = 1.0
_SECONDS = "%Y-%m-%dT%H:%M:%S"


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
            for worker in self._in(change.obj):
                asyncio.get_running_loop().call_later(self.conduct.sync_s, worker.follow)
        if change.kind is SERVICES or (change.kind is PODS and _address(change.obj) != _address(change.before)):
            for worker in self._in(change.obj):
                if not worker.over:
                    worker.write_hosts()

    def _in(self, obj: Obj) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.key[0] == namespace_of(obj)]

    def _pod(self, change: Change) -> None:
        pod, uid = change.obj, change.obj["metadata"]["uid"]
        worker = self._workers.get(uid)
        if pod["spec"]["nodeName"] in self._silent:
            return
        if worker is None:
            if change.what != "DELETED" and pod["status"]["phase"] == "Pending":
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
        if is_deleted(pod):
            worker.changed(pod)

    def worker(self, namespace: str, name: str) -> Worker:
        return self._workers[self._registry.get(PODS, namespace, name)["metadata"]["uid"]]

    def log_of(self, pod: Obj, request: Request) -> AsyncIterator[bytes]:
        """The API server's way to a log."""
        name, node = container_of(pod, request), pod["spec"].get("nodeName", "")
        if node in self._silent:
            where = f'Get "https://{node}:10250/containerLogs/{"/".join(key_of(pod))}/{name}"'
            raise Refusal(500, "InternalError", f"{where}: dial tcp 127.0.0.1:10250: connect: connection refused")
        worker = self._workers.get(pod["metadata"]["uid"])
        if worker is None:
            raise bad_request(f'container "{name}" in pod "{key_of(pod)[1]}" is waiting to start')
        return log_of(worker, worker.slot(name), request)

    def execute_in(self, pod: Obj, request: Request) -> Begin:
        """The API server's way into a container."""
        name = container_of(pod, request)

        async def begin(argv: list[str]) -> asyncio.subprocess.Process:
            worker = self._workers.get(pod["metadata"]["uid"])
            slot = worker.slot(name) if worker is not None else None
            if slot is None or not isinstance(slot.running, Process):
                raise internal(f'unable to upgrade connection: container not found ("{name}")')
            try:
                return await slot.running.attach(argv, asyncio.subprocess.PIPE)
            except StartFailed as error:
                what = "error executing command in container: failed to exec in container: failed to start exec"
                raise internal(f"{what}: unable to start container process: {error}") from error

        return begin

    def silence(self, node: str) -> None:
        """Hear nothing of the node's kubelet, whose processes end."""
        self._silent.add(node)
        for worker in self._workers.values():
            if worker.pod["spec"]["nodeName"] == node:
                worker.cut_power()

    async def stop(self) -> None:
        """End everything, and wait for it: no process outlives the cluster."""
        for worker in self._workers.values():
            worker.cut_power()
        await asyncio.gather(*(worker.dead() for worker in self._workers.values()))


def _address(pod: Obj | None) -> object:
    return None if pod is None else (pod["status"].get("podIP"), pod["status"].get("phase"))


def container_of(pod: Obj, request: Request) -> str:
    mains = [one["name"] for one in pod["spec"]["containers"]]
    names = [*mains, *(one["name"] for one in pod["spec"].get("initContainers") or [])]
    name, of = request.query.get("container", ""), pod["metadata"]["name"]
    if not name and len(mains) > 1:
        raise bad_request(f"a container name must be specified for pod {of}, choose one of: [{' '.join(names)}]")
    if name and name not in names:
        raise bad_request(f"container {name} is not valid for pod {of}")
    return name or str(mains[0])


def log_of(worker: Worker, slot: Slot, request: Request) -> AsyncIterator[bytes]:
    """Return the log's bytes. Refuses the log of a container that never ran."""
    previous = request.asks("previous")
    if previous and slot.restarts == 0:
        raise bad_request(f'previous terminated container "{slot.name}" in pod "{worker.key[1]}" not found')
    path = slot.log_file(previous=previous)
    if not path.exists() or ("waiting" in slot.state and not slot.restarts):
        raise bad_request(f'container "{slot.name}" in pod "{worker.key[1]}" is waiting to start: {slot.state}')
    reader = _Reader(path, _since(request), timestamps=request.asks("timestamps"))
    return _read(worker, slot, reader, follow=request.asks("follow"))


def _since(request: Request) -> str:
    """Return the time from which on lines are wanted, in UTC, to compare it as text."""
    moment, seconds = request.query.get("sinceTime"), request.query.get("sinceSeconds")
    if seconds:
        return (datetime.now(UTC) - timedelta(seconds=int(seconds))).strftime(_SECONDS)
    return datetime.fromisoformat(moment).astimezone(UTC).strftime(f"{_SECONDS}.%f") if moment else ""


async def _read(worker: Worker, slot: Slot, reader: _Reader, *, follow: bool) -> AsyncIterator[bytes]:
    grew, run = asyncio.Event(), slot.running
    worker.logs_grew.add(grew)
    try:
        while True:
            grew.clear()
            over = run is None or (run.ended.done() and slot.running is not run)
            yield reader.read()
            if not follow or over or worker.gone:
                return
            try:
                await asyncio.wait_for(grew.wait(), _POLL_S)
            except TimeoutError:
                continue
    finally:
        worker.logs_grew.discard(grew)
        reader.close()


class _Reader:
    """Reads a log file, and the next one when it was rotated."""

    def __init__(self, path: Path, since: str, *, timestamps: bool) -> None:
        self._path, self._since, self._timestamps = path, since, timestamps
        self._rest, self._file = b"", path.open("rb")

    def close(self) -> None:
        self._file.close()

    def read(self) -> bytes:
        """Return all that has been written since the last time."""
        found = self._more()
        if self._path.exists() and self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
            found += self._more()
            self._file.close()
            self._file, self._rest = self._path.open("rb"), b""
            found += self._more()
        return found

    def _more(self) -> bytes:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return b"".join(self._shown(line) for line in lines)

    def _shown(self, line: bytes) -> bytes:
        moment, tag, text = line.split(b" ", 2)
        if moment.decode() < self._since:
            return b""
        return (moment + b" " if self._timestamps else b"") + text + (b"\n" if tag == b"F" else b"")
