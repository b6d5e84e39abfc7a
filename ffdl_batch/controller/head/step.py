"""The one step of an attempt as the head sees it: the child that starts the node controllers, and their own words.

srun may outlive its tasks: at the end of a step it talks to slurmctld, which may be away for hours.
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
"""How often the node controllers' own words are read while the child runs."""
LINGERS_S = 10.0
"""How long the child may outlive the last of them."""
OTHERS_S, LOOK_AT_OTHERS_S = 3600.0, 0.5
"""In a pod: how long the words of other pods are waited for when this one's controller has ended (whoever brings them
may be away, and what has been trained is not lost by waiting), and how often they are looked for."""
PRINTED_LINES = 4
"""How many of a step's last lines a message quotes."""
PRINTED_BYTES = 64 * 1024
"""How much of what a step has printed is read: the program that starts it prints the ends of its tasks last."""


def count_events(launch: LaunchFile) -> List[int]:
    """How many events each node has of earlier runs; to be asked before the step starts. Raises OSError."""
    attempt = AttemptDir(launch.attempt_dir)
    if launch.pod is not None:  # the others begin when they can, and no two runs of them are in one attempt
        return [0] * launch.nodes
    return [len(read_events(attempt, node_source(rank))) for rank in range(launch.nodes)]


class Step:
    """A child that runs; `before` is what :func:`count_events` said."""

    def __init__(self, launch: LaunchFile, launch_path: str, run: int, before: List[int]) -> None:
        self.attempt, self._before, self._launch = AttemptDir(launch.attempt_dir), before, launch
        self._waits_for_others = launch.pod is not None and launch.nodes > 1
        self._others_until: Optional[float] = None
        self._look_at = 0.0
        self._over_at: Optional[float] = None
        self._memory, self._printed_from = read_counters(), _log_size()
        argv = _argv(launch, launch_path)
        env = {**os.environ, RUN: str(run)}
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=env, preexec_fn=release_signals)  # noqa: PLW1509

    def runs(self) -> bool:
        """Whether it is to be waited for. A child that has outlived all node controllers is killed."""
        if self.process.poll() is None and self._lingers():
            sys.stderr.write(f"ffdl-controller: process {self.process.pid} outlived the step's tasks and is ended\n")
            self.process.kill()
            self.process.wait()
        return self.process.poll() is None or (self._waits_for_others and self._others_run())

    def out_of_memory(self) -> str:
        """Return, in words, that the kernel killed a process of the step for memory; "" if it did not, as far as is
        known. For a step that has ended. The program that started it knows of all nodes, and prints it."""
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
        """The signal says that there is little time left: the others' words are waited for no longer than that."""
        limits = self._launch.limits
        left_s = limits.kill_wait_s * STORE_SHARE
        if number == signal.SIGURG:
            left_s += limits.grace_s if limits.lead_s is None else limits.lead_s
        until = time.monotonic() + left_s
        self._others_until = until if self._others_until is None else min(self._others_until, until)

    def _others_run(self) -> bool:
        """Whether the last words of other pods are still to come."""
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
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        if not self._is_over():
            self._over_at = None
            return False
        self._over_at = now if self._over_at is None else self._over_at
        return now - self._over_at >= LINGERS_S

    def _is_over(self, ranks: Optional[Iterable[int]] = None) -> bool:
        """Whether all node controllers of this step, or those of `ranks`, said that they ended."""
        wanted = range(len(self._before)) if ranks is None else ranks
        try:
            return all(has_ended(read_events(self.attempt, node_source(rank))[self._before[rank] :]) for rank in wanted)
        except OSError:  # nothing is known then; the next look tells
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
        with open("/proc/self/fd/2", "rb") as file:  # under whatever name, and with a position of its own
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
