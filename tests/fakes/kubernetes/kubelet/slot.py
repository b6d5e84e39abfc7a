"""One container of a pod over its life: pulled, started, probed, started again, ended; and the status of the pod."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.kubelet.conduct import PullFailed
from tests.fakes.kubernetes.kubelet.environment import ConfigError
from tests.fakes.kubernetes.kubelet.process import End, Running, StartFailed
from tests.fakes.kubernetes.objects import now, set_condition

if TYPE_CHECKING:
    from tests.fakes.kubernetes.kubelet.worker import Worker

_MESSAGE_BYTES, _MESSAGES_BYTES = 4096, 12 * 1024
"""Of a termination message, and of all of a pod."""
_HOOK_LEFT_S = 2.0


class Slot:
    """A container. `policy` is when it is started again: Always for sidecars, else its pod's."""

    def __init__(self, host: Worker, container: Obj, place: Path, policy: str, *, waits_for: str) -> None:
        self._host, self.container, self.place, self._policy = host, container, place, policy
        self.name = str(container["name"])
        self.state: Obj = {"waiting": {"reason": waits_for}}
        self._last: Obj = {}
        self.restarts = 0
        self.started = self.stopping = False
        self.running: Running | None = None
        self.code: int | None = None
        self.went_up = asyncio.Event()
        self.message_file = place / "termination-log"

    def log_file(self, *, previous: bool = False) -> Path:
        return self.place / f"{max(self.restarts - previous, 0)}.log"

    async def supervise(self) -> int:
        """Run it until it has ended for good; return its exit code."""
        pause = self._host.conduct.backoff_s
        while True:
            code = await self._once()
            again = self._policy == "Always" or (self._policy == "OnFailure" and code != 0)
            if self.stopping or not again:
                self.code = code
                return code
            self._last = dict(self.state)
            message = f"back-off {pause:g}s restarting failed container={self.name}"
            self.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            if self.restarts:  # the first time it is started again at once
                self._host.publish()
                await asyncio.sleep(pause)
                pause = min(pause * 2, 300.0)
            self.restarts += 1

    async def _once(self) -> int:
        running = await self._start()
        if running is None:
            return 128
        probes = asyncio.create_task(self._probe(running))
        try:
            end = await asyncio.shield(running.ended)
        finally:
            probes.cancel()
        self._ended(end)
        return end.code

    async def _start(self) -> Running | None:
        """Start it; None of one that the runtime could not start."""
        image, pause = await self._pull(), self._host.conduct.backoff_s
        while True:
            try:
                running = await self._host.run(self, image)
                break
            except ConfigError as error:
                self._wait("CreateContainerConfigError", str(error))
                await asyncio.sleep(pause)
            except StartFailed as error:
                what = "failed to create containerd task: failed to create shim task: OCI runtime create failed"
                self.state = {"terminated": {
                    "exitCode": 128, "reason": "StartError", "message": f"{what}: {error}",
                    "startedAt": "1970-01-01T00:00:00Z", "finishedAt": now(),
                }}  # fmt: skip
                self._host.publish()
                return None
        self.running = running
        self.state = {"running": {"startedAt": now()}}
        self._host.publish()
        return running

    async def _pull(self) -> Obj:
        name, pause = str(self.container["image"]), self._host.conduct.backoff_s
        while True:
            try:
                return self._host.conduct.images.get(name)
            except PullFailed as error:
                self._wait("ErrImagePull", str(error))
                await asyncio.sleep(pause / 2)
                self._wait("ImagePullBackOff", f'Back-off pulling image "{name}": ErrImagePull: {error}')
                await asyncio.sleep(pause / 2)

    def _wait(self, reason: str, message: str) -> None:
        self.state = {"waiting": {"reason": reason, "message": message}}
        self._host.publish()

    def _ended(self, end: End) -> None:
        ended: Obj = {
            "exitCode": end.code, "reason": "OOMKilled" if end.oom else "Error" if end.code else "Completed",
            "startedAt": self.state.get("running", {}).get("startedAt", now()), "finishedAt": now(),
        }  # fmt: skip
        with contextlib.suppress(OSError):
            if message := self.message_file.read_bytes()[-_MESSAGE_BYTES:]:
                ended["message"] = message.decode(errors="replace")
        self.state, self.running, self.started = {"terminated": ended}, None, False
        self._host.publish()

    async def _probe(self, running: Running) -> None:
        """The startup probe of one run; a container whose probe fails too often is killed."""
        probe = self.container.get("startupProbe")
        if probe and not await self._succeeds(probe, running):
            running.kill()
            return
        self.started = True
        self.went_up.set()
        self._host.publish()

    async def _succeeds(self, probe: Obj, running: Running) -> bool:
        for _ in range(probe["failureThreshold"]):
            if await running.execute(probe["exec"]["command"], probe["timeoutSeconds"]) == 0:
                return True
            await asyncio.sleep(min(probe["periodSeconds"], self._host.conduct.probe_s))
        return False

    async def stop(self, grace: float, turn: asyncio.Event | None) -> bool:
        """Run preStop, then (in its turn) send TERM, then KILL. Return whether it ran until then."""
        running = self.running
        if running is None:
            return True
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        hook = self.container.get("lifecycle", {}).get("preStop", {}).get("exec")
        if hook and grace > 0:
            await running.execute(hook["command"], grace)
        if turn is not None and not running.ended.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(turn.wait(), max(end - loop.time(), 0))
        if running.ended.done():
            return False
        left = max(end - loop.time(), _HOOK_LEFT_S if grace > 0 else 0.0)
        if left > 0:
            running.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(running.ended), left)
        running.kill()
        await asyncio.shield(running.ended)
        return True

    def lost(self) -> None:
        """Nothing is known of its end: its node was cut off."""
        if "terminated" not in self.state:
            self.state = {"terminated": {
                "exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None,
                "message": "The container could not be located when the pod was terminated",
            }}  # fmt: skip

    def status(self, room: int) -> Obj:
        """Return it as the pod's status has it; `room` is for the termination message."""
        state: Any = {key: dict(value) for key, value in self.state.items()}
        ended = state.get("terminated", {})
        if "message" in ended:
            ended["message"] = ended["message"].encode()[:room].decode(errors="ignore")
        return {
            "name": self.name, "image": self.container["image"],
            "imageID": "" if "waiting" in state and not self.restarts else f"sha256:{self.container['image']}",
            "state": state, "lastState": self._last, "restartCount": self.restarts, "ready": self.started,
        }  # fmt: skip


