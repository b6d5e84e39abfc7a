"""Real daemons, controllers and learners on disks that fill up and file systems that hang.

What a learner did is known from the learner itself: it writes into the file ``runs``, which lies on a sound disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ffdl_batch.domain.job.views import JobView
from ffdl_batch.host.fast_dataclass import dataclass
from tests import preloaded
from tests.crash.world import World, WorldOptions
from tests.slow_machine import without_waits

LIMIT_S = 120.0
PROGRAM = ("-m", "ffdl_batch.daemon.main", "--personal")
Limits = Mapping[int, int]
"""Resource limits (setrlimit(2)) of a process: which, and how much."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command ended with."""

    code: int
    text: str
    took_s: float


class FaultWorld(World):
    """One daemon. Its state lies in `state`, the job directories in `tree`; either may be on a disk of the test's."""

    def __init__(
        self, base: Path, options: WorldOptions, *, state: Path | None = None, tree: Path | None = None
    ) -> None:
        super().__init__(base, options)
        self.state = state or base / "state"
        self.tree = tree or base / "tree"
        self.python = sys.executable
        self.daemon: subprocess.Popen[bytes] | None = None
        self.model = base / "model"
        self.model.mkdir()
        (self.model / "train.py").write_text("print('x')\n")

    def environment(self) -> dict[str, str]:
        """As the world's, with the places of this one."""
        places = {"FFDL_JOBS_DIR": str(self.tree), "FFDL_IDLE_EXIT_S": "600"}
        return super().environment() | places

    @property
    def errors(self) -> str:
        """What the daemon said to standard error."""
        path = self.base / "daemon.err"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def log(self) -> str:
        """The daemon's log so far."""
        path = self.state / "daemon.log"
        return (path.read_text(errors="replace") if path.exists() else "") + self.errors

    def start(self, limits: Limits | None = None) -> None:
        """Start the daemon and wait until it answers."""
        self.launch(limits)
        self.wait(self.answers, f"the daemon to answer: {self.log[-2000:]}")

    def launch(self, limits: Limits | None = None) -> None:
        """Start the daemon and return at once."""
        self.ease_first_start()
        with (self.base / "daemon.err").open("ab") as errors:
            self.daemon = preloaded.Popen(
                [self.python, *PROGRAM],
                env=self.environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                preexec_fn=_restrict(limits) if limits else None,
            )

    def answers(self) -> bool:
        """Whether the daemon serves."""
        assert self.daemon is not None
        assert self.daemon.poll() is None, f"the daemon ended with {self.daemon.returncode}: {self.log}"
        return self.is_served()

    @property
    def daemon_pid(self) -> int:
        """The daemon's process, by the lock of the state directory."""
        return int(json.loads((self.state / "daemon.lock").read_text())["pid"])

    def memory_bytes(self) -> int:
        """How much of its address space the daemon has taken."""
        return int(Path(f"/proc/{self.daemon_pid}/statm").read_text().split()[0]) * resource.getpagesize()

    def in_database(self, job_id: str) -> str:
        """The job's state, without asking the daemon."""
        with contextlib.closing(sqlite3.connect(f"file:{self.state}/ffdl.sqlite3?mode=ro", uri=True)) as database:
            return str(database.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()[0])

    def stop(self) -> int:
        """End the daemon as an administrator does; its exit status."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(LIMIT_S)

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """Nothing of this world moves meanwhile."""
        stopped = [pid for pid in self._processes() if _signalled(pid, signal.SIGSTOP)]
        try:
            yield
        finally:
            for pid in stopped:
                _signalled(pid, signal.SIGCONT)

    def submit(self) -> str:
        """One job that ends soon, acknowledged."""
        return self._submit(self.base / "manifest.yml")

    def submit_long(self) -> str:
        """One job that ends when :meth:`tell` was called, acknowledged."""
        script = self.base / "long.sh"
        script.write_text(f"echo $TRAINING_ID >> {self.base}/runs; until [ -e {self.base}/told ]; do sleep 0.1; done\n")
        manifest = self.base / "long.yml"
        manifest.write_text(
            (self.base / "manifest.yml").read_text().split("  command:")[0] + f"  command: sh {script}\n"
        )
        return self._submit(manifest)

    def submit_running(self) -> str:
        """A long one, once its learner has begun and the daemon knows."""
        count = self.runs().total()
        job_id = self.submit_long()
        self.await_runs(count + 1)
        self.await_state(job_id, "PROCESSING")
        return job_id

    def tell(self) -> None:
        """Let the long jobs end."""
        (self.base / "told").touch()

    def _submit(self, manifest: Path) -> str:
        with self.client() as client:
            return client.submit(manifest, self.model).id

    def job(self, job_id: str) -> JobView:
        """The job as the daemon tells it."""
        with self.client() as client:
            return client.get(job_id)

    def submit_by_command(self) -> Said:
        """What somebody sees who submits a job."""
        return self.run("ffdl-submit", str(self.base / "manifest.yml"), str(self.model))

    def ids(self) -> set[str]:
        """All jobs that the daemon knows."""
        with self.client() as client:
            return {job.id for job in client.list()}

    def await_ends(self, *job_ids: str) -> None:
        """Until these jobs are COMPLETED, by their first attempts, and no learner began twice."""
        for job_id in job_ids:
            job = self.await_state(job_id, "COMPLETED", "FAILED", "CANCELLED", "HALTED")
            assert (job.state, job.attempt) == ("COMPLETED", 1), (job, self.log[-3000:])
        assert set(self.runs().values()) == {1}, self.runs()

    def run(self, *argv: str, limits: Limits | None = None) -> Said:
        """A command that a person types: its exit code and what it printed."""
        program = [str(Path(sys.executable).with_name(argv[0]))] if limits else typed(argv[0])
        began = time.monotonic()
        done = preloaded.run(
            [*program, *argv[1:]], env=self.environment(), cwd=self.base, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=LIMIT_S,
            preexec_fn=_restrict(limits) if limits else None,
        )  # fmt: skip
        return Said(done.returncode, without_waits(done.stdout), time.monotonic() - began)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen; {self.log[-3000:]}"
            time.sleep(0.05)

    def await_state(self, job_id: str, *states: str) -> JobView:
        """Until the job is in one of these states."""
        self.wait(lambda: self.job(job_id).state in states, f"{job_id} in {states} (it is {self.job(job_id)})")
        return self.job(job_id)

    def await_runs(self, count: int) -> None:
        """Until so many learners have begun."""
        self.wait(lambda: self.runs().total() >= count, f"{count} learners")


def typed(program: str) -> tuple[str, ...]:
    """A program that a person types, as `preloaded` can fork it."""
    name = program.replace("-", "_")
    return sys.executable, "-c", f"import sys; from ffdl_batch.entry import {name}; sys.exit({name}())"


def _signalled(pid: int, number: signal.Signals) -> bool:
    """Whether the process was still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _restrict(limits: Limits | None) -> Callable[[], None]:
    """For a child, between fork and exec."""

    def limit() -> None:
        for kind, value in (limits or {}).items():
            resource.setrlimit(kind, (value, value))

    return limit


@contextlib.contextmanager
def fault_world(base: Path, options: WorldOptions | None = None, **places: Path) -> Iterator[FaultWorld]:
    """A world whose processes are gone afterwards."""
    world = FaultWorld(base, options or WorldOptions(), **places)
    try:
        yield world
    finally:
        if world.daemon is not None:
            world.daemon.kill()
            world.daemon.wait()
        world.close()
