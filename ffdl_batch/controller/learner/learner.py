"""Start, signal and end one learner, and notice its end. Nothing here waits; the node controller polls."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import field
from typing import Collection, Dict, List, Mapping, Optional, Protocol, Sequence, Set

from ffdl_batch.attempt.file_writer import remove
from ffdl_batch.controller.become import prefer_as_victim
from ffdl_batch.controller.learner.out_of_memory import (
    OomCounters,
    describe_memory,
    read_counters,
    was_out_of_memory,
)
from ffdl_batch.controller.learner.pod_exchange import PodExchange
from ffdl_batch.controller.logs.output_pipe import LogPlace, Output
from ffdl_batch.domain.launch.learner_text import KILLED_FOR_MEMORY
from ffdl_batch.host.core_dumps import open_proc_files
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import (
    Process,
    all_processes,
    catches,
    descendants,
    send,
    send_group,
    session_members,
    status_field,
)
from ffdl_batch.host.running_clock import RunningTime
from ffdl_batch.host.signals import release_signals


def learner_root(main: int, inner_pid: str, table: Mapping[int, Process]) -> int:
    """Return the process below `main` whose innermost id is `inner_pid` (last number of NSpid), else `main`."""
    if inner_pid:
        for pid in descendants(main, table):
            numbers = status_field(pid, "NSpid").split()
            if numbers and numbers[-1] == inner_pid and (pid != main or len(numbers) == 1):
                return pid
    return main


def catching(root: int, number: int, table: Mapping[int, Process], signalled: Collection[int] = ()) -> List[int]:
    """Return the first process that catches the signal on each branch of the tree from `root`.

    Processes that were `signalled` before, and those below them, are left out.
    """
    children = {}  # type: dict[int, list[int]]
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid in signalled:
            continue
        if catches(pid, number):
            found.append(pid)
        else:
            waiting.extend(children.get(pid, ()))
    return sorted(found)


def deliver(main: int, inner_pid: str, number: int, signalled: Collection[int] = ()) -> List[int]:
    """Signal the learner whose main process is `main`; return the processes that got it (none: no process catches it).

    No process gets it before the user's command was reached (`inner_pid` ""), because a container runtime would catch
    it, or after the main process has ended (0).
    """
    if not inner_pid or not main:
        return []
    table = all_processes()
    return [
        pid for pid in catching(learner_root(main, inner_pid, table), number, table, signalled) if send(pid, number)
    ]


FENCE = "fence"
"""`ended_by` of a learner that must not even write any more."""
ANSWER_S = 1.0
"""Seconds that a learner's shell may continue after the program that caught TERM has ended."""
REST_S = 1.0
"""Seconds that background processes may take to end after TERM once the learner's main process has ended."""


@dataclass(frozen=True)
class Start:
    """Everything that starting one learner needs, with placeholders filled."""

    learner_id: int
    argv: Sequence[str]
    env: Mapping[str, str]
    working_dir: str
    log: LogPlace
    began: str
    ended: str
    seat: Optional[PodExchange] = None
    """If another container runs the learner, the process that is started here represents it."""
    umask: int = -1
    """Umask of the learner and of its log; -1 means this process's."""


@dataclass(frozen=True)
class Ending:
    """How a learner ended."""

    learner_id: int
    returncode: Optional[int]
    """Negative for a signal; None if the learner could not be started."""
    began: bool
    out_of_memory: bool = False
    ended_by: str = ""
    asked: str = ""
    """Why it was asked for a checkpoint; "" if it was not."""
    signalled: bool = False
    """Whether one of its processes caught the checkpoint signal."""
    detail: str = ""
    code: str = ""

    @property
    def failed(self) -> bool:
        """Return whether it failed by itself, and not because a controller ended it."""
        return self.returncode != 0 and not self.ended_by


class LearnerFiles(Protocol):
    """What the files on the shared file system show about learners, as last read."""

    def inner_pid(self, learner_id: int) -> str:
        """Return the process id of the learner's shell, as seen inside; "" if it is not known."""
        ...

    def has_begun(self, learner_id: int) -> bool:
        """Return whether its shell reached the user's command."""
        ...

    def forget(self, learner_id: int) -> None:
        """Forget what is known, because the learner is started. Its old files are removed already."""
        ...


