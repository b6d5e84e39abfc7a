"""Ask programs and file systems that may never answer, each in a child process with a time limit.

A process that hangs in the kernel cannot be killed. So this module never waits for a child to end: it sends the child
a signal and leaves it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple, Sequence

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", "LC_ALL": "C"}
"""What programs are started with."""
MOST_BYTES = 4 << 20


class Answer(NamedTuple):
    """What a program printed, on both outputs together, and its exit status; None: it did not end in time, and `pid`
    may live on."""

    text: str
    status: int | None
    pid: int


def is_installed(program: str) -> bool:
    """Whether `ask` would find it."""
    return shutil.which(program, path=ENVIRONMENT["PATH"]) is not None


def ask(argv: Sequence[str], timeout_s: float) -> Answer:
    """The program's answer; of more than MOST_BYTES the first ones. Raises OSError where it cannot be started."""
    deadline = time.monotonic() + timeout_s
    child = subprocess.Popen(
        argv,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        close_fds=True,
    )
    assert child.stdout is not None
    with child.stdout as pipe:
        text = _read(pipe.fileno(), deadline)
    status = _status(child, deadline)
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.2)
        child.returncode = child.returncode or -signal.SIGKILL  # so that nothing waits for it at the end
    return Answer(text, status, child.pid)


def ask_once(name: str, argv: Sequence[str], timeout_s: float, stuck: dict[str, list[int]]) -> Answer | None:
    """As `ask`; None: it did not answer in time, or the one that was asked before under that name hangs still. Then no
    further one is started: each would hang as well. `stuck` remembers them. Raises OSError."""
    pid, start = stuck.pop(name, [0, 0])
    if start and _started(pid) == start:
        stuck[name] = [pid, start]
        return None
    answer = ask(argv, timeout_s)
    if answer.status is not None:
        return answer
    if alive := _started(answer.pid):
        stuck[name] = [answer.pid, alive]
    return None


def _started(pid: int) -> int:
    """When a process began, in clock ticks after boot; 0 = it is not there, or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _read(descriptor: int, deadline: float) -> str:
    """All that comes until the end of the output or the deadline."""
    found = b""
    with selectors.DefaultSelector() as ready:
        ready.register(descriptor, selectors.EVENT_READ)
        while len(found) < MOST_BYTES and ready.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                break
            found += piece
    return found.decode("utf-8", errors="replace")


def _status(child: subprocess.Popen[bytes], deadline: float) -> int | None:
    try:
        return child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
