"""One container of a pod over its life: pulled, started, probed, started anew, ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.kubelet.environment import ConfigError
from tests.fakes.kubernetes.kubelet.images import Images, PullFailed
from tests.fakes.kubernetes.kubelet.process import End, Running, StartFailed
from tests.fakes.kubernetes.store import now

_MESSAGE_BYTES, _FALLBACK_BYTES, _FALLBACK_LINES = 4096, 2048, 80
_HOOK_LEFT_S = 2.0


class Host(Protocol):
    """What a container needs of its pod."""

    images: Images
    backoff_s: float
    probe_s: float

    async def run(self, slot: Slot, image: Obj) -> Running: ...

    def publish(self) -> None: ...

    def tell(self, slot: Slot, reason: str, message: str, *, warning: bool = False) -> None: ...


class Slot:
    """A container. `always`: it is started anew whatever its end (a native sidecar, or the pod's policy)."""

    def __init__(self, host: Host, container: Obj, *, init: bool, policy: str, place: Path) -> None:
        self._host, self.container, self.init = host, container, init
        self.name = str(container["name"])
        self.sidecar = init and container.get("restartPolicy") == "Always"
        self._policy = "Always" if self.sidecar else ("OnFailure" if init and policy == "Always" else policy)
        self.place = place
        self.state: Obj = {"waiting": {"reason": "PodInitializing"}}
        self.last: Obj = {}
        self.restarts = 0
        self.started = self.ready = False
        self.identity = ""
        self.running: Running | None = None
        self.code: int | None = None
        self.went_up = asyncio.Event()
        self.stopping = False
        self.forced = ""
        """A reason that takes the place of the runtime's."""

    @property
    def message_file(self) -> Path:
        return self.place / "termination-log"

    def log_file(self, *, previous: bool = False) -> Path:
        """The log of this run, or of the one before."""
        return self.place / f"{max(self.restarts - previous, 0)}.log"

    async def supervise(self) -> int:
        """Run it until it has ended for good; its exit code."""
        pause = self._host.backoff_s
        while True:
            code = await self._once()
            if self.stopping or not self._again(code):
                self.code = code
                return code
            self.last, self.state = dict(self.state), {"waiting": {"reason": "CrashLoopBackOff"}}
            if self.restarts:
                message = f"back-off {pause:g}s restarting failed container={self.name}"
                self.state["waiting"]["message"] = message
                self._host.tell(self, "BackOff", f"Back-off restarting failed container {self.name}", warning=True)
                self._host.publish()
                await asyncio.sleep(pause)
                pause = min(pause * 2, 300.0)
            self.restarts += 1

    def _again(self, code: int) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and code != 0)

    async def _once(self) -> int:
        running = await self._start()
        if running is None:
            return 128
        probes = asyncio.create_task(self._probe())
        try:
            end = await asyncio.shield(running.ended)
        finally:
            probes.cancel()
        self._ended(end)
        return end.code

    async def _start(self) -> Running | None:
        """Started, or None of one that the runtime could not start."""
        image = await self._pull()
        while True:
            try:
                running = await self._host.run(self, image)
                break
            except ConfigError as error:
                self._wait("CreateContainerConfigError", str(error))
                self._host.tell(self, "Failed", f"Error: {error}", warning=True)
                await asyncio.sleep(self._host.backoff_s)
            except StartFailed as error:
                text = (
                    f"failed to create containerd task: failed to create shim task: OCI runtime create failed: {error}"
                )
                self.identity = f"containerd://{uuid4().hex}{uuid4().hex}"
                self.state = {"terminated": {
                    "exitCode": 128, "reason": "StartError", "message": text, "startedAt": "1970-01-01T00:00:00Z",
                    "finishedAt": now(), "containerID": self.identity,
                }}  # fmt: skip
                self._host.tell(self, "Failed", f"Error: {text}", warning=True)
                self._host.publish()
                return None
        self.running = running
        self.identity = f"containerd://{uuid4().hex}{uuid4().hex}"
        self.state = {"running": {"startedAt": now()}}
        self._host.tell(self, "Started", "Container started")
        self._host.publish()
        return running

    async def _pull(self) -> Obj:
        pause = self._host.backoff_s
        while True:
            name = str(self.container["image"])
            try:
                return self._host.images.get(name, self.container["imagePullPolicy"])
            except PullFailed as error:
                self._wait(error.reason, str(error))
                self._host.tell(self, "Failed", f'Failed to pull image "{name}": {error}', warning=True)
                self._host.tell(self, "Failed", f"Error: {error.reason}", warning=True)
                await asyncio.sleep(pause / 2)
                if error.reason == "ErrImagePull":
                    self._wait("ImagePullBackOff", f'Back-off pulling image "{name}": ErrImagePull: {error}')
                    self._host.tell(self, "BackOff", f'Back-off pulling image "{name}"')
                await asyncio.sleep(pause / 2)

    def _wait(self, reason: str, message: str = "") -> None:
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        self._host.publish()

    def _ended(self, end: End) -> None:
        begun = self.state.get("running", {}).get("startedAt", now())
        reason = self.forced or ("OOMKilled" if end.oom else "Completed" if end.code == 0 else "Error")
        ended: Obj = {
            "exitCode": end.code, "reason": reason, "startedAt": begun, "finishedAt": now(),
            "containerID": self.identity,
        }  # fmt: skip
        message = self._message(end)
        if message:
            ended["message"] = message
        self.state, self.running = {"terminated": ended}, None
        self.started = self.ready = False
        self._host.publish()

    def _message(self, end: End) -> str:
        data = b""
        with contextlib.suppress(OSError):
            data = self.message_file.read_bytes()[-_MESSAGE_BYTES:]
        if not data and end.code and self.container["terminationMessagePolicy"] == "FallbackToLogsOnError":
            with contextlib.suppress(OSError):
                lines = self.log_file().read_bytes().splitlines(keepends=True)[-_FALLBACK_LINES:]
                data = b"".join(line.split(b" ", 3)[-1] for line in lines)[-_FALLBACK_BYTES:]
        return data.decode(errors="replace")

    async def _probe(self) -> None:
        """The probes of one run; a container that fails one is killed."""
        hook = self.container.get("lifecycle", {}).get("postStart", {}).get("exec")
        if hook and self.running is not None:
            await self.running.execute(hook["command"], None)
        if not await self._until(self.container.get("startupProbe"), "startup"):
            return
        self.started = True
        readiness = self.container.get("readinessProbe")
        self.ready = readiness is None
        self.went_up.set()
        self._host.publish()
        watch = [asyncio.create_task(self._readiness(readiness))] if readiness else []
        try:
            liveness = self.container.get("livenessProbe")
            while liveness and await self._alive(liveness):
                pass
            if not liveness:
                await asyncio.Event().wait()
        finally:
            for task in watch:
                task.cancel()

    async def _until(self, probe: Obj | None, what: str) -> bool:
        """Whether it succeeded before it had failed too often."""
        if probe is None:
            return True
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        for _ in range(probe["failureThreshold"]):
            if await self._good(probe, what):
                return True
            await self._pause(probe)
        await self._killed_by_probe(what)
        return False

    async def _alive(self, probe: Obj) -> bool:
        for _ in range(probe["failureThreshold"]):
            await self._pause(probe)
            if await self._good(probe, "liveness"):
                return True
        await self._killed_by_probe("liveness")
        return False

    async def _readiness(self, probe: Obj) -> None:
        while True:
            await self._pause(probe)
            ready = await self._good(probe, "readiness")
            if ready != self.ready:
                self.ready = ready
                self._host.publish()

    async def _pause(self, probe: Obj) -> None:
        await asyncio.sleep(min(probe["periodSeconds"], self._host.probe_s))

    async def _good(self, probe: Obj, what: str) -> bool:
        if self.running is None:
            return True
        code, output = await self.running.execute(probe["exec"]["command"], probe["timeoutSeconds"])
        if code != 0:
            self._host.tell(self, "Unhealthy", f"{what.capitalize()} probe failed: {output}", warning=True)
        return code == 0

    async def _killed_by_probe(self, what: str) -> None:
        self._host.tell(self, "Killing", f"Container {self.name} failed {what} probe, will be restarted")
        # The run's end cancels the probes, and so this task: another one sees to the end.
        self._killer = asyncio.create_task(self.stop(self.container.get("terminationGracePeriodSeconds", 30.0), None))

    async def stop(self, grace: float, turn: asyncio.Event | None) -> bool:
        """preStop, then (in its turn) TERM, then KILL. Whether it had not ended by itself when it was to be ended."""
        running = self.running
        if running is None:
            return True
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        hook = self.container.get("lifecycle", {}).get("preStop", {}).get("exec")
        if hook and grace > 0:
            code, output = await running.execute(hook["command"], grace)
            if code not in (0, 137):
                self._host.tell(self, "FailedPreStopHook", f"PreStopHook failed: {output}", warning=True)
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
        """Nothing is known of it: its node was cut off."""
        if "terminated" not in self.state:
            self.state = {"terminated": {
                "exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None,
                "message": "The container could not be located when the pod was terminated",
            }}  # fmt: skip

    def status(self, room: int) -> Obj:
        """As the pod's status has it; `room` is for the termination message."""
        state: Any = {key: dict(value) for key, value in self.state.items()}
        message, done = state.get("terminated", {}).get("message"), state.get("terminated", {}).get("exitCode") == 0
        if message:
            state["terminated"]["message"] = message.encode()[:room].decode(errors="ignore")
        return {
            "name": self.name, "image": self.container["image"],
            "imageID": f"sha256:{self.container['image']}" if self.identity else "",
            "state": state, "lastState": self.last, "restartCount": self.restarts,
            "ready": self.ready if "running" in state else self.init and done,
            "started": self.started, **({"containerID": self.identity} if self.identity else {}),
        }  # fmt: skip
