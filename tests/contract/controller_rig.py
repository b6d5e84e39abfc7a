"""Runs real controllers with real learners in a temporary directory, and cleans up every process they leave."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand, Stores, encode
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, decode_events
from ffdl_batch.host.processes import all_processes, status_field
from ffdl_batch.runtimes.learner_contract import PROTECTED, Layout, Learners, Places, bare_layout, learner_environment
from ffdl_batch.runtimes.learner_start import bare_argv
from tests import preloaded

ROOT = Path(__file__).parents[2]
LIMITS = Limits(grace_s=60, kill_wait_s=3, heartbeat_s=0.5)
"""Who is asked and answers has time; who does not is told how much in the test."""
MARK = "FFDL_RIG"
"""Variable by which the rig finds the processes that belong to one test."""

PATIENT = """
import sys
if "node" in sys.orig_argv:
    from ffdl_batch.controller.node import control_poller as watch
    watch.FRESH_S = 60.0
"""
"""No file system hangs here: a signal waits until the request is known, however long that takes."""

STEP = """
import os, subprocess, sys
nodes = [subprocess.Popen([sys.executable, "-m", "ffdl_batch.controller", "node", "--launch", sys.argv[1]],
         env={**os.environ, "FFDL_NODE_RANK": str(rank)}) for rank in range(int(sys.argv[2]))]
