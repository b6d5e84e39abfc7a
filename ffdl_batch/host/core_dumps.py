"""Keeps secrets out of core dumps, and out of the reach of other processes (core(5), prctl(2))."""

from __future__ import annotations

import contextlib
import resource
from typing import Tuple

_PR_SET_DUMPABLE = 4


def forbid_core_dumps(*, permanently: bool = False) -> None:
    """Let this process and those it starts leave no core dump. They can raise the limit again (``ulimit -c``), unless
    `permanently`.

    A limit of 0 stops no core that goes to a program (core_pattern with ``|``, core(5)). One byte does: Linux takes
    that limit for its own mark of a dump that must not be (fs/coredump.c), and no file of a core fits into it.
    """
    hard = core_limits()[1]
    least = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (least, least if permanently else hard))


def core_limits() -> Tuple[int, int]:
    """Return this process's limits of core dumps in bytes: the soft and the hard one."""
    return resource.getrlimit(resource.RLIMIT_CORE)


def restore_core_limits(pid: int, limits: Tuple[int, int]) -> None:
    """Give a child that is to outlive this process the limits that this process had before."""
    if limits[1] == core_limits()[1]:  # else the program has set both, for all that it starts
        with contextlib.suppress(ProcessLookupError):  # it has ended
            resource.prlimit(pid, resource.RLIMIT_CORE, limits)


def hide_memory() -> None:
    """Let this process leave no core dump, and let no process without privilege read its memory."""
    _set_dumpable(0)
    forbid_core_dumps()


def open_proc_files() -> None:
    """Let this process write its files in /proc again, which belong to root after :func:`hide_memory` (proc(5)). For a
    child that is about to become a learner, which has the secrets in its environment."""
    _set_dumpable(1)


def _set_dumpable(value: int) -> None:
    import ctypes  # commands that only forbid dumps do not need it

    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
