"""Runs the controller of a pod and the shim of its learner's container as processes, with directories as volumes.

The learner's container is a root of its own in a mount namespace of its own, on this machine's tree of processes: that
is what containers of a pod with `shareProcessNamespace` have. Its programs are this machine's. Needs root.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.controller.own_program import _START
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.launch.launch_file import (
    EnvDelivery,
    HostVariables,
    LaunchFile,
    LearnerCommand,
    Pod,
    Seat,
    encode,
)
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.domain.launch.pod_protocol import INDEX, PREFIX, SHIM, Frame, FrameKind, decode_frame
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, decode_events
from ffdl_batch.host.processes import all_processes
from ffdl_batch.runtimes.learner_contract import (
    PROTECTED,
    Learners,
    Places,
    bare_layout,
    container_layout,
    learner_environment,
)
from ffdl_batch.runtimes.pod import (
    SHIM_TEXT,
    WORKING_DIR,
    PodMount,
    learner_mounts,
    pre_stop_argv,
    shim_argv,
    stand_in_argv,
)  # fmt: skip
from tests import preloaded
from tests.contract.controller_rig import MARK, ROOT, await_true, job_id

LIMITS = Limits(grace_s=60, kill_wait_s=3, heartbeat_s=0.5)
SYSTEM = ("usr", "bin", "sbin", "lib", "lib64", "etc", "dev", "proc", "sys")
PATIENCE_S = 120


class PodRig:
    """Pod number `index` of an attempt."""

    def __init__(self, base: Path, index: int = 0) -> None:
        self.base, self.index = base, index
        self.pod, self.root = base / "pod", base / "root"
        self.job = JobDir(str(base / "tree" / "jobs" / job_id()))
        self.attempt = AttemptDir(f"{self.job.path}/attempt-1")
        self.plan, self.model, self.private, self.annotations = (
            base / "in" / n for n in ("plan", "model", "private", "annotations")
        )
        for directory in (self.plan, self.model, self.private, self.annotations, self.pod, Path(self.job.path)):
            directory.mkdir(parents=True)
        self.seat = self.pod / "seat"
        self.message = base / "message"
        self.mounts: list[PodMount] = []
        self.shell = "/bin/sh"
        self.hidden: tuple[str, ...] = ()
        """Files that the learner's image lacks."""
        self.cgroup: Path | None = None
        """What the container sees as its control group."""
        self.sidecar: subprocess.Popen[bytes] | None = None
        self.container: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    # ---------------------------------------------------------------------------------------------- the plan

    def write(
        self,
        command: str,
        /,
        *,
        model: Mapping[str, str] | None = None,
        user_env: Mapping[str, str] | None = None,
        learners: int = 1,
        bare: bool = False,
        **changes: object,
    ) -> LaunchFile:
        """What the pod is given. `bare`: the learner's container sees the directories by their own paths."""
        places = Places(self.job, self.attempt, job_id())
        layout = bare_layout(places) if bare else container_layout(places)
        env = learner_environment(Learners(job_id(), command, learners), layout)
        env |= {name.upper(): f"{{{name}}}" for name in ("rank", "node_rank", "master_addr", "master_port", "hostname")}
        env[MARK] = literal(str(self.base))
        controller = ("{python}", "-I", "-S", "-c", literal(_START), "{controller}")
        argv = stand_in_argv(controller)
        if bare:
            argv = tuple(self.attempt.state if word == WORKING_DIR else word for word in argv)
        learner = LearnerCommand(argv, env, EnvDelivery.FILE, protected=PROTECTED)
        launch = LaunchFile(
            job_id(), 1, f"{job_id()}-1", self.job.path, self.attempt.path, str(self.pod / "doorbell"), learner,
            model_archive=self.job.model_archive,
            limits=LIMITS,
            scratch_base=str(self.pod / "scratch"),
            make_dirs=layout.make_dirs,
            checkpoints=self.job.checkpoints,
            learners=learners,
            nodes=learners,
            seats=tuple(Seat(node, index=node) for node in range(learners)),
            names="learner-x",
            host=HostVariables(address="FFDL_POD_IP", gpus=""),
            pod=Pod(str(self.pod)),
        )  # fmt: skip
        launch = dataclasses.replace(launch, **changes)  # type: ignore[arg-type]
        (self.plan / "launch.json").write_text(encode(launch))
        (self.plan / SHIM).write_text(SHIM_TEXT)
        (self.private / "environment.json").write_text(json.dumps(dict(user_env or {})))
        (self.private / "secrets.json").write_text(json.dumps({"token": "s3cret"}))
        self._give_model(model or {"main.py": "print('model')\n"})
        self.mounts = learner_mounts(layout, self.job.path, self.attempt, learners, named=True)
        return launch

    def _give_model(self, files: Mapping[str, str]) -> None:
        path = self.base / "model.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        data = path.read_bytes()
        half = len(data) // 2
        for number, part in enumerate((data[:half], data[half:])):
            (self.model / f"model.zip.{number:03d}").write_bytes(part)

    def annotate(self, name: str, text: str) -> None:
        """Set an annotation, as kubelet does: by a rename."""
        temporary = self.annotations / f".{name}"
        temporary.write_text(text)
        temporary.replace(self.annotations / name)

    # --------------------------------------------------------------------------------------------- processes

    @property
    def environment(self) -> dict[str, str]:
        """Of both containers."""
        own = {"HOSTNAME": f"pod-{self.index}", INDEX: str(self.index), MARK: str(self.base)}
        return {"PATH": os.environ["PATH"], **own}

    def start(self) -> None:
        """The controller's container."""
        given = [
            "--model",
            self.model,
            "--private",
            self.private,
            "--annotations",
            self.annotations,
            "--message",
            self.message,
        ]
        argv = [sys.executable, "-I", "-S", "-c", _START, ROOT, "pod", "--launch", self.plan / "launch.json", *given]
        env = {**self.environment, "FFDL_NATIVE_ID": f"{job_id()}-1", "FFDL_POD_IP": f"127.0.1.{self.index + 1}"}
        with (self.base / "said").open("ab") as said, (self.base / "errors").open("ab") as errors:
            self.sidecar = preloaded.PopenTree(
                [str(word) for word in argv], env=env, stdout=said, stderr=errors, start_new_session=True
            )
        self._started.append(self.sidecar)

    def start_learner(self) -> None:
        """The learner's container, once the controller's has loaded everything."""
        self.wait((self.seat / "open").exists, "the learner's container may start")
        lines = [
            "set -e",
            "mount --make-rprivate /",
            f"mount -t tmpfs root {self.root}",
            *(f"mkdir {self.root}/{name}; mount --rbind /{name} {self.root}/{name}" for name in SYSTEM),
            f"mkdir -p -m 1777 {self.root}/tmp {self.root}/ffdl-seat",
            f"mount --bind {self.seat} {self.root}/ffdl-seat",
            *(line for mount in self.mounts for line in self._mount(mount)),
        ]
        for path in self.hidden:
            if Path(path).exists():
                empty = self.base / "no-program"
                empty.touch(mode=0o600)
                lines.append(f"mount --bind {empty} {self.root}{path}")
        if self.cgroup:
            lines.append(f"mount --bind {self.cgroup} {self.root}/sys/fs/cgroup")
        lines.append(f"exec chroot {self.root} {shlex.join((self.shell, *shim_argv()[1:]))}")
        self.root.mkdir(exist_ok=True)
        argv = ["setsid", "unshare", "--mount", "/bin/sh", "-c", "\n".join(lines)]
        env = {**self.environment, "IMAGE_SAYS": "kept"}
        with (self.base / "container").open("ab") as said:
            self.container = subprocess.Popen(argv, env=env, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        self._started.append(self.container)

    def _mount(self, mount: PodMount) -> Iterator[str]:
        below = mount.sub_path.replace(f"$({INDEX})", str(self.index))
        source = {"work": Path(self.job.path), "pod": self.pod}[mount.volume] / below
        target = f"{self.root}{mount.target}"
        if not mount.target.startswith("/etc/"):
            yield f"mkdir -p {target}"
        yield f"mount --bind {source} {target}"
        if mount.read_only:
            yield f"mount -o remount,bind,ro {target}"

    def delete(self) -> None:
        """What kubelet does when the pod is deleted: the hook, in the learner's container, and then TERM to it."""
        assert self.container is not None
        hook = f"{shlex.join(pre_stop_argv(str(self.seat)))}; kill -TERM {self.container.pid} 2>/dev/null"
        self._started.append(subprocess.Popen(["/bin/sh", "-c", hook], env=self.environment, start_new_session=True))

    def run(self) -> tuple[int, int]:
        """Both containers until the learner's has ended, then as kubelet does; (learner's, controller's) status."""
        self.start()
        self.start_learner()
        return self.end()

    def end(self) -> tuple[int, int]:
        """Wait for the learner's container, then end the controller's."""
        assert self.container is not None
        code = self.container.wait(timeout=PATIENCE_S)
        return code, self.end_sidecar()

    def end_sidecar(self) -> int:
        """TERM, and its exit status."""
        assert self.sidecar is not None
        self.sidecar.terminate()
        return self.sidecar.wait(timeout=PATIENCE_S)

    def kill_sidecar(self) -> None:
        """As a container that dies: its first process, and then all of the others in it."""
        assert self.sidecar is not None
        self.sidecar.kill()
        self.sidecar.wait()
        own = self._of_learner()
        while left := [pid for pid in self.processes() if pid not in own]:
            for pid in left:
                _kill(pid)

    def _of_learner(self) -> set[int]:
        """Who has other mounts than this test."""
        return {pid for pid in self.processes() if _mounts(pid) not in ("", _mounts(os.getpid()))}

    def learner_pids(self) -> list[int]:
        """Processes of the learner's container, the shim among them."""
        return sorted(self._of_learner())

    def processes(self) -> list[int]:
        """All that carry the rig's mark."""
        return [pid for pid in all_processes() if pid != os.getpid() and _marked(pid, f"{MARK}={self.base}")]

    def finish(self) -> None:
        """End what is left, by pid."""
        for pid in self.processes():
            _kill(pid)
        for process in self._started:
            process.wait(timeout=PATIENCE_S)

    # ------------------------------------------------------------------------------------------ what was said

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds."""
        await_true(condition, lambda: f"not in time: {what}; {self.errors}; {self.container_said}", PATIENCE_S)

    @property
    def errors(self) -> str:
        """What the controllers complained about."""
        path = self.base / "errors"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def container_said(self) -> str:
        """What the shim itself said: nothing."""
        path = self.base / "container"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def lines(self) -> list[str]:
        """Of the controller's standard output, as far as they are whole."""
        return (self.base / "said").read_bytes().rpartition(b"\n")[0].decode("ascii").splitlines()

    def frames(self) -> list[Frame]:
        """What the pod said until now."""
        found = [decode_frame(line) for line in self.lines if line.startswith(PREFIX)]
        assert None not in found
        return [frame for frame in found if frame is not None]

    def events(self, source: str = "") -> list[Event]:
        """Of one writer."""
        path = Path(self.attempt.event_file(source or f"node-{self.index}"))
        return decode_events(path.read_text()) if path.exists() else []

    def log(self) -> str:
        """The learner's."""
        path = Path(self.attempt.training_log(self.index + 1))
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_log(self, text: str) -> None:
        """Until the learner has printed it."""
        self.wait(lambda: text in self.log(), f"{text!r} in the log: {self.log()!r}")

    def wait_for_event(self, kind: EventKind) -> None:
        """Until the pod's node controller has told of it."""
        self.wait(lambda: any(event.kind is kind for event in self.events()), kind.value)

    def final(self) -> FinalRecord:
        """The final record."""
        return from_plain(FinalRecord, json.loads(Path(self.attempt.final).read_text()))


class TinyMirror:
    """Applies frames to files in memory, whatever order and how often they are read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cells: dict[str, bytes] = {}
        self.gaps: dict[str, int] = {}

    def apply(self, frames: list[Frame]) -> TinyMirror:
        """All of them."""
        for frame in frames:
            if frame.kind in (FrameKind.APPEND, FrameKind.LOG):
                have = self.files.get(frame.file, b"")
                if frame.offset <= len(have):
                    self.files[frame.file] = have + frame.data[len(have) - frame.offset :]
                    self.gaps.pop(frame.file, None)
                else:
                    self.gaps[frame.file] = len(have)
            elif frame.kind is FrameKind.CELL:
                part = b"" if frame.offset == 0 else self.cells[frame.file]
                self.cells[frame.file] = part + frame.data
        return self


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _mounts(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""


def _marked(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


@contextmanager
def pods(base: Path, count: int = 1) -> Iterator[list[PodRig]]:
    """Pods that leave no process behind."""
    made = []
    for index in range(count):
        (base / f"p{index}").mkdir()
        made.append(PodRig(base / f"p{index}", index))
    try:
        yield made
    finally:
        for one in made:
            one.finish()


def shells() -> list[str]:
    """Shells of this machine that have no more than POSIX asks for."""
    found = [path for name in ("dash", "busybox") for path in [shutil.which(name)] if path]
    return found or ["/bin/sh"]
