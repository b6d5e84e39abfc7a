"""Whether the kernel killed a learner for memory.

Counters: ``oom_kill`` of ``memory.events`` (cgroup v2) or ``memory.oom_control`` (v1, Linux 4.13+) of the
controller's own cgroup, which its learners share; where neither can be read, ``oom_kill`` of /proc/vmstat
(Linux 4.13+), which counts the whole node and is therefore asked only about a learner that died of SIGKILL.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class OomCounters:
    """Kills so far: by the own cgroup (None = cannot be read), and on the whole node."""

    cgroup: Optional[int]
    node: Optional[int]


def read_counters(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> OomCounters:
    """The counters now."""
    return OomCounters(_cgroup_kills(proc, cgroups), _count(os.path.join(proc, "vmstat")))


def was_out_of_memory(before: OomCounters, after: OomCounters, returncode: int) -> bool:
    """Whether a learner that ended with `returncode` (negative: a signal) was killed for memory."""
    if returncode == 0:
        return False
    if before.cgroup is not None and after.cgroup is not None:
        return after.cgroup > before.cgroup
    killed = returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return killed and before.node is not None and after.node is not None and after.node > before.node


def _cgroup_kills(proc: str, cgroups: str) -> Optional[int]:
    for path in _own_files(proc, cgroups):
        count = _count(path)
        if count is not None:
            return count
    return None


def _own_files(proc: str, cgroups: str) -> Tuple[str, ...]:
    try:
        with open(os.path.join(proc, "self/cgroup"), encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:  # a kernel without cgroups: the node's counter is asked instead
        return ()
    v1 = [path for _, names, path in lines if "memory" in names.split(",")]
    v2 = [path for number, names, path in lines if number == "0" and not names]
    return tuple(
        [os.path.join(cgroups, "memory", path.lstrip("/"), "memory.oom_control") for path in v1]
        + [os.path.join(cgroups, path.lstrip("/"), "memory.events") for path in v2]
    )


def _count(path: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):  # not this kernel's form: the caller asks the next source
        return None
    return None
