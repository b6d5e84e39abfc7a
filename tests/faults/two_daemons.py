"""Two real daemons on one PostgreSQL and one tree of job directories, with the fake Slurm and real learners.

Each has its own state directory and socket. What was executed is known from the learners themselves.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from ffdl_batch.client import Client, ClientError
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.job import Job
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store import Store
from tests import preloaded
from tests.crash.driver import LIMIT_S
from tests.crash.world import World, WorldOptions, serves

LEASE_S, SUBMIT_S, LIFE_S = 1.0, 1.0, 1.0
"""The lease, how long a submission may take beside it, and how long the scheduler may take to do what it was asked."""
PROGRAM = (sys.executable, "-m", "tests.fakes.daemon_that_stops", "--personal")


class SharedWorld(World):
    """A world whose daemons share its tree, its database and its Slurm."""

    def __init__(self, base: Path, database_url: str, python: str = sys.executable, life_s: float = LIFE_S) -> None:
        super().__init__(base, WorldOptions(life_s=life_s, database_url=database_url, python=python))
        self.model = base / "model"
        self.model.mkdir()
        (self.model / "train.py").write_text("print('x')\n")
        self.plan = base / "plan"
        self.submitted: dict[str, tuple[float, float]] = {}
        """When each job was sent, and when it was acknowledged."""
        self._reader: Store | None = None

    def environment(self) -> dict[str, str]:
        """What both daemons have in common."""
        return super().environment() | {
            "FFDL_JOBS_DIR": str(self.state),
            "FFDL_LEASE_S": str(LEASE_S),
            "FFDL_IDLE_EXIT_S": "600",
            "TEST_PLAN": str(self.plan),
            "TEST_SUBMIT_S": str(SUBMIT_S),
        }

    def stop_at(self, step: str, how: str = "STOP") -> None:
        """Stop or kill the first daemon that gets there."""
        self.plan.with_name("plan.done").unlink(missing_ok=True)
        whole = self.plan.with_name("plan.fresh")  # daemons read it at each step
        whole.write_text(f"{step} {how}")
        whole.replace(self.plan)

    def stopped_pid(self) -> int:
        """The daemon that got there; waits for it."""
        told = self.plan.with_name("plan.done")
        self.wait(told.exists, "a daemon at the step of its plan")
        return int(told.read_text())

    def job(self, job_id: str) -> Job:
        """One row."""
        return next(job for job in self.jobs() if job.id == job_id)

    def jobs(self) -> list[Job]:
        """As the parent's; the store stays open, as tests look twenty times a second."""
        self._reader = self._reader or self.store()
        return list(reversed(self._reader.list_jobs(uid=None, limit=10_000)))

    def close(self) -> None:
        """As the parent's."""
        if self._reader is not None:
            self._reader.close()
        super().close()

    def submitters(self) -> set[str]:
        """The state directories of the daemons that called the adapter so far."""
        path = self.plan.with_name("submitters")
        return set(path.read_text().split()) if path.exists() else set()


@dataclass
class OneDaemon:
    """One of the two. `more` is its environment beside the world's."""

    world: SharedWorld
    name: str
    more: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> Path:
        return self.world.base / self.name

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        path = self.state / "daemon.log"
        return path.read_text() if path.exists() else ""

    def environment(self) -> dict[str, str]:
        own = {"FFDL_STATE_DIR": str(self.state), "FFDL_SOCKET": str(self.world.base / f"run-{self.name}" / "s")}
        return self.world.environment() | own | self.more

    def client(self) -> Client:
        """A client of this daemon alone, that starts none."""
        return Client(dialling=Dialling(environ=self.environment(), start=False, report=lambda _: None))

    def start(self) -> None:
        """Start it, without waiting."""
        self.state.mkdir(exist_ok=True)
        with (self.state / "daemon.log").open("ab") as log:
            self.process = preloaded.PopenDaemon(
                PROGRAM, env=self.environment(), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def answers(self) -> bool:
        """Whether it serves."""
        assert self.process is not None
        assert self.process.poll() is None, f"daemon {self.name} ended with {self.process.returncode}: {self.log}"
        return serves(self.client())

    def send(self, number: signal.Signals) -> None:
        """A signal to the process itself."""
        assert self.process is not None
        self.process.send_signal(number)

    def submit(self) -> str:
        """One job, acknowledged: no daemon stops or dies by plan before that."""
        unanswered, sent = self.world.plan.with_name("unanswered"), time.time()
        unanswered.touch()
        try:
            with self.client() as client:
                job_id = client.submit(self.world.base / "manifest.yml", self.world.model).id
        finally:
            unanswered.unlink()
        self.world.submitted[job_id] = (sent, time.time())
        return job_id

    def surely_submit(self) -> str:
        """As :meth:`submit`, again where a transaction stood still for too long on a busy machine, and was undone."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                return self.submit()
            except ClientError as error:
                if error.problem.exit_code != ExitCode.TRY_AGAIN or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def end(self) -> None:
        """Kill it."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()


@dataclass
class Pair:
    """Both daemons, alive. Which one gets to a step first, and stops, is left to chance."""

    world: SharedWorld
    one: OneDaemon
    two: OneDaemon

    def start(self) -> None:
        """Start both, or what does not run of them, and wait until they answer."""
        for daemon in (self.one, self.two):
            if daemon.process is None or daemon.process.poll() is not None:
                daemon.start()
        for daemon in (self.one, self.two):
            self.world.wait(daemon.answers, f"daemon {daemon.name} to answer: {daemon.log[-600:]}")

    def by_pid(self, pid: int) -> tuple[OneDaemon, OneDaemon]:
        """The daemon with this pid, and the other one."""
        assert pid in (self.one.pid, self.two.pid), f"{pid} is none of them"
        return (self.one, self.two) if self.one.pid == pid else (self.two, self.one)

    def has_ended(self, *job_ids: str) -> bool:
        """Whether all these jobs are over."""
        return all(self.world.job(job_id).state.is_terminal for job_id in job_ids)

    def finish(self, *job_ids: str) -> float:
        """Wait for the end of jobs; seconds that it took."""
        began = time.monotonic()
        self.world.wait(lambda: self.has_ended(*job_ids), f"the end of {job_ids}")
        return time.monotonic() - began


@contextlib.contextmanager
def running_pair(
    world: SharedWorld, one: dict[str, str] | None = None, two: dict[str, str] | None = None
) -> Iterator[Pair]:
    """Two daemons that answer; ended afterwards with everything that they started."""
    pair = Pair(world, OneDaemon(world, "one", one or {}), OneDaemon(world, "two", two or {}))
    try:
        pair.start()
        yield pair
    finally:
        for daemon in (pair.one, pair.two):
            daemon.end()
        world.close()
