"""Find out whether the kernel killed a learner for memory.

The counter is ``oom_kill`` of ``memory.events`` (cgroup v2) or ``memory.oom_control`` (v1, Linux 4.13+) of the
controller's own cgroup, which its learners share. If neither can be read, it is ``oom_kill`` of /proc/vmstat (Linux
4.13+). That counts the whole node, so it is used only for a process that ended with SIGKILL.
"""

from __future__ import annotations

import os
import signal
from typing import List, Optional, Tuple

from ffdl_batch.host.cgroups import group_paths, read_field, read_number
from ffdl_batch.host.fast_dataclass import dataclass

_V2 = ("", "memory.events", "memory.max", "memory.stat", "shmem")
_V1 = ("memory", "memory.oom_control", "memory.limit_in_bytes", "memory.stat", "total_shmem")
_UNLIMITED = 1 << 60
"""cgroup v1 writes the largest multiple of the page size that a signed 64-bit number can hold for "no limit"."""


@dataclass(frozen=True)
class OomCounters:
    """Numbers of processes killed for memory so far; None if unknown."""

    cgroup: Optional[int]
    """In the own cgroup."""
    node: Optional[int]
    """On the whole node."""


def read_counters(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> OomCounters:
    """Return the counters now."""
    own = [os.path.join(group, names[1]) for group, names in _own_groups(proc, cgroups)]
    kills = [count for count in (read_field(path, "oom_kill") for path in own) if count is not None]
    return OomCounters(next(iter(kills), None), read_field(os.path.join(proc, "vmstat"), "oom_kill"))


def was_out_of_memory(before: OomCounters, after: OomCounters, returncode: int) -> bool:
    """Return whether a process that ended with `returncode` (negative: a signal) was killed for memory."""
    if returncode == 0:
        return False
    if before.cgroup is not None and after.cgroup is not None:
        return after.cgroup > before.cgroup
    killed = returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return killed and before.node is not None and after.node is not None and after.node > before.node


def describe_memory(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> str:
    """Return how much memory the job has on this node, and how much of it files in memory hold now, such as ``128 MiB
    on this node, 90 MiB of it in /dev/shm or other files in memory``; "" if no limit can be read."""
    for group, (_, _, limit_name, stat, shared_name) in _own_groups(proc, cgroups):
        limit = _smallest_limit(group, cgroups, limit_name)
        if limit is not None:
            shared = read_field(os.path.join(group, stat), shared_name) or 0
            files = f", {_size(shared)} of it in /dev/shm or other files in memory" if shared >= limit // 10 else ""
            return f"{_size(limit)} on this node{files}"
    return ""


def _own_groups(proc: str, cgroups: str) -> List[Tuple[str, Tuple[str, ...]]]:
    """Return the directory of this process's group in each hierarchy that has memory, with the names of its files."""
    v1, v2 = group_paths(proc)
    found = [(path, _V1) for controllers, path in v1.items() if "memory" in controllers.split(",")]
    found += [(v2, _V2)] if v2 is not None else []
    return [(os.path.join(cgroups, names[0], path.lstrip("/")), names) for path, names in found]


def _smallest_limit(group: str, cgroups: str, name: str) -> Optional[int]:
    """Return the smallest limit of the group and those above it, in bytes; None if there is none."""
    limits = []
    while group.startswith(cgroups) and group != cgroups:
        limits.append(read_number(os.path.join(group, name)))
        group = os.path.dirname(group)
    return min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 10 << 30 else f"{count >> 20} MiB"
