"""`ffdl tui` on a real terminal of 80 columns and 24 lines, with a real daemon and local jobs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from tests.contract.daemon_rig import LIMIT_S
from tests.contract.test_daemon_logs import Desk, desk_in
from tests.preloaded import FFDL

COLUMNS, LINES = 80, 24
TRAIN = """\
import os, pathlib, signal, sys, time
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
print("\\x1b[31mred\\x1b[0m begin\\x1b]0;title\\x07", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("last", flush=True)
"""


class Terminal:
    """A terminal with `ffdl tui`, and what it shows."""

    def __init__(self, desk: Desk, **variables: str) -> None:
        self.sent = b""
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            environment = {**desk.site.environment(), "TERM": "xterm-256color", "LANG": "C.UTF-8", **variables}
            os.execve(sys.executable, [*FFDL, "tui"], environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)

    def read(self, seconds: float = 0.1) -> None:
        """Show what arrives within that time."""
        while select.select([self._terminal], [], [], seconds)[0]:
            try:
                data = os.read(self._terminal, 1 << 16)
            except OSError:  # the program has ended
                return
            self.sent += data
            self._stream.feed(data)
            if not data:
                return

    def expect(self, pattern: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"{pattern!r} is not shown:\n{self.text}"
            self.read()

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def end(self) -> int:
        """Exit status after q."""
        self.press("q")
        deadline = time.monotonic() + LIMIT_S
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            assert time.monotonic() < deadline, self.text
            self.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._terminal)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path, {"train.py": TRAIN}, max_jobs=2) as made:
        yield made


@pytest.fixture
def terminal(desk: Desk) -> Iterator[Terminal]:
    made = Terminal(desk)
    yield made
    made.close()


def start(desk: Desk, name: str = "digits") -> str:
    job_id = desk.submit(name, f"python3 train.py '{desk.base}/ends'")
    desk.await_state(job_id, "PROCESSING")
    return job_id


def test_table_follows_jobs_and_fits_80_columns(desk: Desk, terminal: Terminal) -> None:
    terminal.expect("no jobs")
    job_id = start(desk)
    terminal.expect(rf"{job_id} +digits +PROCESSING +0 +\d+:\d\d")
    (desk.base / "ends").touch()
    terminal.expect(rf"{job_id} +digits +COMPLETED")
    terminal.expect("COMPLETED 1")
    assert terminal.end() == 0


def test_selected_job_is_shown_followed_halted_and_continued(desk: Desk, terminal: Terminal) -> None:
    job_id = start(desk)
    terminal.expect(job_id)
    terminal.press("\r")
    terminal.expect("Framework: +custom")
    terminal.press("\x1b")
    terminal.expect("ID +NAME")
    terminal.press("l")
    terminal.expect("red begin")
    terminal.press("\x1b")
    terminal.expect("ID +NAME")
    terminal.press("h")
    terminal.expect("Halt digits .*y/n")
    terminal.press("n")
    terminal.press("h")
    terminal.expect("Halt digits .*y/n")
    terminal.press("y")
    terminal.expect(f"{job_id} +digits +HALTED")
    (desk.base / "ends").touch()
    terminal.press("r")
    terminal.expect("Continue digits .*y/n")
    terminal.press("y")
    terminal.expect(f"{job_id} +digits +COMPLETED")
    terminal.press("l")
    terminal.expect("last")
    terminal.expect("The log is complete.")
    assert b"\x1b]0;title" not in terminal.sent, "a log sets no title of the terminal"


def test_search_and_states_select_jobs(desk: Desk, terminal: Terminal) -> None:
    first, second = start(desk, "alpha"), desk.submit("beta", "sleep 600")
    desk.await_state(second, "PROCESSING")
    waiting = desk.submit("gamma", "sleep 600")
    terminal.expect(f"{waiting} +gamma +QUEUED")
    terminal.press("/")
    terminal.expect("name or id")
    terminal.press("bet\r")
    terminal.expect(r"\[bet\]")
    assert first not in terminal.text
    terminal.press("\x1b")
    terminal.expect(first)
    terminal.press("s")
    terminal.expect(r"\[QUEUED\]")
    assert first not in terminal.text


def test_view_has_no_colours_with_no_color(desk: Desk) -> None:
    terminal = Terminal(desk, NO_COLOR="1")
    try:
        job_id = start(desk)
        terminal.expect(f"{job_id} +digits +PROCESSING")
        colours = {parts for parts in re.findall(rb"\x1b\[([0-9;]*)m", terminal.sent) if b"38;2" in parts}
        greys = {parts for parts in colours if len(set(re.findall(rb"38;2;(\d+;\d+;\d+)", parts)[0].split(b";"))) > 1}
        assert greys == set()
    finally:
        terminal.close()


def test_view_needs_terminal(desk: Desk) -> None:
    refused = desk.try_to("tui")
    assert (refused.returncode, "needs a terminal" in refused.stderr) == (2, True)
