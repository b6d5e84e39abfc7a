"""A command with a terminal of its own, and somebody who answers there."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Sequence

from tests.login_node import LIMIT_S, Laptop


def answer_prompts(
    laptop: Laptop, words: Sequence[str], answers: Sequence[tuple[str, str | None]], *, hides: bool = True
) -> tuple[int, str]:
    """Exit code and all that was shown. Each answer is typed when its prompt has come (None = Ctrl-C), which `hides`
    it; the last words are whether the terminal shows what is typed afterwards."""
    terminal, held = pty.openpty()
    pid = os.fork()
    if pid == 0:
        os.close(terminal)
        os.login_tty(held)
        os.chdir(laptop.directory)
        os.execve(sys.executable, laptop.argv("ffdl", words), laptop.environ)
    shown, searched = "", 0
    waiting = list(answers)
    deadline = time.monotonic() + LIMIT_S
    try:
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None or _is_ready(terminal):
            assert time.monotonic() < deadline, shown
            if _is_ready(terminal):
                shown += os.read(terminal, 1 << 16).decode("utf-8", "replace")
            if waiting and (found := shown.find(waiting[0][0], searched)) >= 0:
                searched = found + len(waiting[0][0])
                _, answer = waiting.pop(0)
                while hides and termios.tcgetattr(held)[3] & termios.ECHO:
                    assert time.monotonic() < deadline, "what is typed is shown"
                    time.sleep(0.01)
                os.write(terminal, b"\x03" if answer is None else answer.encode() + b"\n")
        echo = "on" if termios.tcgetattr(held)[3] & termios.ECHO else "off"
        assert not waiting, (waiting, shown)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), f"{shown}echo is {echo}"
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(held)
        os.close(terminal)


def _is_ready(terminal: int) -> bool:
    return bool(select.select([terminal], [], [], 0.05)[0])
