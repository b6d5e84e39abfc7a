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
"""The environment of all programs."""
MOST_BYTES = 4 << 20


class Answer(NamedTuple):
    """The output of a program on both streams, and its exit status. None: it did not end in time, and may still run."""

    text: str
    status: int | None
    pid: int


def is_installed(program: str) -> bool:
    """Return whether `ask` would find the program."""
    return shutil.which(program, path=ENVIRONMENT["PATH"]) is not None


def ask(argv: Sequence[str], timeout_s: float) -> Answer:
    """Run a program and return its answer, at most MOST_BYTES of it. Raises OSError if it cannot be started."""
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
        child.returncode = child.returncode or -signal.SIGKILL  # so that Python does not wait for it at exit
    return Answer(text, status, child.pid)


def ask_once(name: str, argv: Sequence[str], timeout_s: float, stuck: dict[str, list[int]]) -> Answer | None:
    """Do the same as `ask`, but start no program while an earlier one of that name hangs: it would hang, too.

    Return None if the program did not answer in time, or an earlier one still hangs. `stuck` has the programs that
    hang. Raises OSError.
    """
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
    """Return when a process started, in clock ticks after boot; 0 if it does not exist or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _read(descriptor: int, deadline: float) -> str:
    """Read until the end of the output, the deadline, or MOST_BYTES."""
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