sys.exit(max(node.wait() for node in nodes))
"""


def job_id() -> str:
    """Name the job of this test run: controllers end leftover learners by the token, also those of other runs."""
    return f"training-{os.getpid():09d}"


def await_true(condition: Callable[[], object], why: Callable[[], str], patience_s: float = 120.0) -> None:
    """Look often at first: a condition may need many files, or all processes of this machine."""
    end, pause_s = time.monotonic() + patience_s, 0.02
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(pause_s)
        pause_s = min(0.1, pause_s * 1.25)


class Rig:
    """One attempt in `base`. Every method that waits fails the test after a generous time."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.job = JobDir(str(base / "jobs" / job_id()))
        self.attempt = AttemptDir(str(base / "jobs" / job_id() / "attempt-1"))
        self.store = base / "store"
        self.python = sys.executable
        self.controller: tuple[str, ...] = ("-m", "ffdl_batch.controller")
        self.env: dict[str, str] = {}
        self.said_in = base
        """Where the controllers' output and errors go."""
        self._started: list[subprocess.Popen[bytes]] = []
        os.makedirs(self.attempt.path, mode=0o700)  # noqa: PTH103 - AttemptDir gives texts

    def write(
        self,
        command: str,
        /,
        *,
        model: Mapping[str, str] | None = None,
        user_env: Mapping[str, str] | None = None,
        limits: Limits = LIMITS,
        places: Places | None = None,
        **changes: object,
    ) -> LaunchFile:
        """The launch file and what lies beside it."""
        layout = bare_layout(places or Places(self.job, self.attempt, job_id()))
        launch = LaunchFile(
            job_id=job_id(),
            attempt=1,
            token=f"{job_id()}-1",
            job_dir=self.job.path,
            attempt_dir=self.attempt.path,
            doorbell=str(self.base / "doorbell"),
            learner=self.learner(command, layout),
            model_archive=str(self.archive(model or {"main.py": "print('model')\n"})),
            stores=Stores(str(self.store), str(self.store), str(self.store / "_submitted_code" / "model.zip")),
            limits=limits,
            scratch_base=str(self.base),
            make_dirs=layout.make_dirs,
            checkpoints=self.job.checkpoints,
        )
        launch = dataclasses.replace(launch, **changes)  # type: ignore[arg-type]
        Path(self.attempt.launch).write_text(encode(launch))
        Path(self.attempt.environment).write_text(json.dumps(dict(user_env or {})))
        return launch

    def have_controllers_do(self, code: str = "") -> None:
        """Each of them, as it begins; what it is says `sys.orig_argv`, in which is ``head`` or ``node``."""
        place = self.base / "site"
        place.mkdir(exist_ok=True)
        (place / "sitecustomize.py").write_text(PATIENT + code)
        self.env["PYTHONPATH"] = f"{place}{os.pathsep}{ROOT}"

    def learner(self, command: str, layout: Layout, learners: int = 1) -> LearnerCommand:
        """A learner without a container."""
        env = learner_environment(Learners(job_id(), command, learners), layout)
        env |= {name.upper(): f"{{{name}}}" for name in ("rank", "local_rank", "node_rank", "master_addr")}
        env["WORLD_SIZE"] = str(learners)
        env[MARK] = literal(str(self.base))
        return LearnerCommand(argv=bare_argv(), env=env, protected=PROTECTED)

    def archive(self, files: Mapping[str, str]) -> Path:
        """A model archive; names go in as they are."""
        path = self.base / "model.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return path

    def start(self, *arguments: str, native_id: str = "7", **env: str) -> subprocess.Popen[bytes]:
        """A controller; `head` unless told otherwise."""
        argv = [self.python, *self.controller, *(arguments or ("head",)), "--launch", self.attempt.launch]
        full = {**os.environ, **self.env, **env, "FFDL_NATIVE_ID": native_id, MARK: str(self.base)}
        full.setdefault("PYTHONPATH", str(ROOT))
        said = self.said_in
        with (said / "controller.err").open("ab") as errors, (said / "controller.out").open("ab") as output:
            self._started.append(preloaded.PopenTree(argv, env=full, stdout=output, stderr=errors))
        return self._started[-1]

    def run(self, *arguments: str, native_id: str = "7", **env: str) -> int:
        """A controller until it ends; its exit code."""
        process = self.start(*arguments, native_id=native_id, **env)
        return process.wait(timeout=240)

    def is_running(self) -> bool:
        """Whether the controller that was started last has not ended."""
        return self._started[-1].poll() is None

    def await_end(self) -> int:
        """The exit code of the controller that was started last."""
        return self._started[-1].wait(timeout=240)

    def final(self) -> FinalRecord:
        """The final record."""
        return from_plain(FinalRecord, json.loads(Path(self.attempt.final).read_text()))

    def events(self, source: str = "node-0") -> list[Event]:
        """Events of one writer so far."""
        return decode_events(content(Path(self.attempt.event_file(source))).decode())

    def ended(self, source: str = "node-0") -> list[Mapping[str, object]]:
        """The fields of the learners' endings."""
        return [dict(e.fields) for e in self.events(source) if e.kind is EventKind.LEARNER_ENDED]

    def log(self, learner: int = 1) -> str:
        """A learner's log, "" as long as there is none."""
        return content(Path(self.attempt.training_log(learner))).decode(errors="replace")

    @property
    def errors(self) -> str:
        """Standard error of all controllers so far."""
        return content(self.said_in / "controller.err").decode(errors="replace")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds."""
        await_true(condition, lambda: f"{what} did not happen; {self.errors}")

    def wait_for_log(self, text: str) -> None:
        """Until the learner's log holds the text, and the event of its start is there, which another thread writes."""
        await_true(
            lambda: text in self.log(),
            lambda: f"{text!r} in the log did not happen; {[e.kind for e in self.events()]}; {self.errors}",
        )
        kinds = (EventKind.LEARNER_STARTED, EventKind.LEARNER_ENDED)
        self.wait(lambda: any(e.kind in kinds for e in self.events()), "the event of the learner's start")

    def start_until(self, text: str) -> subprocess.Popen[bytes]:
        """A head, once the learner's log holds the text."""
        head = self.start()
        self.wait_for_log(text)
        return head

    def kill_controllers(self) -> None:
        """The heads and then the node controller, which a living head would replace; learners live on."""
        node = self.node_pid()
        for process in self._started:
            process.kill()  # does nothing to one that has ended
        os.kill(node, signal.SIGKILL)
        for process in self._started:
            process.wait(timeout=240)

    @property
    def output(self) -> str:
        """Standard output of all controllers so far."""
        return (self.said_in / "controller.out").read_text()

    def say(self, action: str = "", attempt: int = 1, learners: int | None = None) -> None:
        """What the platform wants, as it writes it: replaced as a whole."""
        temporary = Path(self.attempt.control + ".new")
        cell = {"attempt": attempt, "requested_action": action, "drill": "", "learners": learners}
        temporary.write_text(json.dumps(cell))
        temporary.replace(self.attempt.control)

    def checkpoint(self, source: str = "node-0") -> Mapping[str, object]:
        """What the node controller said about checkpoints."""
        (found,) = [dict(e.fields) for e in self.events(source) if e.kind is EventKind.CHECKPOINT]
        return found

    def asked(self, source: str = "node-0") -> list[object]:
        """For which reasons the learners were asked."""
        return [e.fields["reason"] for e in self.events(source) if e.kind is EventKind.ASKED]

    def node_pid(self) -> int:
        """The pid of the node controller."""
        return int([e for e in self.events() if e.kind is EventKind.STARTED][-1].fields["pid"] or 0)

    def processes(self) -> list[int]:
        """Everything alive that this test started through controllers."""
        return [pid for pid in all_processes() if pid != os.getpid() and self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return f"{MARK}={self.base}".encode() in environ.split(b"\0")

    def kill_all(self) -> None:
        """End what is left, by pid."""
        for pid in self.processes():
            if status_field(pid, "Name"):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for process in self._started:
            process.wait(timeout=120)
        end = time.monotonic() + 10
        while self.processes() and time.monotonic() < end:  # those that are nobody's children here
            time.sleep(0.01)


@contextmanager
def rig(base: Path) -> Iterator[Rig]:
    """A rig that leaves no process behind, also when the test fails."""
    made = Rig(base)
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture(name="run")
def plain_run(tmp_path: Path) -> Iterator[Rig]:
    """For the modules that import it."""
    with rig(tmp_path) as one:
        yield one


@pytest.fixture(name="run")
def patient_run(tmp_path: Path) -> Iterator[Rig]:
    """As the other, with controllers that wait for files of this machine however long that takes."""
    with rig(tmp_path) as one:
        one.have_controllers_do()
        yield one


def content(path: Path) -> bytes:
    """Of a file, as long as it is there: controllers replace and remove theirs while they are looked through."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def files_below(directory: Path) -> list[Path]:
    """But for those that come or go meanwhile."""
    return [Path(place, name) for place, _, names in os.walk(directory) for name in names]


def two_nodes(run: Rig, command: str, model: Mapping[str, str] | None = None, /, **changes: object) -> LaunchFile:
    """A launch file for two node controllers, started by a step of Python."""
    step = ("{python}", "-c", STEP.replace("{", "{{").replace("}", "}}"), "{launch}", "2")
    return run.write(command, model=model, **{"learners": 2, "nodes": 2, "step": step, **changes})  # type: ignore[arg-type]


def oldest_python(candidates: Sequence[str] = ("python3.9", "python3.10", "python3.11", "python3")) -> str:
    """The oldest Python from 3.9 up on this machine."""
    from shutil import which

    return next((path for path in map(which, candidates) if path and _runs(path)), sys.executable)


def _runs(python: str) -> bool:
    check = [python, "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 9))"]
    return subprocess.run(check, check=False, capture_output=True).returncode == 0


SAVES_ON = """
import os, signal, sys, time
def save(*_):
    open(os.environ["CHECKPOINT_DIR"] + "/saved", "w").write("saved")
    sys.exit(0)
signal.signal(signal.{}, save)
print("up", flush=True)
time.sleep(60)
"""
"""A learner that saves when it gets a signal."""


def await_save(run: Rig, sent: signal.Signals, status: int) -> None:
    """Send the head controller a signal once the learner of SAVES_ON is up; it saves, and the head exits with that."""
    head = run.start()
    run.wait_for_log("up")
    head.send_signal(sent)
    assert head.wait(timeout=60) == status, run.errors + run.log()
    assert (Path(run.job.checkpoints) / "saved").read_text() == "saved"
