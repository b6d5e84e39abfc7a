"""No memory image of a process of a person's that has values of secrets (core(5))."""

from __future__ import annotations

import resource
from contextlib import suppress


def leave_no_dump() -> None:
    """This process and what it starts leave no core dump from now on; each may ask for one again.

    A limit of 0 stops no core that goes to a program (core_pattern with ``|``, core(5)). One byte does: Linux takes
    that limit for its own mark of a dump that must not be (fs/coredump.c), and no file of a core fits into it.
    """
    hard = dump_limits()[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))


def dump_limits() -> tuple[int, int]:
    """This process's limits of core dumps in bytes: the one that counts, and how high it may be set."""
    return resource.getrlimit(resource.RLIMIT_CORE)


def restore_dumps(pid: int, limits: tuple[int, int]) -> None:
    """A process that this one started, and that is to outlive it, has the limits that this one had once."""
    if limits[1] == dump_limits()[1]:  # else the program has set both, for all that it starts
        with suppress(ProcessLookupError):  # it ended at once, which is told elsewhere
            resource.prlimit(pid, resource.RLIMIT_CORE, limits)
