"""Waiting for signals in a process that is stopped and continued, as `scontrol suspend` does it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from ffdl_batch.host.signals import HANDLED, wait_for_signal

PROGRAM = """
from ffdl_batch.host.signals import hold_signals, next_signal
hold_signals()
print("ready", flush=True)
while True:
    number = next_signal(0.02)
    if number is not None:
        print(number, flush=True)
        if number == 15:
            break
"""


def test_stopped_process_takes_only_signals_that_were_sent() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            for number in (None, None, signal.SIGUSR2, None, signal.SIGTERM):
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.1)
                if number is not None:
                    process.send_signal(number)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.05)
            found, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert found.split() == [str(int(signal.SIGUSR2)), str(int(signal.SIGTERM))]


def test_wait_for_signal_returns_none_after_timeout() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        assert wait_for_signal(HANDLED - {signal.SIGCHLD}, 0.01) is None
        signal.raise_signal(signal.SIGUSR1)
        found = wait_for_signal(HANDLED, 60)
        assert found is not None and found.si_signo == signal.SIGUSR1
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
