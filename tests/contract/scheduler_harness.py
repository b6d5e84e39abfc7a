"""Brings a backend up for the contract suite: a tree, an adapter made by its entry point, and a world to run in.

Backends are found by entry point. A new adapter gets a harness here, and the suite runs over it.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.job.job import JobId, Token, attempt_token, new_job_id
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Resources
from ffdl_batch.domain.launch.launch_file import TEMPLATE
from ffdl_batch.domain.outcome.controller_events import EventKind, decode_events
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_slurm.adapter import SlurmScheduler
from tests import preloaded
from tests.first_start import write_controller

WAIT_S = 180.0
_PLACES = (str(Path(sys.executable).parent), "/usr/bin", "/bin")
FAKES = Path(__file__).parents[1] / "fakes" / "bin"


class Harness(ABC):
    """One backend. `settings` go to the adapter; the tree is below `base`."""

    backend = ""
    image = ""
    forgets = False
    knows_nodes = True
    """Whether the probe says what nodes there are."""
    shares_nodes = True
    """Whether several learners of a job may be on one node, as its controllers see nodes."""
    begins_next = True
    """Whether an attempt's head may submit the next one."""
    sees_tree = True
    """Whether jobs see the daemon's tree, under its own name."""

    def __init__(self, base: Path, settings: Mapping[str, object] | None = None) -> None:
        self.base = base
        self.root = Root(str(base / "tree"))
        Path(self.root.doorbell).mkdir(parents=True, mode=0o700)
        self._adapter_settings = {**(settings or {})}
        self.scheduler: Scheduler
        self.restart()
        self._facts: BackendFacts | None = None
        self._unended: list[NativeId] = []

    def restart(self) -> None:
        """Make another adapter, as a daemon does that is started again."""
        context = AdapterContext(self.root.path, getpass.getuser(), os.getuid())
        self.scheduler = create_adapter(self.backend, self._adapter_settings, context)

    @property
    def facts(self) -> BackendFacts:
        if self._facts is None:
            self._facts = self.scheduler.probe()
        return self._facts

    def request(self, command: str = "true", **changes: Any) -> LaunchRequest:
        """An attempt of a new job. `changes` are fields of the request; `batch` and `resources` replace the spec's."""
        job = changes.pop("job_id", None) or new_job_id()
        spec = JobSpec(
            name="contract",
            framework=Framework("custom", "test", command),
            resources=changes.pop("resources", Resources(cpus=1, memory_bytes=128 * 1024**2)),
            batch=changes.pop("batch", BatchOptions()),
            data_stores=changes.pop("data_stores", ()),
            base_dir=str(self.base),
        )
        job_dir = Root(changes.pop("root", self.root.path)).job(job)
        request = LaunchRequest(
            job_id=JobId(job),
            attempt=1,
            token=attempt_token(JobId(job), 1),
            spec=spec,
            job_dir=job_dir,
            attempt_dir=job_dir.attempt(1),
            doorbell=self.root.doorbell,
            facts=self.facts,
            image=self.image,
        )
        return replace(request, **changes)

    def write(self, plan: LaunchPlan) -> LaunchPlan:
        attempt = Path(plan.attempt_dir.path)
        attempt.mkdir(parents=True, mode=0o700, exist_ok=True)
        with zipfile.ZipFile(self.archive(plan), "w") as archive:
            archive.writestr("main.py", "print('model')\n")
        for file in plan.files:
            path = attempt / file.name
            path.write_text(file.text, encoding="utf-8")
            path.chmod(file.mode)
        return plan

    def prepare(self, command: str = "true", **changes: Any) -> LaunchPlan:
        return self.write(self.scheduler.plan(self.request(command, **changes)))

    def prepare_chain(self, command: str = "true", **changes: Any) -> LaunchPlan:
        """Plan and write an attempt with the template of its next one, as the deployer does."""
        request = self.request(command, **changes)
        template = replace(
            request,
            attempt=request.attempt + 1,
            token=Token(f"{request.job_id}-{TEMPLATE}"),
            attempt_dir=request.job_dir.template,
        )
        plan = self.write(self.scheduler.plan(request))
        self.write(self.scheduler.plan(template))
        Path(request.job_dir.checkpoints).mkdir(mode=0o700, exist_ok=True)
        return plan

    def submit(self, command: str = "true", **changes: Any) -> tuple[NativeId, LaunchPlan]:
        plan = self.prepare(command, **changes)
        native = self.scheduler.submit(plan)
        self._unended.append(native)
        return native, plan

    def observe(self, native: NativeId) -> Observation | None:
        return self.scheduler.observe([native]).get(native)

    def await_end(self, native: NativeId) -> Observation:
        seen = self.await_observation(native, lambda seen: seen.phase is Phase.ENDED)
        self._unended = [one for one in self._unended if one != native]
        return seen

    def await_observation(self, native: NativeId, fits: Callable[[Observation], bool]) -> Observation:
        last: Observation | None = None

        def look() -> bool:
            nonlocal last
            last = self.observe(native)
            return last is not None and fits(last)

        self.wait(look, lambda: f"{native} is {last}; {self.diagnosis()}")
        assert last is not None
        return last

    def wait(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Until the condition holds; fails with `what()` after a generous time."""
        end, pause_s = time.monotonic() + WAIT_S, 0.05  # each look at a job of Slurm is a process
        while not condition():
            assert time.monotonic() < end, what()
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.2, 0.2)

    def log(self, plan: LaunchPlan) -> str:
        path = Path(plan.attempt_dir.training_log(1))
        return path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""

    def await_log(self, plan: LaunchPlan, text: str) -> None:
        self.wait(lambda: text in self.log(plan), lambda: f"no {text!r} in {self.log(plan)!r}; {self.diagnosis()}")

    def archive(self, plan: LaunchPlan) -> Path:
        return Path(plan.launch.model_archive)

    def seen_by_job(self, path: str) -> Path:
        """Where a path of the plan is, as its job sees it."""
        return Path(path)

    def executions(self, attempt: AttemptDir) -> int:
        """How often a learner was started in this attempt."""
        files = Path(attempt.events).glob("*.jsonl")
        events = [event for file in files for event in decode_events(file.read_text())]
        return sum(1 for event in events if event.kind is EventKind.LEARNER_STARTED)

    def diagnosis(self) -> str:
        logs = [p.read_text(errors="replace")[-800:] for p in self.base.rglob("batch.log")]
        return f"batch logs: {logs}"

    @abstractmethod
    def submit_waiting(self, command: str = "true") -> tuple[NativeId, LaunchPlan]:
        """Submit a job that waits until `let_run`."""

    @abstractmethod
    def let_run(self) -> None:
        """Let what waits start."""

    def settle(self) -> None:
        """Cancel the jobs whose end no test has seen, so that the next test finds an idle backend."""
        while self._unended:
            self.scheduler.cancel(self._unended.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for pid in self._own_processes():
            _kill(pid)

    def _own_processes(self) -> list[int]:
        """Processes whose command line, directory or environment lies in this harness's directory."""
        mark = str(self.base).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in text:
                found.append(int(entry.name))
        return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class LocalHarness(Harness):
    """Real processes on this machine."""

    backend = "local"

    def __init__(self, base: Path, settings: Mapping[str, object] | None = None) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(subprocess, "Popen", preloaded.PopenTree)  # jobs begin as forks
        super().__init__(base, {"scratch_base": str(base), "max_jobs": 2, **(settings or {})})
        self._blockers: list[NativeId] = []

    def submit_waiting(self, command: str = "true") -> tuple[NativeId, LaunchPlan]:
        """Behind jobs that have every slot."""
        blockers = [self.submit("sleep 600")[0] for _ in range(2)]
        for native in blockers:
            self.await_observation(native, lambda seen: seen.phase is Phase.RUNNING)
        self._blockers += blockers
        native, plan = self.submit(command)
        self.await_observation(native, lambda seen: seen.phase is Phase.PENDING)
        return native, plan

    def let_run(self) -> None:
        while self._blockers:
            self.scheduler.cancel(self._blockers.pop())

    def settle(self) -> None:
        """As the parent, which cancels the jobs that have the slots, too."""
        self._blockers.clear()
        super().settle()

    def close(self) -> None:
        """As the parent; twice, because killed supervisors leave children behind."""
        self._patch.undo()
        for _ in range(2):
            super().close()


class FakeSlurmHarness(Harness):
    """The adapter with its command-line gateway against the executables in tests/fakes/bin."""

    backend = "slurm"
    image = "/images/custom.sif"
    forgets = True
    SITE = (
        ("main*", "1-00:00:00", "8", "4000", "gpu:a100:4(S:0-1),nvme:1", "(null)", "n[1-2]"),
        ("main*", "1-00:00:00", "16", "8000", "gpu:v100:2,shard:8", "(null)", "n3"),
        ("cpu", "infinite", "64", "256000", "(null)", "ffdl-network,avx", "c[1-9]"),
    )
    SHOWN: ClassVar[Mapping[str, str]] = {
        "node": (
            "NodeName=n1 CPUAlloc=2 CPUTot=8 ActiveFeatures=(null) Gres=gpu:a100:4(S:0-1) GresUsed=gpu:a100:3(IDX:0-2) "
            "RealMemory=4000 AllocMem=200 State=MIXED Partitions=main\n"
            "NodeName=n2 CPUAlloc=0 CPUTot=8 ActiveFeatures=(null) Gres=gpu:a100:4(S:0-1) GresUsed=gpu:a100:0(IDX:N/A) "
            "RealMemory=4000 AllocMem=0 State=DOWN+DRAIN Partitions=main Reason=no power [root@1795476012]\n"
        ),
        "partition": "PartitionName=main AllowAccounts=ALL AllowQos=ALL Default=YES MaxTime=1-00:00:00 State=UP\n",
    }
    """What scontrol shows."""
    _known: ClassVar[tuple[str, BackendFacts] | None] = None
    """The directory of the first harness, and what its site answered: the sites of all are the same."""

    def __init__(self, base: Path, settings: Mapping[str, object] | None = None) -> None:
        self.state = base / "slurm"
        for name in ("jobs", "gone", "steps", "accounts"):
            (self.state / name).mkdir(parents=True)
        (self.state / "site.json").write_text(json.dumps(self.SITE))
        for what, text in self.SHOWN.items():
            (self.state / f"show-{what}").write_text(text)
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(subprocess, "Popen", preloaded.PopenTree)  # its programs are forks
        self._saved = {name: os.environ.get(name) for name in ("PATH", "SLURM_CONF", "SLURM_CLUSTERS")}
        python = str(Path(sys.executable).parent)
        os.environ["PATH"] = os.pathsep.join((str(FAKES), python, os.environ["PATH"]))
        (self.state / "slurm.conf").touch()
        os.environ["SLURM_CONF"] = str(self.state / "slurm.conf")
        os.environ.pop("SLURM_CLUSTERS", None)
        scratch = base / "scratch"
        scratch.mkdir()
        devices = base / "dev"
        devices.mkdir()
        for number in range(4):
            (devices / f"nvidia{number}").touch()
        defaults: dict[str, object] = {
            "scratch_base": str(scratch),
            "command_timeout_s": 60,
            "python": sys.executable,
            "gpu_devices": {"nvidia": [f"{devices}/nvidia[0-9]"]},
        }
        write_controller(base / "tree")
        self._is_usual = not settings
        super().__init__(base, {**defaults, **(settings or {})})

    @property
    def facts(self) -> BackendFacts:
        """As the parent, asked once for all harnesses without settings of their own."""
        if self._facts is None and self._is_usual and FakeSlurmHarness._known is not None:
            base, facts = FakeSlurmHarness._known
            controller = tuple(word.replace(base, str(self.base)) for word in facts.controller)
            self._facts = replace(facts, controller=controller)
        facts = super().facts
        if self._is_usual and FakeSlurmHarness._known is None:
            FakeSlurmHarness._known = str(self.base), facts
        return facts

    @contextmanager
    def locked(self) -> Iterator[None]:
        """What runs the jobs changes no record meanwhile."""
        with (self.state / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def spoil(self, command: str, *faults: str) -> None:
        """The next calls of a command go wrong."""
        path = self.state / "faults.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        whole = path.with_suffix(f".{os.getpid()}")  # commands read it at any time
        whole.write_text(json.dumps({**known, command: list(faults)}))
        whole.replace(path)

    def calls(self, command: str) -> list[dict[str, Any]]:
        log = self.state / "calls.log"
        with self.locked():
            lines = log.read_text().splitlines() if log.exists() else []
        return [call for call in map(json.loads, lines) if call["command"] == command]

    def accepted(self) -> list[str]:
        return sorted(path.stem for path in (self.state / "jobs").glob("*.sh"))

    def script(self, native: NativeId) -> str:
        return (self.state / "jobs" / f"{native.job}.sh").read_text()

    def forget(self, native: NativeId) -> None:
        record = (
            json.loads((self.state / "jobs" / f"{native.job}.tasks").read_text())[native.task]
            if native.task
            else native.job
        )
        with self.locked():
            (self.state / "jobs" / f"{record}.json").rename(self.state / "gone" / f"{record}.json")

    def change(self, native: NativeId, **values: Any) -> None:
        """Rewrite what the controller remembers of a job."""
        path = self.state / "jobs" / f"{native.job}.json"
        with self.locked():
            whole = path.with_suffix(f".{os.getpid()}")  # what runs the job reads it at any time
            whole.write_text(json.dumps(json.loads(path.read_text()) | values))
            whole.replace(path)

    def account(self, native: NativeId, **values: Any) -> None:
        """Let the accounting say something else of a job than the controller knows."""
        record = json.loads((self.state / "jobs" / f"{native.job}.json").read_text())
        (self.state / "accounts" / f"{native.job}.json").write_text(json.dumps(record | values))

    def keep_accounts(self) -> None:
        (self.state / "accounting").touch()

    def freeze(self) -> None:
        """Jobs stay pending until `thaw`."""
        (self.state / "hold").touch()

    def thaw(self) -> None:
        (self.state / "hold").unlink()

    def submit_waiting(self, command: str = "true") -> tuple[NativeId, LaunchPlan]:
        self.freeze()
        return self.submit(command)

    def let_run(self) -> None:
        self.thaw()

    def settle(self) -> None:
        """As the parent; jobs may run."""
        (self.state / "hold").unlink(missing_ok=True)
        super().settle()

    def diagnosis(self) -> str:
        path = self.state / "runner.err"
        return f"{super().diagnosis()}; runner: {path.read_text()[-500:] if path.exists() else ''}"

    def close(self) -> None:
        for _ in range(2):
            super().close()
        for name, value in self._saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class RealSlurmHarness(Harness):
    """A real cluster, named by the environment: FFDL_CONTRACT_ROOT (a directory that the nodes see),
    FFDL_CONTRACT_IMAGE (a learner image there), FFDL_CONTRACT_PYTHON (interpreter on the nodes, may be empty)."""

    backend = "slurm"
    forgets = True

    def __init__(self, base: Path, settings: Mapping[str, object] | None = None) -> None:
        shared = Path(os.environ["FFDL_CONTRACT_ROOT"]) / f"contract-{os.getpid()}-{base.name}"
        shared.mkdir(parents=True)
        self.image = os.environ["FFDL_CONTRACT_IMAGE"]
        python = os.environ.get("FFDL_CONTRACT_PYTHON", "")
        super().__init__(shared, {"python": python, **(settings or {})})
        self.submitted: list[NativeId] = []
        self._held = NativeId("0")

    def submit(self, command: str = "true", **changes: Any) -> tuple[NativeId, LaunchPlan]:
        native, plan = super().submit(command, **changes)
        self.submitted.append(native)
        return native, plan

    def submit_waiting(self, command: str = "true") -> tuple[NativeId, LaunchPlan]:
        native, plan = self.submit(command, batch=BatchOptions(hold=True))
        self._held = native
        return native, plan

    def let_run(self) -> None:
        preloaded.run(["scontrol", "release", str(self._held)], check=True, timeout=WAIT_S)

    def close(self) -> None:
        """Cancel what still runs; the cluster's own processes are not ours to kill."""
        for native in self.submitted:
            self.scheduler.cancel(native)
        if isinstance(self.scheduler, SlurmScheduler):
            self.scheduler.close()


def real_backends() -> list[str]:
    """Names of the real clusters to run on: slurm-cli, slurm-pyslurm."""
    return [name for name in os.environ.get("FFDL_CONTRACT_BACKENDS", "").split(",") if name]


def open_harness(name: str, base: Path) -> Harness:
    """The harness of one parameter of the suite."""
    if name == "local":
        return LocalHarness(base)
    if name == "slurm":
        return FakeSlurmHarness(base)
    if name in ("slurm-cli", "slurm-pyslurm"):
        return RealSlurmHarness(base, {"gateway": name.removeprefix("slurm-")})
    if name == "kubernetes":
        from tests.contract.kubernetes_harness import KubernetesHarness

        return KubernetesHarness(base)
    raise AssertionError(f"the adapter {name} has no harness; write one in {Path(__file__).name}")
