"""Keep secrets out of core dumps and out of the reach of other processes (core(5), prctl(2))."""

from __future__ import annotations

import contextlib
import resource
from typing import Tuple

_PR_SET_DUMPABLE = 4


def forbid_core_dumps(*, permanently: bool = False) -> None:
    """Forbid core dumps of this process and those it starts. They can raise the limit again (``ulimit -c``), unless
    `permanently` is true.

    A limit of 0 does not stop a core dump that is piped to a program (core_pattern with ``|``, core(5)). A limit of one
    byte does: Linux uses it as its own mark of a forbidden dump (fs/coredump.c), and no core file fits into it.
    """
    hard = core_limits()[1]
    least = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (least, least if permanently else hard))


def core_limits() -> Tuple[int, int]:
    """Return the soft and the hard limit of this process's core dumps, in bytes."""
    return resource.getrlimit(resource.RLIMIT_CORE)


def restore_core_limits(pid: int, limits: Tuple[int, int]) -> None:
    """Give a child that outlives this process the limits that this process had before."""
    if limits[1] == core_limits()[1]:  # else the program has set both limits for everything that it starts
        with contextlib.suppress(ProcessLookupError):  # it has ended
            resource.prlimit(pid, resource.RLIMIT_CORE, limits)


def hide_memory() -> None:
    """Forbid core dumps of this process, and reading its memory by processes without privileges."""
    _set_dumpable(0)
    forbid_core_dumps()


def open_proc_files() -> None:
    """Let this process write its files in /proc again, which belong to root after :func:`hide_memory` (proc(5)).

    For a child that is about to become a learner: the learner has the secrets in its environment anyway.
    """
    _set_dumpable(1)


def _set_dumpable(value: int) -> None:
    import ctypes  # commands that only forbid dumps do not need it

    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
