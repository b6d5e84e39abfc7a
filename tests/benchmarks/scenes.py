"""Where parts are killed: a place on this machine, or a desk of the real cluster. The same words for both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, decode_events
from tests.benchmarks.place import Place, await_true
from tests.cluster.rig import Cluster
from tests.proof.desk import SOURCE, VENV_PYTHON, Desk

NODESIDE = Path(__file__).with_name("nodeside")
STOPPING = "tests.fakes.daemon_that_stops"


class Scene(Protocol):
    """One user with a daemon. `base` is their directory, as their commands name it."""

    @property
    def where(self) -> str:
        """For the table."""
        ...

    @property
    def base(self) -> Path:
        """See the class."""
        ...

    def run(self, *argv: str, check: bool = True) -> str:
        """Standard output of a command of the user's."""
        ...

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """A command of the user's that goes on."""
        ...

    def program(self, name: str) -> Sequence[str]:
        """The argv of a program of `nodeside`."""
        ...

    def seen_here(self, path: str) -> Path:
        """Where this process finds one of the user's files."""
        ...

    def kill(self, host: str, pid: int) -> None:
        """KILL to a process of a node."""
        ...

    def daemon_pid(self) -> int | None:
        """The running daemon, as this process sees it."""
        ...

    def start_stopping(self, plan: Path) -> subprocess.Popen[Any]:
        """A daemon that dies by `plan` (see tests.fakes.daemon_that_stops), once it answers."""
        ...


class Here:
    """A place on this machine."""

    def __init__(self, place: Place, where: str) -> None:
        self.place, self.where = place, where
        self.base = place.base

    def run(self, *argv: str, check: bool = True) -> str:
        """See :class:`Scene`."""
        environ = self.place.environment()
        done = subprocess.run(argv, env=environ, cwd=self.base, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{list(argv)} ended with {done.returncode}: {done.stderr[-1500:]}")
        return done.stdout

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """See :class:`Scene`."""
        environ = self.place.environment()
        return subprocess.Popen(
            argv, env=environ, cwd=self.base, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def program(self, name: str) -> Sequence[str]:
        """See :class:`Scene`."""
        return (sys.executable, str(NODESIDE / f"{name}.py"))

    def seen_here(self, path: str) -> Path:
        """See :class:`Scene`."""
        return Path(path)

    def kill(self, host: str, pid: int) -> None:
        """See :class:`Scene`."""
        del host
        os.kill(pid, signal.SIGKILL)

    def daemon_pid(self) -> int | None:
        """See :class:`Scene`."""
        return self.place.daemon_pid()

    def start_stopping(self, plan: Path) -> subprocess.Popen[Any]:
        """See :class:`Scene`."""
        return self.place.launch(STOPPING, TEST_PLAN=str(plan))


class AtDesk:
    """A desk of the real cluster."""

    def __init__(self, cluster: Cluster, desk: Desk) -> None:
        self.cluster, self.desk = cluster, desk
        self.where, self.base = "real Slurm", Path(desk.base)

    def run(self, *argv: str, check: bool = True) -> str:
        """See :class:`Scene`."""
        return self.desk.run(*argv, check=check, timeout_s=300.0).stdout

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """See :class:`Scene`."""
        return self.desk.popen(*argv)

    def program(self, name: str) -> Sequence[str]:
        """See :class:`Scene`."""
        return (VENV_PYTHON, f"{SOURCE}/tests/benchmarks/nodeside/{name}.py")

    def seen_here(self, path: str) -> Path:
        """See :class:`Scene`."""
        return self.desk.host_path(path)

    def kill(self, host: str, pid: int) -> None:
        """See :class:`Scene`."""
        self.cluster.run(host, ["kill", "-KILL", str(pid)])

    def daemon_pid(self) -> int | None:
        """See :class:`Scene`."""
        return self.desk.host_pid()

    def start_stopping(self, plan: Path) -> subprocess.Popen[Any]:
        """See :class:`Scene`."""
        state = f"FFDL_STATE_DIR={self.desk.base}/state"
        words = ["env", f"TEST_PLAN={plan}", f"PYTHONPATH={SOURCE}", state, VENV_PYTHON, "-m", STOPPING, "--personal"]
        process = self.desk.popen(*words)
        await_true(lambda: self.daemon_pid() is not None, "the daemon that is to die")
        self.run("ffdl", "list")  # a client waits for a daemon that holds the lock, and starts none
        return process


def end_daemon(scene: Scene, number: signal.Signals) -> None:
    """End the scene's daemon, if one runs, and wait until it is gone."""
    pid = scene.daemon_pid()
    if pid is not None:
        os.kill(pid, number)
        await_true(lambda: scene.daemon_pid() is None, "the end of the daemon", pause_s=0.005)


def victim(scene: Scene, job_dir: str, kind: str) -> tuple[str, int]:
    """Host and pid of the head, the node controller or the learner of a job's first attempt, by its own events."""
    attempt = AttemptDir(f"{job_dir}/attempt-1")
    source, wanted = _WHERE_TOLD[kind]
    found: list[Event] = []

    def is_told() -> bool:
        path = scene.seen_here(attempt.event_file(source))
        events = decode_events(path.read_text(encoding="utf-8")) if path.exists() else []
        found.extend(event for event in events if event.kind is wanted)
        return bool(found)

    await_true(is_told, f"the {kind} of {job_dir} to begin")
    return str(found[-1].fields["host"]), int(found[-1].fields["pid"] or 0)


_WHERE_TOLD = {
    "head": ("head", EventKind.STARTED),
    "node": ("node-0", EventKind.STARTED),
    "learner": ("node-0", EventKind.LEARNER_STARTED),
}
