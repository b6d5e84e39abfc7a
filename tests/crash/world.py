"""A world to die in: one state directory, the fake Slurm's real executables (or the local backend), real learners.

Every learner appends its job's id to the file ``runs``. So what was executed is known from the learners themselves,
whatever databases, records and logs say about it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ffdl_batch.attempt.layout import Root
from ffdl_batch.client import Client, ClientError
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.config import load_settings
from ffdl_batch.daemon.platform import Platform, open_platform
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store import Store, open_store
from tests import preloaded
from tests.crash.driver import LIMIT_S, be_driver
from tests.crash.fuzz.judge import fault_in_history
from tests.fakes.head import FakeHead
from tests.first_start import write_controller, write_schema

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes" / "bin"
NODES = (("main*", "1-00:00:00", "64", "64000", "gpu:a100:4(S:0-1)", "(null)", "n[1-2]"),)
_ACKNOWLEDGED = re.compile(r"^acknowledged (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong. Empty in a world where nothing was lost and nothing was executed twice."""

    lost: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """How one run of the driver ended, and what it acknowledged before."""

    returncode: int
    acknowledged: tuple[str, ...]
    stderr: str


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """`life_s` is the credential's life, `timeout_s` a Slurm command's time, `python` the nodes' interpreter,
    `work_s` how long a learner works, `batch` the manifest's block of that name. `database_url` "" = SQLite in the
    state directory."""

    backend: str = "slurm"
    life_s: float = 1.0
    timeout_s: float = 60.0
    python: str = sys.executable
    work_s: float = 0.1
    batch: str = "{}"
    database_url: str = ""


def serves(client: Client) -> bool:
    """Whether a daemon answers."""
    try:
        with client:
            client.health()
    except ClientError:
        return False
    return True


