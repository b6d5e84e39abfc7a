"""One pod on a node, from its volumes to its end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from pathlib import Path

from tests.fakes.kubernetes.conditions import disrupt
from tests.fakes.kubernetes.kinds import PODS, Obj, key_of
from tests.fakes.kubernetes.kubelet.conduct import Conduct
from tests.fakes.kubernetes.kubelet.environment import argv_of, environment_of, hostname_of, user_of
from tests.fakes.kubernetes.kubelet.hosts import hosts_text
from tests.fakes.kubernetes.kubelet.mounts import make_counters, mounts_of
from tests.fakes.kubernetes.kubelet.pod_status import fill
from tests.fakes.kubernetes.kubelet.policies import is_cut_off
from tests.fakes.kubernetes.kubelet.process import Imagined, Process, Running
from tests.fakes.kubernetes.kubelet.slot import Slot
from tests.fakes.kubernetes.kubelet.volumes import Claims, NotReady, Volumes
from tests.fakes.kubernetes.quantities import amount
from tests.fakes.kubernetes.registry import Deletion, Registry

_MOUNT_RETRY_S = 0.3
_LIMITS_S = 0.5


class Worker:
    """Lives until the pod is gone from the API and from the node."""

    def __init__(self, registry: Registry, conduct: Conduct, place: Path, pod: Obj, address: str) -> None:
        self._registry, self._conduct, self._place = registry, conduct, place
        self.pod, self.address = pod, address
        self.key, self.uid = key_of(pod), str(pod["metadata"]["uid"])
        self.images, self.backoff_s, self.probe_s = conduct.images, conduct.backoff_s, conduct.probe_s
        self.logs_grew: set[asyncio.Event] = set()
        self.offline = self.over = self.gone = False
        self._failed = False
        self._reason = self._message = ""
        self._holder: Process | None = None
        self._sandbox = False
        self._dirty = asyncio.Event()
        self._ending, self._news = asyncio.Event(), asyncio.Event()
        self._grace: float = 0.0
        self.tasks: set[asyncio.Task[object]] = set()
        claims = Claims(place.parent.parent / "claims", conduct.claims, conduct.detached)
        self._volumes = Volumes(place / "volumes", registry.store, claims, conduct.token_of)
        policy, spec = pod["spec"]["restartPolicy"], pod["spec"]
        self.inits = [self._slot(one, policy, init=True) for one in spec.get("initContainers") or []]
        self.mains = [self._slot(one, policy, init=False) for one in spec["containers"]]
        self._hosts = place / "hosts"

    def _slot(self, container: Obj, policy: str, *, init: bool) -> Slot:
        place = self._place / "containers" / container["name"]
        place.mkdir(parents=True)
        slot = Slot(self, container, init=init, policy=policy, place=place)
        if not self.pod["spec"].get("initContainers"):
            slot.state = {"waiting": {"reason": "ContainerCreating"}}
        return slot

    @property
    def slots(self) -> list[Slot]:
        return [*self.inits, *self.mains]

    def slot(self, name: str) -> Slot:
        """The container of that name."""
        return next(slot for slot in self.slots if slot.name == name)

    def _spawn(self, what: object) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.ensure_future(what)  # type: ignore[call-overload]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def begin(self) -> None:
        """Start to work."""
        self._spawn(self._publish_often())
        self._spawn(self._live())
        self._spawn(self._limits())

    # What it hears.

    def changed(self, pod: Obj) -> None:
        """The API's pod is another version."""
        before, self.pod = self.pod, pod
        if pod["metadata"].get("deletionTimestamp"):
            self.end(pod["metadata"].get("deletionGracePeriodSeconds", 30))
        if before["metadata"].get("annotations") != pod["metadata"].get("annotations") or before["metadata"].get(
            "labels"
        ) != pod["metadata"].get("labels"):
            asyncio.get_running_loop().call_later(self._conduct.sync_s, self.follow)
        self._news.set()

    def removed(self) -> None:
        """The API has it no longer."""
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
        flow = self._spawn(self._flow())
        ending = self._spawn(self._ending.wait())
        await asyncio.wait({flow, ending}, return_when=asyncio.FIRST_COMPLETED)
        if flow.done() and not flow.cancelled() and flow.exception() is not None:
            raise flow.exception() or AssertionError
        deleted = self._ending.is_set()
        grace = self._grace if deleted else float(self.pod["spec"]["terminationGracePeriodSeconds"])
        for slot in self.slots:
            slot.stopping = True
        await self._stop(grace)
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
        self._clean()

    async def _limits(self) -> None:
        """A pod that runs for too long, or whose files are too many, is ended."""
        spec, began = self.pod["spec"], time.monotonic()
        deadline = spec.get("activeDeadlineSeconds")
        limited = any((one.get("emptyDir") or {}).get("sizeLimit") for one in spec.get("volumes") or [])
        while (deadline is not None or limited) and not self._ending.is_set():
            await asyncio.sleep(_LIMITS_S)
            if deadline is not None and time.monotonic() - began > deadline:
                grace = float(spec["terminationGracePeriodSeconds"])
                message = "Pod was active on the node longer than the specified deadline"
                self.end(grace, reason="DeadlineExceeded", message=message)
            elif limited and (message := self._volumes.too_large(self.pod)):
                self.evicted(message)

    def evicted(self, message: str) -> None:
        """The node ends it for want of something (node pressure)."""
        self._registry.change(PODS, *self.key, lambda one: disrupt(one, "TerminationByKubelet", message))
        self._registry.tell(PODS, self.pod, "Evicted", message, "kubelet", warning=True)
        self.end(0, reason="Evicted", message=message)

    async def _leave(self) -> None:
        """Wait until the API lets go of the pod; a deleted one is let go by us."""
        self._news.clear()
        self._write()
        if not self.offline and self.pod["metadata"].get("deletionTimestamp"):
            found = self._registry.store.get(PODS, *self.key)
            if found is None or found["metadata"]["uid"] != self.uid:
                self.gone = True
                return
            if found["metadata"].get("deletionGracePeriodSeconds", 0) > 0:
                self._registry.delete(PODS, *self.key, Deletion(grace=0))
        await self._news.wait()

    async def _flow(self) -> None:
        """Everything that a pod does by itself."""
        await self._mount()
        await self._make_sandbox()
        self._supervisors: dict[str, asyncio.Task[object]] = {}
        for slot in self.inits:
            slot.state = {"waiting": {"reason": "PodInitializing"}}
            task = self._supervisors[slot.name] = self._spawn(slot.supervise())
            if slot.sidecar:
                await slot.went_up.wait()
            elif await asyncio.shield(task) != 0:
                self._failed = True
                return
        for slot in self.mains:
            self._supervisors[slot.name] = self._spawn(slot.supervise())
        await asyncio.wait([self._supervisors[slot.name] for slot in self.mains])

    async def _stop(self, grace: float) -> None:
        """Hooks of all at once; TERM to the others first, then to the sidecars from the last to the first."""
        order = [slot for slot in reversed(self.inits) if slot.sidecar]
        turns = {slot.name: asyncio.Event() for slot in order}
        ordinary = [self._spawn(slot.stop(grace, None)) for slot in self.slots if not slot.sidecar]
        stops = {slot.name: self._spawn(slot.stop(grace, turns[slot.name])) for slot in order}
        stopped = await asyncio.gather(*ordinary)
        for slot in order:
            if all(stopped) or not self._conduct.loses_ends:
                turns[slot.name].set()
            await stops[slot.name]

    async def _supervised(self) -> None:
        """Wait for those whose container has ended; the others wait for something that is no longer wanted."""
        for slot in self.slots:
            task = getattr(self, "_supervisors", {}).get(slot.name)
            if task is not None and not task.done():
                if "terminated" not in slot.state and slot.running is None:
                    task.cancel()
                await asyncio.wait({task}, timeout=2.0)
                task.cancel()

    async def _mount(self) -> None:
        while True:
            try:
                self._volumes.set_up(self.pod)
                return
            except NotReady as error:
                self._registry.tell(PODS, self.pod, *error.told(), warning=True)
                self._dirty.set()
                await asyncio.sleep(_MOUNT_RETRY_S)

    async def _make_sandbox(self) -> None:
        self.write_hosts()
        if self.pod["spec"].get("shareProcessNamespace") and self._conduct.imagined_s is None:
            self._holder = Process(lambda: None)
            await self._holder.start({"mode": "hold", "cut_off": self._is_cut_off()})
        self._sandbox = True
        self._write()

    def _is_cut_off(self) -> bool:
        return self._conduct.policies and is_cut_off(self._registry.store, self.pod)

    def write_hosts(self) -> None:
        """The pod's hosts file; kept as one file, because it is mounted."""
        if self._conduct.imagined_s is not None:
            return
        self._hosts.write_text(hosts_text(self._registry.store, self.pod, self.address))
        self._hosts.chmod(0o644)

    # What its containers ask of it.

    async def run(self, slot: Slot, image: Obj) -> Running:
        """Start a container."""
        pod, container = self.pod, slot.container
        shown = {
            **pod,
            "status": {**pod["status"], "podIP": self.address, "podIPs": [{"ip": self.address}], "hostIP": "127.0.0.1"},
        }
        environment = environment_of(shown, container, image, self._registry.store)
        user = user_of(pod, container, image)
        argv = argv_of(container, image, environment)
        if self._conduct.imagined_s is not None:
            if not slot.sidecar:
                return Imagined(self._conduct.imagined_s)
            job = pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name", "")
            slot.message_file.write_text(self._conduct.imagined_word.replace("%s", job))
            return Imagined(None)
        stage = slot.place / "stage"
        stage.mkdir(exist_ok=True)
        slot.message_file.write_bytes(b"")
        slot.message_file.chmod(0o666)
        counters = make_counters(slot)
        readonly = bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem"))
        limit = (container["resources"].get("limits") or {}).get("memory") if self._conduct.memory_limits else None
        process = Process(self._wake_readers)
        await process.start({
            "mode": "container", "argv": argv, "environment": {"HOME": "/", **environment}, "user": user,
            "cwd": container.get("workingDir") or image.get("cwd") or "/", "hostname": hostname_of(pod),
            "net_namespace": f"/proc/{self._holder.pid}/ns/net" if self._holder else "",
            "pid_namespace": f"/proc/{self._holder.pid}/ns/pid" if self._holder else "", "stage": str(stage),
            "cut_off": not self._holder and self._is_cut_off(),
            "mounts": self._mounts(slot, environment, counters), "readonly_root": readonly,
            "log": str(slot.log_file()), "log_bytes": self._conduct.log_bytes,
            "memory_events": str(counters / "memory.events"), "memory_limit": int(amount(limit)) if limit else 0,
        })  # fmt: skip
        return process

    def _mounts(self, slot: Slot, environment: dict[str, str], counters: Path) -> list[Obj]:
        files = {"/etc/hosts": self._hosts, "/sys/fs/cgroup": counters}
        return mounts_of(self.pod, slot, self._volumes, environment, self._conduct.image_paths, files)

    def _wake_readers(self) -> None:
        for event in self.logs_grew:
            event.set()

    def tell(self, slot: Slot, reason: str, message: str, *, warning: bool = False) -> None:
        """An Event about the pod."""
        self._registry.tell(PODS, self.pod, reason, message, "kubelet", warning=warning)

    def publish(self) -> None:
        """Write the status soon."""
        self._dirty.set()

    async def _publish_often(self) -> None:
        while not self.gone:
            await self._dirty.wait()
            self._dirty.clear()
            self._write()
            await asyncio.sleep(0.02)

    def _write(self) -> None:
        if self.offline or self.gone or self.pod["metadata"]["uid"] != self.uid:
            return
        found = self._registry.store.get(PODS, *self.key)
        if found is None or found["metadata"]["uid"] != self.uid:
            return
        self._registry.change(PODS, *self.key, self._fill)

    def _fill(self, pod: Obj) -> None:
        fill(
            pod, self.inits, self.mains, over=self.over, failed=self._failed,
            address=self.address if self._sandbox else "", reason=self._reason, message=self._message,
        )  # fmt: skip
        pod["status"].setdefault("startTime", pod["metadata"]["creationTimestamp"])

    def cut_power(self) -> None:
        """Its node is without power: every process ends, nobody writes it down."""
        self.offline = True
        for slot in self.slots:
            slot.stopping = True
            if slot.running is not None:
                slot.running.kill()

    async def dead(self) -> None:
        """Until none of its processes is left."""
        for slot in self.slots:
            if slot.running is not None:
                await asyncio.shield(slot.running.ended)
        if self._holder is not None:
            await self._holder.release()

    def _clean(self) -> None:
        for task in list(self.tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._wake_readers()
        shutil.rmtree(self._place, ignore_errors=True)
