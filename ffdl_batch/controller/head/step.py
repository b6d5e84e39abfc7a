"""The one step of an attempt as the head sees it: the child that starts the node controllers, and their own words.

srun may outlive its tasks: at the end of a step it talks to slurmctld, which may be away for hours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import List, Optional

from ffdl_batch.controller.gang.siblings import read_events
from ffdl_batch.controller.head.waiting import has_ended
from ffdl_batch.controller.machine.location import controller_path, own_argv
from ffdl_batch.controller.machine.processes import release_signals
from ffdl_batch.controller.record.control import RUN
from ffdl_batch.domain.events import node_source
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile, fill

LOOK_S = 5.0
"""How often the node controllers' own words are read while the child runs."""
LINGERS_S = 10.0
"""How long the child may outlive the last of them."""


def count_events(launch: LaunchFile) -> List[int]:
    """How many events each node has of earlier runs; to be asked before the step starts. Raises OSError."""
    attempt = AttemptDir(launch.attempt_dir)
    return [len(read_events(attempt, node_source(rank))) for rank in range(launch.nodes)]


class Step:
    """A child that runs; `before` is what :func:`count_events` said."""

    def __init__(self, launch: LaunchFile, launch_path: str, run: int, before: List[int]) -> None:
        self.attempt, self._before = AttemptDir(launch.attempt_dir), before
        self._look_at = 0.0
        self._over_at: Optional[float] = None
        argv = _argv(launch, launch_path)
        env = {**os.environ, RUN: str(run)}
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=env, preexec_fn=release_signals)  # noqa: PLW1509

    def runs(self) -> bool:
        """Whether it is to be waited for. A child that has outlived all node controllers is killed."""
        if self.process.poll() is None and self._lingers():
            sys.stderr.write(f"ffdl-controller: process {self.process.pid} outlived the step's tasks and is ended\n")
            self.process.kill()
            self.process.wait()
        return self.process.poll() is None

    def _lingers(self) -> bool:
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        if not self._is_over():
            self._over_at = None
            return False
        self._over_at = now if self._over_at is None else self._over_at
        return now - self._over_at >= LINGERS_S

    def _is_over(self) -> bool:
        """Whether all node controllers that this step started said that they ended."""
        try:
            return all(
                has_ended(read_events(self.attempt, node_source(rank))[count:])
                for rank, count in enumerate(self._before)
            )
        except OSError:  # nothing is known then; the next look tells
            return False


def _argv(launch: LaunchFile, launch_path: str) -> List[str]:
    if not launch.step:
        return [*own_argv(), "node", "--launch", launch_path, "--rank", "0"]
    values = {
        "launch": launch_path,
        "attempt_dir": launch.attempt_dir,
        "job_dir": launch.job_dir,
        "python": sys.executable,
        "controller": controller_path(),
        "hostname": os.uname().nodename,
    }
    return [fill(part, values) for part in launch.step]
