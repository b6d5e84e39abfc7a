"""No memory image of a process that has secrets (core(5), prctl(2))."""

from __future__ import annotations

import contextlib
import ctypes
import resource

_PR_SET_DUMPABLE = 4


def leave_no_dumps() -> None:
    """This process leaves no core dump, and no other one without privilege may read its memory. What it starts from now
    on leaves none either, but may raise its limit again (``ulimit -c``), for whoever debugs a training."""
    _set_dumpable(0)
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def open_proc_files() -> None:
    """Let this process write its files in /proc again, which belong to root after :func:`leave_no_dumps` (proc(5)). For
    a child that is about to become a learner, which has the secrets in its environment."""
    _set_dumpable(1)


def _set_dumpable(value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # where that is not Linux's
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
