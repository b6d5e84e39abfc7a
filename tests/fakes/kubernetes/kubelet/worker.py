"""One pod on a node, from its volumes to its end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.fakes.kubernetes.kinds import PODS, POLICIES, Obj
from tests.fakes.kubernetes.kubelet.conduct import Conduct
from tests.fakes.kubernetes.kubelet.environment import argv_of, environment_of, hostname_of, hosts_text, user_of
from tests.fakes.kubernetes.kubelet.process import Imagined, Process, Running
from tests.fakes.kubernetes.kubelet.slot import Slot, fill_status
from tests.fakes.kubernetes.kubelet.volumes import NotReady, Volumes
from tests.fakes.kubernetes.objects import disrupt, is_deleted, key_of, labels_of, name_of, namespace_of
from tests.fakes.kubernetes.quantities import amount
from tests.fakes.kubernetes.registry import Deletion, Registry
from tests.fakes.kubernetes.store import Store
from tests.fakes.kubernetes.watching import matches

_MOUNT_RETRY_S = 0.3
_LIMITS_S = 0.5
_COUNTERS = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"


class Worker:
    """Lives until the pod is gone from the API and from the node."""

    def __init__(self, registry: Registry, conduct: Conduct, place: Path, pod: Obj, address: str) -> None:
        self._registry, self.conduct, self._place = registry, conduct, place
        self.pod, self.address = pod, address
        self.key, self.uid = key_of(pod), str(pod["metadata"]["uid"])
        self.logs_grew: set[asyncio.Event] = set()
        self.offline = self.over = self.gone = False
        self._failed = self._sandbox = self._is_cut_off = False
        self._reason = self._message = ""
        self._holder: Process | None = None
        self._dirty, self._ending, self._news = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._grace: float = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._supervisors: dict[str, asyncio.Task[int]] = {}
        self._volumes = Volumes(place / "volumes", place.parents[1] / "claims", registry.store, conduct)
        self._hosts = place / "hosts"
        spec = pod["spec"]
        self.inits = [self._slot(one, "Always") for one in spec.get("initContainers") or []]
        self.mains = [self._slot(one, spec["restartPolicy"]) for one in spec["containers"]]
        self.slots = [*self.inits, *self.mains]

    def _slot(self, container: Obj, policy: str) -> Slot:
        place = self._place / "containers" / container["name"]
        place.mkdir(parents=True)
        waits_for = "PodInitializing" if self.pod["spec"].get("initContainers") else "ContainerCreating"
        return Slot(self, container, place, policy, waits_for=waits_for)

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.slots if slot.name == name)

    def _spawn(self, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin(self) -> None:
        self._spawn(self._publish_often())
        self._spawn(self._live())
        self._spawn(self._limits())

    # What it hears.

    def changed(self, pod: Obj) -> None:
        """The API's pod is another version."""
        before, self.pod = self.pod["metadata"], pod
        if is_deleted(pod):
            self.end(pod["metadata"]["deletionGracePeriodSeconds"])
        if any(before.get(part) != pod["metadata"].get(part) for part in ("annotations", "labels")):
            asyncio.get_running_loop().call_later(self.conduct.sync_s, self.follow)
        self._news.set()

    def removed(self) -> None:
        self.gone = True
        self._news.set()
        self.end(0)

    def follow(self) -> None:
        """Bring what the volumes show up to date. Of a pod that is being ended kubelet leaves them as they are."""
        if not self.over and not self.offline and not self._ending.is_set():
            self._volumes.follow(self.pod)

    def end(self, grace: float, *, reason: str = "", message: str = "") -> None:
        """End it for the cluster's sake; a second time only sooner."""
        if reason:
            self._failed, self._reason, self._message = True, reason, message
        for slot in self.slots:
            slot.stopping = True
            if grace == 0 and slot.running is not None:
                slot.running.kill()
        if not self._ending.is_set():
            self._grace = grace
            self._ending.set()

    # Its life.

    async def _live(self) -> None:
        flow, ending = self._spawn(self._flow()), self._spawn(self._ending.wait())
        await asyncio.wait({flow, ending}, return_when=asyncio.FIRST_COMPLETED)
        if flow.done():
            flow.result()
        deleted = self._ending.is_set()
        for slot in self.slots:
            slot.stopping = True
        await self._stop(self._grace if deleted else float(self.pod["spec"]["terminationGracePeriodSeconds"]))
        flow.cancel()
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flow
        await self._supervised()
        if deleted:
            self._failed = self._failed or any(slot.code is None for slot in self.mains)
            for slot in self.slots:
                slot.lost()
        if self._holder is not None:
            await self._holder.release()
        self.over = True
        while not self.gone:
            await self._leave()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        self.wake_readers()
        shutil.rmtree(self._place, ignore_errors=True)

    async def _limits(self) -> None:
        """End a pod that runs for too long, or whose files are too many."""
        spec, began = self.pod["spec"], time.monotonic()
        deadline = spec.get("activeDeadlineSeconds", float("inf"))
        while not self._ending.is_set():
            await asyncio.sleep(_LIMITS_S)
            if time.monotonic() - began > deadline:
                message = "Pod was active on the node longer than the specified deadline"
                self.end(float(spec["terminationGracePeriodSeconds"]), reason="DeadlineExceeded", message=message)
            elif message := self._volumes.too_large(self.pod):
                self.evicted(message)

    def evicted(self, message: str) -> None:
        """The node ends it for want of something (node pressure)."""
        self._registry.change(PODS, *self.key, lambda one: disrupt(one, "TerminationByKubelet", message))
        self.end(0, reason="Evicted", message=message)

    async def _leave(self) -> None:
        """Wait until the API lets go of the pod; a deleted one is let go by us."""
        self._news.clear()
        self._write()
        if not self.offline and is_deleted(self.pod):
            found = self._found()
            if found is None:
                self.gone = True
                return
            if found["metadata"]["deletionGracePeriodSeconds"] > 0:
                self._registry.delete(PODS, *self.key, Deletion(grace=0))
        await self._news.wait()

    async def _flow(self) -> None:
        """Everything that a pod does by itself."""
        await self._mount()
        self.write_hosts()
        self._is_cut_off = self.conduct.policies and is_cut_off(self._registry.store, self.pod)
        if self.pod["spec"].get("shareProcessNamespace") and self.conduct.imagined_s is None:
            self._holder = Process(lambda: None)
            await self._holder.start({"mode": "hold", "cut_off": self._is_cut_off})
        self._sandbox = True
        self._write()
        for slot in self.inits:
            slot.state = {"waiting": {"reason": "PodInitializing"}}
            self._supervisors[slot.name] = self._spawn(slot.supervise())
            await slot.went_up.wait()
        for slot in self.mains:
            self._supervisors[slot.name] = self._spawn(slot.supervise())
        await asyncio.wait([self._supervisors[slot.name] for slot in self.mains])

    async def _mount(self) -> None:
        while True:
            try:
                self._volumes.set_up(self.pod)
                return
            except NotReady as error:
                self._registry.tell(PODS, self.pod, error.reason, str(error))
                self._dirty.set()
                await asyncio.sleep(_MOUNT_RETRY_S)

    async def _stop(self, grace: float) -> None:
        """Run the hooks of all at once; TERM to the others first, then to the sidecars from the last to the first."""
        turns = {slot.name: asyncio.Event() for slot in reversed(self.inits)}
        stops = {slot.name: self._spawn(slot.stop(grace, turns.get(slot.name))) for slot in self.slots}
        stopped = [await stops[slot.name] for slot in self.mains]
        for name, turn in turns.items():
            if all(stopped) or not self.conduct.loses_ends:
                turn.set()
            await stops[name]

    async def _supervised(self) -> None:
        """Wait for those whose container has ended; the others wait for something that is no longer wanted."""
        for name, task in self._supervisors.items():
            slot = self.slot(name)
            if not task.done() and ("terminated" in slot.state or slot.running is not None):
                await asyncio.wait({task}, timeout=2.0)
            task.cancel()

    def write_hosts(self) -> None:
        """Write the pod's hosts file; kept as one file, because it is mounted."""
        if self.conduct.imagined_s is None:
            self._hosts.write_text(hosts_text(self._registry.store, self.pod, self.address))
            self._hosts.chmod(0o644)

    # What its containers ask of it.

    async def run(self, slot: Slot, image: Obj) -> Running:
        pod, container, place = self.pod, slot.container, slot.place
        shown = {**pod, "status": {**pod["status"], "podIP": self.address}}
        environment = environment_of(shown, container, image, self._registry.store)
        user, argv = user_of(pod, container, image), argv_of(container, environment)
        if self.conduct.imagined_s is not None:
            is_sidecar = slot in self.inits
            job = labels_of(pod).get("batch.kubernetes.io/job-name", "")
            slot.message_file.write_text(self.conduct.imagined_word.replace("%s", job) if is_sidecar else "")
            slot.log_file().touch()
            return Imagined(None if is_sidecar else self.conduct.imagined_s)
        stage, counters = place / "stage", place / "cgroup"
        stage.mkdir(exist_ok=True)
        counters.mkdir(exist_ok=True)
        slot.message_file.write_bytes(b"")
        slot.message_file.chmod(0o666)
        limit = int(amount((container["resources"].get("limits") or {}).get("memory", 0)))
        (counters / "memory.max").write_text(f"{limit or 'max'}\n")
        (counters / "memory.events").write_text(_COUNTERS)
        readonly = bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem"))
        added: list[Obj] = [{"source": path, "target": path, "readonly": True} for path in self.conduct.image_paths]
        added += [
            {"source": str(self._hosts), "target": "/etc/hosts", "readonly": readonly},
            {"source": str(counters), "target": "/sys/fs/cgroup", "readonly": True},
            {"source": str(slot.message_file), "target": container["terminationMessagePath"]},
        ]
        namespaces = f"/proc/{self._holder.pid}/ns" if self._holder else ""
        process = Process(self.wake_readers)
        await process.start({
            "mode": "container", "argv": argv, "environment": environment, "user": user,
            "cwd": container.get("workingDir") or "/", "hostname": hostname_of(pod),
            "net_namespace": namespaces and f"{namespaces}/net", "pid_namespace": namespaces and f"{namespaces}/pid",
            "cut_off": not self._holder and self._is_cut_off, "stage": str(stage), "readonly_root": readonly,
            "mounts": self._volumes.mounts(pod, container, environment, added), "log": str(slot.log_file()),
            "memory_events": str(counters / "memory.events"),
            "memory_limit": limit if self.conduct.memory_limits else 0,
        })  # fmt: skip
        return process

    def wake_readers(self) -> None:
        for event in self.logs_grew:
            event.set()

    def publish(self) -> None:
        self._dirty.set()

    async def _publish_often(self) -> None:
        while not self.gone:
            await self._dirty.wait()
            self._dirty.clear()
            self._write()
            await asyncio.sleep(0.02)

    def _found(self) -> Obj | None:
        """Return the API's pod, if it is still this one."""
        found = self._registry.store.get(PODS, *self.key)
        return found if found is not None and found["metadata"]["uid"] == self.uid else None

    def _write(self) -> None:
        if not self.offline and not self.gone and self._found() is not None:
            self._registry.change(PODS, *self.key, self._fill)

    def _fill(self, pod: Obj) -> None:
        fill_status(
            pod, self.inits, self.mains, over=self.over, failed=self._failed,
            address=self.address if self._sandbox else "", reason=self._reason, message=self._message,
        )  # fmt: skip

    def cut_power(self) -> None:
        """Its node is without power: every process ends, nothing is written down."""
        self.offline = True
        for slot in self.slots:
            slot.stopping = True
            if slot.running is not None:
                slot.running.kill()

    async def dead(self) -> None:
        """Wait until none of its processes is left."""
        for slot in self.slots:
            if slot.running is not None:
                await asyncio.shield(slot.running.ended)
        if self._holder is not None:
            await self._holder.release()


def is_cut_off(store: Store, pod: Obj) -> bool:
    """Whether NetworkPolicies choose the pod for both ways, and none of them allows anything (kubernetes.io, "Network
    Policies": rules add up, and an empty list has none). Such a pod gets a network with nothing in it, other policies
    are not enforced: pods share the machine's network. Pods of other namespaces and ports count for nothing."""
    specs = [one["spec"] for one in store.list(POLICIES, namespace_of(pod))]
    chosen = [one for one in specs if matches(one["podSelector"], labels_of(pod))]
    others = [labels_of(one) for one in store.list(PODS, namespace_of(pod)) if name_of(one) != name_of(pod)]

    def allows(peers: list[Obj]) -> bool:  # a rule without any allows all
        return not peers or any("ipBlock" in peer or any(is_one(peer, labels) for labels in others) for peer in peers)

    def is_one(peer: Obj, labels: dict[str, str]) -> bool:
        return "namespaceSelector" not in peer and matches(peer["podSelector"], labels)

    return all(
        any(way in one["policyTypes"] for one in chosen)
        and not any(allows(rule.get(peers) or []) for one in chosen for rule in one.get(way.lower()) or [])
        for way, peers in (("Ingress", "from"), ("Egress", "to"))
    )
