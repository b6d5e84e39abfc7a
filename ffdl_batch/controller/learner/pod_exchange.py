"""Exchange files with the shim in the learner's container, and find the learner's processes, in a pod.

The container has its own root, mounts and control group. It shares the exchange directory, the process namespace and
the user with this controller, so its processes are found and signalled like those of a learner on this machine. The
shim is the parent of everything that the learner starts. It is spared, because it reports how the learner ended and may
have to start it again.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Callable, Collection, Dict, List, Mapping, Optional, Tuple

from ffdl_batch.attempt.file_writer import touch
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.attempt.reader import find_text
from ffdl_batch.controller.learner.out_of_memory import OomCounters
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.pod_protocol import BEGUN, BELL, ENDED, OPEN, OUTPUT, TERMINATING
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import Process, all_processes, descendants, read_living, session_members

SEAT = "seat"
GONE_CODE = "S106"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_OUTSIDE = 0
"""Parent of a process that a container runtime started in the pod.

A process that lost its parent belongs to process 1.
"""


@dataclass(frozen=True)
class Ended:
    """The shim's report about one start of the learner."""

    start: str
    status: int
    """Exit status."""
    kills: Tuple[int, int] = (-1, -1)
    """Numbers of processes killed for memory before and after; -1 if unknown."""


class PodExchange:
    """The exchange directory of the pod whose own directory is `pod`."""

    def __init__(self, pod: str) -> None:
        self.path = os.path.join(pod, SEAT)
        self._shim: Optional[Process] = None
        self._group = ""

    def file(self, name: str) -> str:
        """Return the path of a file in it."""
        return os.path.join(self.path, name)

    @property
    def output(self) -> str:
        """Return the pipe for the learner's output."""
        return self.file(OUTPUT)

    def open(self) -> None:
        """Let the learner's container start. Raises OSError."""
        touch(self.file(OPEN))

    def ring(self) -> None:
        """Wake the shim, so that it reads the files. A shim that has not started yet reads them when it starts."""
        with contextlib.suppress(OSError):
            bell = os.open(self.file(BELL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(bell, b"\n")
            finally:
                os.close(bell)

    def ended(self) -> Optional[Ended]:
        """Return the shim's last report; None while there is no complete one."""
        words = _line(self.file(ENDED)).split()
        if len(words) < 2 or not _NUMBER.fullmatch(words[1]):
            return None
        kills = [int(word) if _NUMBER.fullmatch(word) else -1 for word in words[2:4]]
        return Ended(words[0], int(words[1]) & 0xFF, (kills[0], kills[1]) if len(kills) == 2 else (-1, -1))

    def has_begun(self) -> bool:
        """Return whether the learner's container was started. It may have ended since."""
        return self._find() is not None or bool(_line(self.file(BEGUN)))

    @property
    def shim(self) -> int:
        """Return the process id of the shim; 0 if it is not running."""
        found = self._find()
        return found.pid if found is not None else 0

    def _find(self) -> Optional[Process]:
        """Return the shim's process if it is alive. Another process may get its number later."""
        text = _line(self.file(BEGUN)).strip()
        known = self._shim
        if known is None or str(known.pid) != text:
            known = read_living(int(text)) if _NUMBER.fullmatch(text) and int(text) > 1 else None
            if known is None:
                return None
            self._shim, self._group = known, _control_group(known.pid)
        now = read_living(known.pid)
        return now if now is not None and now.start_ticks == known.start_ticks else None

    def members(self, table: Mapping[int, Process]) -> List[int]:
        """Return the learner's processes, parents first: the shim's descendants, its session, and the container's
        others.

        The shim is left out, and what was started in the container from outside (a hook, a debugger).
        """
        shim = self.shim
        found = set(session_members(shim, table)) | set(descendants(shim, table)) if shim else set()
        if self._group and self._group != _control_group(os.getpid()):
            found |= {pid for pid in table if _control_group(pid) == self._group}
        for process in table.values():
            if process.parent == _OUTSIDE and process.pid not in (1, shim):
                found -= set(descendants(process.pid, table))
        found.discard(shim)
        tops = [pid for pid in sorted(found) if table[pid].parent not in found]
        ordered: Dict[int, None] = {}
        for top in tops:
            ordered.update((pid, None) for pid in descendants(top, table) if pid in found)
        return list(ordered)

    def process_group(self) -> int:
        """Return the process group of the shim and of what the learner starts; 0 if there is none."""
        found = self._find()
        return found.group if found is not None and found.group == found.pid else 0

    def counters(self, before: OomCounters, after: OomCounters) -> Tuple[OomCounters, OomCounters]:
        """Return the counters with the kills in the learner's container, which only the shim can read."""
        ended = self.ended()
        kills = ended.kills if ended is not None else (-1, -1)
        own = [kill if kill >= 0 else None for kill in kills]
        return OomCounters(own[0], before.node), OomCounters(own[1], after.node)


def exchange_of(launch: LaunchFile) -> Optional[PodExchange]:
    """Return the exchange of this node's learner; None if learners are this controller's own processes."""
    return PodExchange(launch.pod.directory) if launch.pod is not None else None


def is_cut_off(launch: LaunchFile) -> bool:
    """Return whether this pod is being deleted and shares no files with the others.

    kubelet does not update annotations in such a pod, so it gets no more events of the others (kubelet 1.36,
    `SyncTerminatingPod`).
    """
    return (
        launch.pod is not None and launch.apart and os.path.exists(PodExchange(launch.pod.directory).file(TERMINATING))
    )


def spared(launch: LaunchFile) -> Collection[int]:
    """Return processes in the session of a learner that do not belong to it."""
    seat = exchange_of(launch)
    return {seat.shim} - {0} if seat is not None else ()


def await_container(seat: PodExchange, rest: Callable[[], None]) -> None:
    """Let the learner's container start, and wait until it has. Its image may have to be fetched first.

    Raises OSError, PhaseFailed if it has ended already, and what `rest` raises.
    """
    seat.open()
    while not seat.has_begun():
        rest()
    if not seat.shim:
        raise PhaseFailed(GONE_CODE, f"the learner's container of pod {os.uname().nodename} has ended already")


def living(seat: PodExchange) -> List[int]:
    """Return the learner's processes now."""
    return seat.members(all_processes())


def _line(path: str) -> str:
    """Return the first line of a small file; "" if it has no complete line."""
    text = find_text(path)
    return text.split("\n", 1)[0] if "\n" in text else ""


def _control_group(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # ended meanwhile, or a kernel without control groups
        return ""
