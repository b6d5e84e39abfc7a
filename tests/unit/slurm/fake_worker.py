"""Runs the real worker with a pyslurm made of this file. ``fake_worker.py MODE DIRECTORY``."""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any

MODE, DIRECTORY = sys.argv[1], Path(sys.argv[2])


class RPCError(Exception):
    """As pyslurm's."""


class Job:
    """One job; the class plays the controller too."""

    def __init__(self, number: int, task: int | None = None, waiting: str | None = None) -> None:
        self.id, self.name, self.state, self.user_id = number, "training-0a1b2c3d4-1", "RUNNING", os.getuid()
        self.array_task_id, self.array_tasks_waiting = task, waiting
        self.array_id = 9 if MODE in ("array", "rest") else None
        self.exit_code, self.exit_code_signal, self.requeue_count = 0, 0, 1
        self.submit_time, self.start_time, self.end_time = 1700000000, 1700000001, None
        self.allocated_nodes, self.state_reason = "n1", None

    def cancel(self) -> None:
        """Refuses unknown jobs; crashes on demand."""
        if MODE == "fatal":
            sys.stderr.write("fatal: libslurm gave up\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGABRT)
        if self.id == 404:
            raise RPCError("Invalid job id specified")
        (DIRECTORY / "cancelled").write_text(str(self.id))


class Jobs(dict[int, Job]):
    """The listing."""

    @staticmethod
    def load() -> Jobs:
        """One own job, one of somebody else's."""
        if MODE == "down":
            raise RPCError("Unable to contact slurm controller (connect failure)")
        if MODE == "noise":
            print("libslurm talks on standard output")
        other = Job(8)
        other.user_id = os.getuid() + 1
        listed = [Job(7), other]
        if MODE == "array":
            listed = [Job(10), Job(11, task=1), Job(9, waiting="2-4%1"), Job(9)]
        if MODE == "rest":
            listed = [Job(10), Job(9)]
            listed[1].state = "CANCELLED"
        return Jobs(enumerate(listed))


class JobSubmitDescription:
    """Remembers what it was made of."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def submit(self) -> int:
        """Accept, refuse or die."""
        if MODE == "refuse":
            raise RPCError("Invalid qos specification")
        (DIRECTORY / "submitted").write_text(json.dumps(self.fields))
        if MODE == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return 0 if MODE == "zero" else 4711


module = types.ModuleType("pyslurm")
vars(module).update(RPCError=RPCError, Job=Job, Jobs=Jobs, JobSubmitDescription=JobSubmitDescription, __version__="0")
if MODE != "absent":
    sys.modules["pyslurm"] = module

from ffdl_slurm.gateways.pyslurm_worker import main  # noqa: E402 - the fake has to be there first

sys.exit(main())
