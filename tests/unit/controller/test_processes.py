"""What is read of /proc, and what children get."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ffdl_batch.host.processes import Process, session_members


def test_session_members_lists_parents_first_and_once() -> None:
    """The pids wrap around, a member makes a session of its own below, and one lost its parent."""
    table = {
        pid: Process(pid, "S", parent, session, session, 0)
        for pid, parent, session in ((900, 1, 900), (40, 900, 900), (30, 40, 30), (20, 30, 30), (50, 1, 900), (7, 1, 7))
    }
    found = session_members(900, table)
    assert sorted(found) == [20, 30, 40, 50, 900]
    assert [pid for pid in found if pid != 50] == [900, 40, 30, 20]


OF_LIBC = 0b11 << 31
"""Signals 32 and 33 are glibc's own, which no program can set; posix_spawn (make uses it) has children ignore them."""
ASKED = """
import subprocess
from ffdl_batch.host.signals import hold_signals, release_signals
hold_signals()
subprocess.run(["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"], preexec_fn=release_signals, check=True)
"""


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGRTMAX])
def test_release_signals_clears_ignored_and_blocked_signals_for_child(ignored: signal.Signals) -> None:
    """A shell without job control ignores INT for what it has in the background, a service manager others."""

    def ignore() -> None:
        signal.signal(ignored, signal.SIG_IGN)

    said = subprocess.run([sys.executable, "-c", ASKED], preexec_fn=ignore, capture_output=True, text=True, check=True)
    masks = {name: int(mask, 16) for name, mask in (line.split() for line in said.stdout.splitlines())}
    assert {name: mask & ~OF_LIBC for name, mask in masks.items()} == {"SigBlk:": 0, "SigIgn:": 0}
