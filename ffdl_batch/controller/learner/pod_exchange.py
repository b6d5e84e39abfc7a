"""A pod's seat: the directory by which this controller and the shim in the learner's container work together.

The container has its own root, mounts and control group. What is shared is this directory, the tree of processes and
the user: so its processes are found and signalled as those of a learner on this machine are. The shim is the parent of
all that the learner starts; it is spared, because it reports how the learner ended and may have to start it again.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import Callable, Collection, Dict, List, Mapping, Optional, Tuple

from ffdl_batch.attempt.file_writer import touch
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.attempt.reader import find_text
from ffdl_batch.controller.learner.out_of_memory import OomCounters
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.pod_protocol import BEGUN, BELL, ENDED, OPEN, OUTPUT, TERMINATING
from ffdl_batch.host.processes import Process, all_processes, descendants, read_living, session_members

SEAT = "seat"
GONE_CODE = "S106"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_OUTSIDE = 0
"""Parent of a process that a container runtime started in the pod; what lost its parent belongs to process 1."""


@dataclass(frozen=True)
class Ended:
    """What the shim said of a start: exit status, and the kernel's kills for memory before and after."""

    start: str
    status: int
    kills: Tuple[int, int] = (-1, -1)


class PodExchange:
    """That of the pod whose own directory is `pod`."""

    def __init__(self, pod: str) -> None:
        self.path = os.path.join(pod, SEAT)
        self._shim: Optional[Process] = None
        self._group = ""

    def file(self, name: str) -> str:
        """One of the files in it."""
        return os.path.join(self.path, name)

    @property
    def output(self) -> str:
        """The pipe into which the learner prints."""
        return self.file(OUTPUT)

    def open(self) -> None:
        """Have the learner's container started. Raises OSError."""
        touch(self.file(OPEN))

    def ring(self) -> None:
        """Have the shim look at what is in the seat. One that is not there yet looks when it begins."""
        with contextlib.suppress(OSError):
            bell = os.open(self.file(BELL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(bell, b"\n")
            finally:
                os.close(bell)

    def ended(self) -> Optional[Ended]:
        """The shim's last word; None while there is none that is whole."""
        words = _line(self.file(ENDED)).split()
        if len(words) < 2 or not _NUMBER.fullmatch(words[1]):
            return None
        kills = [int(word) if _NUMBER.fullmatch(word) else -1 for word in words[2:4]]
        return Ended(words[0], int(words[1]) & 0xFF, (kills[0], kills[1]) if len(kills) == 2 else (-1, -1))

    def has_begun(self) -> bool:
        """Whether the learner's container was started, be it that it has ended since."""
        return self._find() is not None or bool(_line(self.file(BEGUN)))

    @property
    def shim(self) -> int:
        """Its process; 0 where it does not live (any more)."""
        found = self._find()
        return found.pid if found is not None else 0

    def _find(self) -> Optional[Process]:
        """The shim while it lives; another process may have its number later."""
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
        """The learner's processes, parents first: those below the shim, those of its session, and what else is in its
        container. Neither the shim nor what was started in the container from outside (a hook, a debugger)."""
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
        """The shim's, which is that of what the learner starts; 0 where there is none."""
        found = self._find()
        return found.group if found is not None and found.group == found.pid else 0

    def counters(self, before: OomCounters, after: OomCounters) -> Tuple[OomCounters, OomCounters]:
        """Kills for memory in the learner's container, which only the shim sees; the node's are as they were given."""
        ended = self.ended()
        kills = ended.kills if ended is not None else (-1, -1)
        own = [kill if kill >= 0 else None for kill in kills]
        return OomCounters(own[0], before.node), OomCounters(own[1], after.node)


def exchange_of(launch: LaunchFile) -> Optional[PodExchange]:
    """The seat of this node's learner; None where learners are this controller's own processes."""
    return PodExchange(launch.pod.directory) if launch.pod is not None else None


def is_cut_off(launch: LaunchFile) -> bool:
    """Return whether this pod is being deleted and shares no files with the others: kubelet keeps no annotations up to
    date in such a pod, so nothing is heard of the others any more (kubelet 1.36, `SyncTerminatingPod`)."""
    return (
        launch.pod is not None and launch.apart and os.path.exists(PodExchange(launch.pod.directory).file(TERMINATING))
    )


def spared(launch: LaunchFile) -> Collection[int]:
    """Processes in the session of a learner that are none of it."""
    seat = exchange_of(launch)
    return {seat.shim} - {0} if seat is not None else ()


def await_container(seat: PodExchange, rest: Callable[[], None]) -> None:
    """Have the learner's container started, and wait until it has. Its image may have to be fetched, for as long as the
    platform is patient. Raises OSError, PhaseFailed where it is gone already, and what `rest` raises."""
    seat.open()
    while not seat.has_begun():
        rest()
    if not seat.shim:
        raise PhaseFailed(GONE_CODE, f"the learner's container of pod {os.uname().nodename} has ended already")


def living(seat: PodExchange) -> List[int]:
    """The learner's processes now."""
    return seat.members(all_processes())


def _line(path: str) -> str:
    """The first line of a small file; "" where it has none that is whole."""
    text = find_text(path)
    return text.split("\n", 1)[0] if "\n" in text else ""


def _control_group(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # gone meanwhile, or a kernel without them
        return ""
