"""The course of a job under a drill, as a fake daemon plays it."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

from ffdl_batch.domain.job.views import AttemptView, EventView
from ffdl_batch.host.fast_dataclass import dataclass
from tests import preloaded
from tests.unit.cli.programs import FFDL, environment
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB = "training-000000001"
MANIFEST = "name: digits\nframework: {name: custom, version: custom, command: 'true'}\nmemory: 1GB\n"
CONFIRMED = AttemptView(
    1, "4711", "slurm", 0.0, ended_at=109.0, interruption="timeout", simulated=True, checkpoint_asked=True,
    checkpoint_confirmed=True, checkpoint_answered=True, checkpoint_took_s=3.2, checkpoint_saved_at=1_800_000_000.0,
)  # fmt: skip
IGNORED = AttemptView(1, "4711", "slurm", 0.0, ended_at=109.0, checkpoint_asked=True, checkpoint_took_s=61.0)


@dataclass
class Stage:
    """The job on which a drill is simulated: what the daemon shows after the drill, and after a resume."""

    daemon: FakeDaemon
    attempt: AttemptView
    ends_as: str = "PENDING"
    goes_on: bool = True

    def begin(self, job_dir: str = "/none", state: str = "PROCESSING") -> None:
        """The job runs since its last change of state."""
        self.daemon.jobs[JOB] = make_job(JOB, state=state, job_dir=job_dir)
        self.daemon.events = [EventView(JOB, 1, 100.0, "PENDING", 1, "progress")]
        self.change("PROCESSING")
        self.daemon.jobs[JOB] = make_job(JOB, job_dir=job_dir)
        self.daemon.on_act = self.act

    def act(self, verb: str, job_id: str) -> None:
        """The daemon's side."""
        assert job_id == JOB
        if verb == "drill":
            terminal = self.ends_as in ("HALTED", "FAILED", "COMPLETED")
            self.change(self.ends_as, cause="progress" if terminal else "requeued", attempts=(self.attempt,))
        if verb == "resume" or (verb == "drill" and self.ends_as == "PENDING" and self.goes_on):
            if verb == "resume":
                self.change("PENDING", cause="resumed")
            self.change("QUEUED", attempt=2)
            self.change("PROCESSING", attempt=2)

    def change(self, state: str, cause: str = "progress", attempt: int = 1, **changes: object) -> None:
        """One change of state, 5 s after the last one."""
        last = self.daemon.events[-1]
        said = "what ended it" if state == self.ends_as else ""
        self.daemon.events.append(EventView(JOB, last.seq + 1, last.at + 5, state, attempt, cause, said))
        ended = self.daemon.events[-1].at if state in ("HALTED", "FAILED", "COMPLETED") else None
        job = replace(self.daemon.jobs[JOB], state=state, attempt=attempt, ended_at=ended)
        self.daemon.jobs[JOB] = replace(job, **changes)  # type: ignore[arg-type]


class Silent(Stage):
    """A job to which nothing happens, whatever is simulated."""

    def act(self, verb: str, job_id: str) -> None:
        """The daemon's side."""


def start(daemon: FakeDaemon, *arguments: str | Path, program: tuple[str, ...] = FFDL) -> subprocess.Popen[str]:
    """Start ``ffdl drill`` as a process."""
    return preloaded.Popen(
        [*program, "drill", *map(str, arguments)],
        # A signal comes between any two steps, also between the making of a socket and what would close it.
        env=environment(daemon, {"PYTHONWARNINGS": "error,ignore::ResourceWarning"}),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_event(daemon: FakeDaemon, process: subprocess.Popen[str]) -> None:
    """Return when the drill has simulated its event."""
    while not daemon.acts:
        assert process.poll() is None
        time.sleep(0.01)
