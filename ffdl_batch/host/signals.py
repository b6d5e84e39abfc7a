"""Receive signals one at a time, so that none is missed and none interrupts anything."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

FORWARDED = frozenset({signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU})
"""Signals that mean nothing to controllers and are passed on to the learners, because a user requested them."""
HANDLED = FORWARDED | {signal.SIGTERM, signal.SIGINT, signal.SIGURG, signal.SIGCHLD}
"""Signals that controllers receive from :func:`next_signal`."""
_CODES = frozenset((0, 0x80, *range(-6, 0), *range(1, 7)))
"""Every `si_code` of a signal from a process, from the kernel, from a timer or of a child (siginfo.h)."""

_senders = {"only_family": False}
"""The argument of :func:`hold_signals` in this process."""


def hold_signals(*, only_family: bool = False) -> None:
    """Block the handled signals in this thread and in those it starts later. They wait for :func:`next_signal`.

    With `only_family`, signals of other processes in this pod are dropped, unless they are controllers: a learner has
    the controller's user and sees its processes. Signals from outside the pod, such as kubelet's, have no sender here
    (sigaction(2), si_pid; pid_namespaces(7)).
    """
    _senders["only_family"] = only_family
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def release_signals() -> None:
    """Unblock all signals and reset their handlers, in a child between fork and exec."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def wait_for_signal(signals: AbstractSet[signal.Signals], timeout_s: float) -> signal.struct_siginfo | None:
    """Take one of these signals, which are blocked. Return None after `timeout_s` seconds.

    If the process was stopped until after the timeout (``scontrol suspend``, a frozen cgroup), CPython returns what is
    on its stack (`signal_sigtimedwait_impl`; seen with 3.9 to 3.14; one number was SIGHUP). The check drops it.
    """
    info = signal.sigtimedwait(signals, max(0.0, timeout_s))
    if info is None or info.si_signo not in signals or info.si_errno or info.si_code not in _CODES:
        return None
    return info


def next_signal(timeout_s: float) -> int | None:
    """Return the next signal, or None after `timeout_s` seconds."""
    info = wait_for_signal(HANDLED, timeout_s)
    if info is None or (_senders["only_family"] and _is_of_learner(info)):
        return None
    return info.si_signo


def _is_of_learner(info: signal.struct_siginfo) -> bool:
    """Return whether a process of the pod that is no controller sent it (`si_code` <= 0: by kill, not the kernel)."""
    from ffdl_batch.host.processes import NAME, name_of  # too much for log writers to load

    if info.si_code > 0 or info.si_pid in (0, os.getpid(), os.getppid()) or name_of(info.si_pid) == NAME:
        return False
    name = signal.Signals(info.si_signo).name
    sys.stderr.write(f"ffdl-controller: {name} from process {info.si_pid} of the learner is ignored\n")
    return True