class World:
    """Everything lies below `base`, whose path is in the environment or command line of every process of this world."""

    def __init__(self, base: Path, options: WorldOptions | None = None) -> None:
        self.base, self.options = base, options or WorldOptions()
        self.slurm, self.state = base / "slurm", base / "state"
        self.tree = self.state
        for name in ("jobs", "gone", "steps"):
            (self.slurm / name).mkdir(parents=True)
        (base / "scratch").mkdir()
        (self.slurm / "site.json").write_text(json.dumps(NODES))
        (self.slurm / "slurm.conf").touch()
        (base / "manifest.yml").write_text(self._manifest())
        (base / "config.toml").write_text(self._config())

    def _manifest(self) -> str:
        command = f"echo $TRAINING_ID >> {self.base}/runs; sleep {self.options.work_s}"
        return textwrap.dedent(f"""\
            name: crash
            cpus: 1
            memory: 64MiB
            batch: {self.options.batch}
            framework:
              name: custom
              version: /images/any.sif
              command: {json.dumps(command)}
            """)

    def _config(self) -> str:
        values = self.options
        return textwrap.dedent(f"""\
            check_images = false
            watch_interval_s = 0.2
            doorbell_interval_s = 0.1
            [backend]
            default = "{values.backend}"
            [backend.slurm]
            credential_life_s = {values.life_s}
            command_timeout_s = {values.timeout_s}
            python = "{values.python}"
            scratch_base = "{self.base}/scratch"
            [backend.local]
            scratch_base = "{self.base}/scratch"
            max_jobs = 2
            """)

    def environment(self) -> dict[str, str]:
        """As bare as cron's, but for what leads to this world."""
        return {
            "PATH": os.pathsep.join((str(self.base / "bin"), str(FAKES), str(Path(sys.executable).parent), os.defpath)),
            "HOME": str(self.base),
            "PYTHONPATH": str(ROOT),
            "SLURM_CONF": str(self.slurm / "slurm.conf"),
            "FFDL_CONFIG": str(self.base / "config.toml"),
            "FFDL_STATE_DIR": str(self.state),
            "FFDL_DATABASE_URL": self.database_url,
            "FFDL_SOCKET": str(self.base / "run" / "s"),
            "CRASH_MANIFEST": str(self.base / "manifest.yml"),
        }

    # ------------------------------------------------------------------------------------------- lives

    def ease_first_start(self) -> None:
        """Spare the first daemon the migrations, and the build of the controller."""
        if self.state.exists():
            return
        if not self.options.database_url:
            write_schema(self.state / "ffdl.sqlite3")
        if self.options.backend == "slurm":
            write_controller(self.tree)

    def live(self, *arguments: str) -> Life:
        """One run of the driver, to its end or its death. It is a fork of this process, which has imported all that it
        needs, and has no other thread."""
        said, errors = self.base / "driver.out", self.base / "driver.err"
        self.ease_first_start()
        preloaded.start_server()
        pid = os.fork()
        if pid == 0:
            be_driver(arguments, self.environment(), self.base, said, errors)
        status = _wait(pid, LIMIT_S * 2)
        return Life(status, tuple(_ACKNOWLEDGED.findall(said.read_text())), errors.read_text())

    def die(self, *arguments: str) -> Life:
        """A run that must kill itself."""
        life = self.live(*arguments)
        assert life.returncode == -signal.SIGKILL, life
        return life

    def recover(self, *arguments: str) -> Life:
        """A fresh process brings everything to its end."""
        life = self.live(*arguments, "--finish", str(LIMIT_S))
        assert life.returncode == 0, f"{life.stderr}\n{self.diagnosis()}"
        return life

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A run of the driver that somebody else will end."""
        self.ease_first_start()
        return preloaded.PopenDaemon(
            [sys.executable, "-m", "tests.crash.driver", *arguments],
            env=self.environment(), cwd=self.base, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- the fake Slurm

    def wrap(self, command: str, script: str) -> None:
        """Put a shell script before a command; ``$FAKE`` is the executable that it stands for."""
        path = self.base / "bin" / command
        path.parent.mkdir(exist_ok=True)
        whole = self.base / f"{command}.fresh"  # a daemon runs it at any time
        whole.write_text(f"#!/bin/sh\nFAKE={FAKES / command}\n{script}\n")
        whole.chmod(0o755)
        whole.replace(path)

    def hold(self) -> None:
        """Accepted jobs stay pending until `release`."""
        (self.slurm / "hold").touch()

    def release(self) -> None:
        """Pending jobs may run."""
        (self.slurm / "hold").unlink()

    def spoil(self, command: str, *faults: str) -> None:
        """The next calls of a command go wrong."""
        path = self.slurm / "faults.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        whole = path.with_suffix(f".{os.getpid()}")  # commands read it at any time
        whole.write_text(json.dumps({**known, command: list(faults)}))
        whole.replace(path)

    def suspend_runner(self, job: str) -> None:
        """Keep one accepted job from ever starting: the process that would start it is stopped, outside the lock."""
        path = self.slurm / "jobs" / f"{job}.json"
        self.wait(lambda: bool(json.loads(path.read_text())["runner"]), "a runner")
        with self._slurm_locked():
            os.kill(json.loads(path.read_text())["runner"], signal.SIGSTOP)

    def end(self, job: str, state: str) -> None:
        """The controller ends an accepted job that still waits, in this state."""
        path = self.slurm / "jobs" / f"{job}.json"
        with self._slurm_locked():
            now = int(time.time())
            record = {**json.loads(path.read_text()), "state": state, "start": now, "end": now}
            temporary = path.with_suffix(".ended")
            temporary.write_text(json.dumps(record))
            temporary.replace(path)

    @contextmanager
    def _slurm_locked(self) -> Iterator[None]:
        """The fake Slurm changes nothing meanwhile."""
        with (self.slurm / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def head(self) -> FakeHead:
        """One that plays the head of the only job's current attempt, which the fake Slurm keeps waiting."""
        (job,) = self.jobs()
        return FakeHead(Root(str(self.state)), job, time.time())

    def command(self, *argv: str) -> str:
        """Standard output of a command that a person types in this world."""
        return preloaded.run(argv, env=self.environment(), capture_output=True, text=True, check=True).stdout

    def accepted(self) -> list[dict[str, str]]:
        """What the fake controller remembers, in the order of acceptance."""
        paths = sorted((self.slurm / "jobs").glob("*.json"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text()) for path in paths]

    def calls(self, command: str) -> list[list[str]]:
        """The argument lists that a command got so far."""
        path = self.slurm / "calls.log"
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # commands write it at any time
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line["argv"] for line in lines if line["command"] == command]

    # --------------------------------------------------------------------------------------- the truth

    def runs(self) -> Counter[str]:
        """How often each job was executed, by its learners."""
        path = self.base / "runs"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def store(self) -> Store:
        """The database; close it."""
        return open_store(self.database_url)

    @property
    def database_url(self) -> str:
        """Where this world's daemons keep their rows."""
        return self.options.database_url or f"sqlite:///{self.state}/ffdl.sqlite3"

    def jobs(self) -> list[Job]:
        """All rows, oldest first."""
        store = self.store()
        try:
            return list(reversed(store.list_jobs(uid=None, limit=10_000)))
        finally:
            store.close()

    def examine(self, acknowledged: Iterable[str], attempts: int = 1) -> Findings:
        """Hold what was promised against what is. A job has at most `attempts` attempts, one of which executed it."""
        runs = self.runs()
        store = self.store()
        try:
            jobs = {str(job.id): job for job in store.list_jobs(uid=None, limit=10_000)}
            broken = [f"{job_id}: {why}" for job_id in jobs if (why := _fault_in_history(store, job_id, attempts))]
        finally:
            store.close()
        lost = [job_id for job_id in acknowledged if job_id not in jobs]
        for job_id, job in jobs.items():
            if job.state is not JobState.COMPLETED:
                broken.append(f"{job_id} is {job.state} {job.error_code} {job.message!r}")
            elif not runs[job_id]:
                lost.append(job_id)
        return Findings(
            lost=tuple(lost),
            doubled=tuple(job_id for job_id, count in runs.items() if count > 1),
            unknown=tuple(job_id for job_id in runs if job_id not in jobs),
            broken=tuple(broken),
        )

    def client(self) -> Client:
        """A client of this world's daemon, that starts none."""
        return Client(dialling=Dialling(environ=self.environment(), start=False, report=lambda _: None))

    def is_served(self) -> bool:
        """Whether a daemon answers."""
        return serves(self.client())

    def platform(self) -> Platform:
        """The platform in this process, for services that need no scheduler; close it."""
        return open_platform(load_settings(cwd=self.base, environ=self.environment()))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen; {self.diagnosis()}"
            time.sleep(0.05)

    def diagnosis(self) -> str:
        """What helps to understand a failure."""
        jobs = [(job.id, job.state, job.native_id, job.message) for job in self.jobs()] if self.state.exists() else []
        logs = {str(path.relative_to(self.base)): path.read_text(errors="replace")[-600:] for path in self._logs()}
        return f"jobs: {jobs}; accepted: {[(r['id'], r['state']) for r in self.accepted()]}; logs: {logs}"

    def _logs(self) -> list[Path]:
        return [*self.base.rglob("batch.log"), *self.base.glob("slurm/runner.err"), *self.base.glob("state/daemon.log")]

    # ------------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """End every process of this world, by its id, until there is none: some have just started others."""
        for _ in range(100):
            if not (found := self._processes()):
                return
            for pid in found:
                _kill(pid)
            time.sleep(0.05)
        raise AssertionError(f"processes {found} of {self.base} do not end")

    def _processes(self) -> Sequence[int]:
        mark = os.fsencode(self.base)
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


def _wait(pid: int, limit_s: float) -> int:
    """The exit status of a child, negative for the signal that ended it; it is killed where it takes too long."""
    deadline = time.monotonic() + limit_s
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"a life did not end within {limit_s:g} s")
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _fault_in_history(store: Store, job_id: str, most: int) -> str:
    """What is wrong with a job's history, "" where it is whole and has no attempt too many."""
    job = store.get(job_id)
    assert job is not None
    if job.attempt > most:
        return f"it has {job.attempt} attempts, more than {most}"
    attempts = [attempt.number for attempt in store.attempts(job_id)]
    return fault_in_history(job.state, job.attempt, store.history(job_id), attempts)