def fill_status(
    pod: Obj, inits: list[Slot], mains: list[Slot], *, over: bool, failed: bool, address: str, reason: str, message: str
) -> None:
    """Write the status into the pod. `over`: everything has ended for good; `failed`: whatever its containers say."""
    status, room = pod["status"], min(_MESSAGE_BYTES, _MESSAGES_BYTES // len([*inits, *mains]))
    begun = any("waiting" not in slot.state or slot.restarts for slot in mains)
    if over:
        status["phase"] = "Failed" if failed or any(slot.code != 0 for slot in mains) else "Succeeded"
    else:
        status["phase"] = "Running" if begun else "Pending"
    status["containerStatuses"] = [slot.status(room) for slot in mains]
    status["initContainerStatuses"] = [slot.status(room) for slot in inits]
    status.setdefault("startTime", pod["metadata"]["creationTimestamp"])
    if address:
        status["podIP"] = address
    if reason:
        status.update(reason=reason, message=message)
    set_condition(pod, "PodReadyToStartContainers", "True" if address and not over else "False")
    undone = [slot.name for slot in inits if not slot.went_up.is_set()]
    said = f"containers with incomplete status: [{' '.join(undone)}]"
    if undone and not (over and begun):
        set_condition(pod, "Initialized", "False", "ContainersNotInitialized", said)
    else:
        set_condition(pod, "Initialized", "True")
    unready = [slot.name for slot in [*inits, *mains] if not slot.started]
    said = f"containers with unready status: [{' '.join(unready)}]"
    if over:
        set_condition(pod, "Ready", "False", "PodFailed" if status["phase"] == "Failed" else "PodCompleted")
    elif unready:
        set_condition(pod, "Ready", "False", "ContainersNotReady", said)
    else:
        set_condition(pod, "Ready", "True")