@dataclass
class Learner:
    """A started learner. Times are of `clock`."""

    start: Start
    process: "subprocess.Popen[bytes]"
    output: Output
    counters: OomCounters
    clock: RunningTime
    sight: LearnerFiles
    asked: str = ""
    signals_sent: Set[int] = field(default_factory=set)
    ended_by: str = ""
    by_term: bool = False
    graceful: List[int] = field(default_factory=list)
    kill_at: Optional[float] = None
    group_at: Optional[float] = None
    group_signalled: bool = False
    rest_until: Optional[float] = None

    @classmethod
    def spawn(cls, start: Start, clock: RunningTime, sight: LearnerFiles, through: Sequence[str] = ()) -> "Learner":
        """Start it in a session of its own, with its output connected to its log. Raises OSError.

        `through` is the argv of a program that prepares itself and becomes the learner. It is needed if this process
        has threads: they may hold locks for which its code would wait in a child.
        """
        for left in (start.began, start.ended):
            remove(left)
        sight.forget(start.learner_id)
        output = Output(start.log, start.umask)
        try:
            counters = read_counters()
            process = subprocess.Popen(
                [*through, *start.argv],
                env=dict(start.env),
                cwd=start.working_dir,
                stdin=subprocess.DEVNULL,
                stdout=output.write_end,
                stderr=output.write_end,
                start_new_session=True,
                umask=start.umask,
                preexec_fn=None if through else _prepare if start.seat is None else release_signals,  # noqa: PLW1509 - no second thread runs yet
            )
        finally:
            output.release()
        return cls(start, process, output, counters, clock, sight)

    @property
    def pid(self) -> int:
        """Return the id of its main process, session and process group."""
        return self.process.pid

    @property
    def root(self) -> int:
        """Return the process above the learner's: its main process, or its container's shim (0 if it has ended)."""
        return self.pid if self.start.seat is None else self.start.seat.shim

    def request_checkpoint(self, number: int, reason: str) -> bool:
        """Signal processes that catch the signal and have not had it. Return whether any process ever got it.

        Call this repeatedly, because a program that is still starting catches no signal yet.
        """
        self.asked = reason
        self.signals_sent.update(deliver(self.root, self._inner_pid(), number, self.signals_sent))
        return bool(self.signals_sent)

    def request_by_term(self, reason: str, kill_at: float) -> None:
        """Send TERM to the user's processes that catch it, if no process catches the checkpoint signal.

        An exit with status 0 then counts as their answer, as after the checkpoint signal.
        """
        table, inner = all_processes(), self._inner_pid()
        if inner and self.root and catching(learner_root(self.root, inner, table), signal.SIGTERM, table):
            self.terminate(reason, kill_at)
            self.by_term = bool(self.graceful)

    def pass_on(self, number: int) -> None:
        """Send a signal that the user asked for to processes that catch it. It requests no checkpoint."""
        deliver(self.root, self._inner_pid(), number)

    def terminate(self, reason: str, kill_at: float) -> None:
        """Send TERM, and KILL at `kill_at`. If called again, the earlier time and the first reason apply.

        If processes of the user catch TERM, only they get it first. The shell above them would end at once, and in a
        container end them before they have saved anything.
        """
        if self.kill_at is not None:
            self.kill_at = min(self.kill_at, kill_at)
            return
        if not self.ended_by:
            self.ended_by = reason
        self.kill_at = kill_at
        table = all_processes()
        shim = self.root if self.start.seat is not None else 0  # catches TERM, but is not part of the learner
        if shim:
            members = self._members(table)
            roots = [pid for pid in members if table[pid].parent not in members]
        else:
            roots = [learner_root(self.pid, self._inner_pid(), table)]
        found = sorted({pid for root in roots for pid in catching(root, signal.SIGTERM, table)})
        self.graceful = [pid for pid in found if send(pid, signal.SIGTERM)]

    def kill(self, reason: str) -> None:
        """Send KILL to the learner and all of its session at the next :meth:`poll`."""
        self.ended_by = self.ended_by or reason
        self.kill_at = 0.0

    def poll(self) -> Optional[Ending]:
        """Return how it ended, once no process of its session is left and its log is written, else None."""
        returncode = self.process.poll()
        if self.kill_at is not None:
            self._press(returncode is None)
        if returncode is None or self._rest_lives():
            self.output.mind()
            return None
        if not self.output.has_ended(at_once=self.ended_by == FENCE):
            return None
        before, after = self.counters, read_counters()
        if self.start.seat is not None:
            before, after = self.start.seat.counters(before, after)
        answered = self.by_term and returncode == 0
        starved = was_out_of_memory(before, after, returncode)
        # In a pod, the limit is that of the learner's container, which only Kubernetes knows.
        memory = describe_memory() if starved and self.start.seat is None else ""
        return Ending(
            self.start.learner_id,
            returncode,
            began=self.sight.has_begun(self.start.learner_id),
            out_of_memory=starved,
            ended_by="" if answered else self.ended_by,
            asked=self.asked,
            signalled=bool(self.signals_sent) or self.by_term,
            detail=f"learner {self.start.learner_id} {KILLED_FOR_MEMORY}: {memory}" if memory else "",
        )

    def _press(self, main_lives: bool) -> None:
        if self.kill_at is not None and self.clock.now() >= self.kill_at:
            for pid in self._members(all_processes()):
                send(pid, signal.SIGKILL)
        elif not self.group_signalled and main_lives:
            table = all_processes()
            if any(pid in table for pid in self.graceful):
                return
            # A shell whose program ended after TERM ends by itself a moment later; its status is the answer.
            if self.group_at is None:
                self.group_at = self.clock.now() + (ANSWER_S if self.by_term else 0.0)
            if self.clock.now() >= self.group_at:
                self.group_signalled = self._send_group(signal.SIGTERM)

    def _rest_lives(self) -> bool:
        """Return whether background processes are left. They get TERM, then KILL."""
        rest = self._members(all_processes())
        if not rest:
            return False
        now = self.clock.now()
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

    def _members(self, table: Mapping[int, Process]) -> List[int]:
        """Return its processes, also those in sessions of their own."""
        return session_members(self.pid, table) if self.start.seat is None else self.start.seat.members(table)

    def _send_group(self, number: int) -> bool:
        group = self.pid if self.start.seat is None else self.start.seat.process_group()
        return bool(group) and send_group(group, number)

    def _inner_pid(self) -> str:
        return self.sight.inner_pid(self.start.learner_id)


def _prepare() -> None:
    """Prepare a learner that is a child of this process, between fork and exec."""
    open_proc_files()
    prefer_as_victim()
    release_signals()


def placeholder_devices(devices: str, learners: int) -> List[str]:
    """Split the node's device list evenly over its learners, in order; no learner gets the remainder."""
    names = [name for name in devices.split(",") if name]
    share = len(names) // max(1, learners)
    return [",".join(names[i * share : (i + 1) * share]) for i in range(learners)]


def first_host(node_list: str) -> str:
    """Return the first name of a Slurm node list such as ``n[03-07,9],m1``; "" if it is empty."""
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
    """Return the node's placeholder values with those of one learner."""
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
