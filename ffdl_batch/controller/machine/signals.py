"""Signals as controllers take them: none is missed, and none interrupts anything."""

from __future__ import annotations

import signal
from typing import Optional

FORWARDED = frozenset({signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU})
"""Signals that mean nothing to controllers: a user asked for them, and they go on to the learners."""
HANDLED = FORWARDED | {signal.SIGTERM, signal.SIGINT, signal.SIGURG, signal.SIGCHLD}
"""Signals that controllers take one at a time from :func:`next_signal`; none interrupts anything else."""


def hold_signals() -> None:
    """Block the handled signals for this thread and those it starts later; they wait for :func:`next_signal`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def release_signals() -> None:
    """For a child between fork and exec: as if nothing had been blocked or ignored, by whoever started us either."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def next_signal(timeout_s: float) -> Optional[int]:
    """The next waiting signal, or None after `timeout_s` seconds."""
    info = signal.sigtimedwait(HANDLED, max(0.0, timeout_s))
    return None if info is None else info.si_signo
