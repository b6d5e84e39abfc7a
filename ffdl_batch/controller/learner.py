"""One learner: start it, notice its end, end it. Never waits; the node controller's loop asks again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence

from ffdl_batch.controller.delivery import catching, deliver, learner_root
from ffdl_batch.controller.files import read_text
from ffdl_batch.controller.memory import OomCounters, read_counters, was_out_of_memory
from ffdl_batch.controller.processes import (
    all_processes,
    release_signals,
    send,
    send_group,
    session_members,
)

REST_S = 1.0
"""How long background processes may take to end after TERM once the learner's main process has ended."""


@dataclass(frozen=True)
class Start:
    """Everything that starting one learner needs, placeholders filled."""

    learner_id: int
    argv: Sequence[str]
    env: Mapping[str, str]
    working_dir: str
    log: str
    began: str


@dataclass(frozen=True)
class Ending:
    """How a learner ended. `returncode` is negative for a signal, None where it could not be started."""

    learner_id: int
    returncode: Optional[int]
    began: bool
    out_of_memory: bool = False
    ended_by: str = ""
    detail: str = ""
    code: str = ""

    @property
    def failed(self) -> bool:
        """It failed of itself, and not because it was told to end."""
        return self.returncode != 0 and not self.ended_by


@dataclass
class Learner:
    """A started learner."""

    start: Start
    process: "subprocess.Popen[bytes]"
    counters: OomCounters
    asked: str = ""
    ended_by: str = ""
    graceful: List[int] = field(default_factory=list)
    kill_at: Optional[float] = None
    group_told: bool = False
    rest_until: Optional[float] = None

    @classmethod
    def spawn(cls, start: Start) -> "Learner":
        """Start it in a session of its own, output appended to its log. Raises OSError (argv[0] missing, …)."""
        if os.path.lexists(start.began):
            os.unlink(start.began)
        log = os.open(start.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            counters = read_counters()
            process = subprocess.Popen(
                list(start.argv),
                env=dict(start.env),
                cwd=start.working_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=release_signals,  # noqa: PLW1509 - the second thread starts after the learners
            )
        finally:
            os.close(log)
        return cls(start, process, counters)

    @property
    def pid(self) -> int:
        """Main process; also the id of its session and group."""
        return self.process.pid

    def request_checkpoint(self, number: int, reason: str) -> List[int]:
        """Signal whoever in the learner catches the signal; nobody may. An exit with 0 is the answer to `reason`."""
        self.asked = self.asked or reason
        return deliver(self.pid, self._inner_pid(), number)

    def pass_on(self, number: int) -> None:
        """A signal that the user asked for, to whoever in the learner catches it. It asks for nothing of ours."""
        deliver(self.pid, self._inner_pid(), number)

    def terminate(self, reason: str, wait_s: float) -> None:
        """Begin to end it: TERM, and KILL after `wait_s` seconds. The first reason stays.

        Where processes of the user's catch TERM, they alone get it first: the shell above them would die at once
        and, in a container, take them with it before they have saved anything.
        """
        if self.kill_at is not None:
            return
        if not self.ended_by:
            self.ended_by = reason
        self.kill_at = time.monotonic() + wait_s
        table = all_processes()
        root = learner_root(self.pid, self._inner_pid(), table)
        self.graceful = [p for p in catching(root, signal.SIGTERM, table) if send(p, signal.SIGTERM)]

    def kill(self, reason: str) -> None:
        """KILL it and all of its session now."""
        self.ended_by = self.ended_by or reason
        self.kill_at = 0.0

    def poll(self) -> Optional[Ending]:
        """Its ending once neither the main process nor anything of its session is left."""
        returncode = self.process.poll()
        if self.kill_at is not None:
            self._press(returncode is None)
        if returncode is None or self._rest_lives():
            return None
        after = read_counters()
        return Ending(
            self.start.learner_id,
            returncode,
            began=os.path.exists(self.start.began),
            out_of_memory=was_out_of_memory(self.counters, after, returncode),
            ended_by=self.ended_by or (self.asked if returncode == 0 else ""),
        )

    def _press(self, main_lives: bool) -> None:
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            for pid in session_members(self.pid, all_processes()):
                send(pid, signal.SIGKILL)
        elif not self.group_told and main_lives:
            table = all_processes()
            if not any(pid in table for pid in self.graceful):
                self.group_told = send_group(self.pid, signal.SIGTERM)

    def _rest_lives(self) -> bool:
        """Whether background processes still hold the log; they are told to end, then killed."""
        rest = session_members(self.pid, all_processes())
        if not rest:
            return False
        now = time.monotonic()
        if self.rest_until is None:
            self.rest_until = max(now + REST_S, self.kill_at or 0.0)
            number = signal.SIGTERM
        elif now > self.rest_until:
            number = signal.SIGKILL
        else:
            return True
        for pid in rest:
            if number == signal.SIGKILL or pid not in self.graceful:
                send(pid, number)
        return True

    def _inner_pid(self) -> str:
        return read_text(self.start.began).strip()


def placeholder_devices(devices: str, learners: int) -> List[str]:
    """The node's device list split evenly over its learners, in order; what is left over goes to nobody."""
    names = [name for name in devices.split(",") if name]
    share = len(names) // max(1, learners)
    return [",".join(names[i * share : (i + 1) * share]) for i in range(learners)]


def first_host(node_list: str) -> str:
    """The first name of a Slurm node list such as ``n[03-07,9],m1`` (Slurm's hostlist form); "" of none."""
    out, depth, text = [], 0, node_list.strip()
    taking = True
    for char in text:
        if char == "[":
            depth, taking = depth + 1, True
        elif char == "]":
            depth, taking = depth - 1, True
        elif depth and char in ",-":
            taking = False
        elif char == "," and not depth:
            break
        elif taking:
            out.append(char)
    return "".join(out)


def values_for(base: Dict[str, str], learner_id: int, local_rank: int, devices: str) -> Dict[str, str]:
    """The placeholders of one learner on top of the node's."""
    count = len([name for name in devices.split(",") if name])
    return {
        **base,
        "learner_id": str(learner_id),
        "rank": str(learner_id - 1),
        "local_rank": str(local_rank),
        "gpus": devices,
        "gpu_count": str(count),
        "env_file": f"{base['scratch']}/learner-{learner_id}.env",
    }
