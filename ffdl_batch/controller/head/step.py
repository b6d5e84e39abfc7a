"""Run the step of an attempt: the child process that starts the node controllers, and the events that they write.

srun may outlive its tasks: at the end of a step it needs slurmctld, which may not answer for hours.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from typing import Iterable, List, Optional

from ffdl_batch.attempt.control_cell import RUN
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import has_ended
from ffdl_batch.attempt.log_tail import last_lines
from ffdl_batch.attempt.reader import status_of
from ffdl_batch.controller.checkpoints import STORE_SHARE
from ffdl_batch.controller.learner.out_of_memory import describe_memory, read_counters, was_out_of_memory
from ffdl_batch.controller.learner.pod_exchange import is_cut_off
from ffdl_batch.controller.own_program import controller_path, own_argv
from ffdl_batch.controller.rendezvous.node_barrier import read_events
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.domain.outcome.controller_events import node_source
from ffdl_batch.host.signals import release_signals

LOOK_S = 5.0
"""Seconds between two reads of the node controllers' events while the child runs."""
LINGERS_S = 10.0
"""Seconds that srun may outlive the last node controller, in addition to the interval of heartbeats."""
OTHERS_S, LOOK_AT_OTHERS_S = 3600.0, 0.5
"""In a pod: how long to wait for the events of other pods when this pod's controller has ended, and how often to look.
The daemon, which brings the events, may be away, and waiting loses no results."""
PRINTED_LINES = 4
"""Number of last lines of a step that a message quotes."""
PRINTED_BYTES = 64 * 1024
"""Bytes of a step's output that are read. srun prints the ends of its tasks last."""


def count_events(launch: LaunchFile) -> List[int]:
    """Return how many events of earlier runs each node has. Call this before the step starts. Raises OSError."""
    attempt = AttemptDir(launch.attempt_dir)
    if launch.pod is not None:  # other pods start at any time, and their attempt has one run
        return [0] * launch.nodes
    return [len(read_events(attempt, node_source(rank))) for rank in range(launch.nodes)]


class Step:
    """A running step."""

    def __init__(self, launch: LaunchFile, launch_path: str, run: int, before: List[int]) -> None:
        """Start it. `before` is the result of :func:`count_events`."""
        self.attempt, self._before, self._launch = AttemptDir(launch.attempt_dir), before, launch
        self._waits_for_others = launch.pod is not None and launch.nodes > 1
        self._others_until: Optional[float] = None
        self._look_at = 0.0
        self._over_at: Optional[float] = None
        self._beats: List[Optional[int]] = []
        self._memory, self._printed_from = read_counters(), _log_size()
        argv = _argv(launch, launch_path)
        env = {**os.environ, RUN: str(run)}
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=env, preexec_fn=release_signals)  # noqa: PLW1509

    def runs(self) -> bool:
        """Return whether the head must wait for it. An srun that outlives all node controllers is killed."""
        if self._launch.step and self.process.poll() is None and self._lingers():
            sys.stderr.write(f"ffdl-controller: process {self.process.pid} outlived the step's tasks and is killed\n")
            self.process.kill()
            self.process.wait()
        return self.process.poll() is None or (self._waits_for_others and self._others_run())

    def out_of_memory(self) -> str:
        """Return a sentence if the kernel killed a process of the step for memory; "" if no kill is known.

        Call this after the end of the step. The program that started it knows about all nodes and prints such kills.
        """
        if self._launch.step:
            printed = _printed_since(self._printed_from)
            killed = any(words in printed for words in self._launch.out_of_memory)
        else:
            killed = was_out_of_memory(self._memory, read_counters(), self.process.returncode or 0)
        memory = describe_memory()
        return f"the job needed more memory than it has{f': {memory}' if memory else ''}" if killed else ""

    def last_output(self) -> str:
        """Return the last lines that the program which started the step printed to standard error; "" for a step that
        is this process's own child."""
        printed = _printed_since(self._printed_from) if self._launch.step else ""
        return " ".join(line.strip() for line in last_lines(printed.encode())[-PRINTED_LINES:])

    def hurry(self, number: int) -> None:
        """Limit the wait for other pods' events to the time that the signal leaves."""
        limits = self._launch.limits
        left_s = limits.kill_wait_s * STORE_SHARE
        if number == signal.SIGURG:
            left_s += limits.grace_s if limits.lead_s is None else limits.lead_s
        until = time.monotonic() + left_s
        self._others_until = until if self._others_until is None else min(self._others_until, until)

    def _others_run(self) -> bool:
        """Return whether other pods may still write events."""
        now = time.monotonic()
        if self._others_until is None:
            self._others_until = now + OTHERS_S
        if now >= self._others_until or is_cut_off(self._launch):
            return False
        if now >= self._look_at:
            self._look_at = now + LOOK_AT_OTHERS_S
            self._waits_for_others = not self._is_over(range(1, self._launch.nodes))
        return self._waits_for_others

    def _lingers(self) -> bool:
        """Return whether srun has outlived all node controllers for too long.

        Learners can write an end event, too. So a node controller has ended only if its heartbeat has stopped as well.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        before, self._beats = self._beats, [self._beat(rank) for rank in range(self._launch.nodes)]
        if self._beats != before or not self._is_over():
            self._over_at = None
            return False
        self._over_at = now if self._over_at is None else self._over_at
        return now - self._over_at >= LINGERS_S + self._launch.limits.heartbeat_s

    def _beat(self, rank: int) -> Optional[int]:
        """Return the time of the last heartbeat of a node controller in nanoseconds; None if there is none."""
        try:
            found = status_of(self.attempt.heartbeat(rank))
        except OSError:  # unknown now; it is read again soon
            return None
        return None if found is None else found.st_mtime_ns

    def _is_over(self, ranks: Optional[Iterable[int]] = None) -> bool:
        """Return whether all node controllers of this step, or those of `ranks`, have reported their end."""
        wanted = range(len(self._before)) if ranks is None else ranks
        try:
            return all(has_ended(read_events(self.attempt, node_source(rank))[self._before[rank] :]) for rank in wanted)
        except OSError:  # unknown now; it is read again soon
            return False


def _log_size() -> int:
    """Return the size of the file into which this process writes errors; -1 if it is none."""
    status = os.fstat(2)
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _printed_since(position: int) -> str:
    """Return the last :data:`PRINTED_BYTES` of the errors that this process and its children wrote after `position`;
    "" if they did not go to a file that its owner may read."""
    if position < 0:
        return ""
    try:
        with open("/proc/self/fd/2", "rb") as file:  # the same file, with a position of its own
            file.seek(max(position, os.fstat(2).st_size - PRINTED_BYTES))
            return file.read(PRINTED_BYTES).decode("utf-8", "replace")
    except OSError as error:
        sys.stderr.write(
            f"ffdl-controller: errors of the step in {os.readlink('/proc/self/fd/2')} cannot be read: {error}\n"
        )
        return ""


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
