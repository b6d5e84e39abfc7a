"""Processes forked from the warm parent: they end with it, and speak JSON lines over a pair of sockets."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import all_processes, descendants

PR_SET_PDEATHSIG = 1
"""prctl(2)"""
FAILED = 70
Message = dict[str, Any]


def fork_child(log: Path, work: Callable[[], int | None]) -> int:
    """The pid of a child that does `work`, writes to `log`, and is killed when this process ends."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_child(parent, log, work)
    return pid


def _be_child(parent: int, log: Path, work: Callable[[], int | None]) -> NoReturn:
    """Never returns into the parent's code: no handler, no `finally` of its runs here."""
    status = FAILED
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(FAILED)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        os.close(descriptor)
        status = work() or 0
    except BaseException:  # noqa: BLE001 - the child's outermost frame
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@dataclass(slots=True)
class Companion:
    """A child that answers questions."""

    name: str
    pid: int
    log: Path
    connection: socket.socket

    def ask(self, question: Message, timeout_s: float = 120.0) -> Message:
        """Its answer; raises RuntimeError with the end of its log where it does not give one."""
        try:
            self.connection.settimeout(timeout_s)
            send_line(self.connection, question)
            answer = read_line(self.connection)
        except OSError as error:
            raise RuntimeError(f"the {self.name} did not answer {question}: {error}; {self.last_words()}") from error
        if answer is None:
            raise RuntimeError(f"the {self.name} ended at {question}: {self.last_words()}")
        return answer

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def end(self) -> None:
        """Kill it, and collect it."""
        self.connection.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def fork_companion(name: str, log: Path, serve: Callable[[socket.socket], None]) -> Companion:
    """A child that serves the other end of the companion's connection."""
    ours, theirs = socket.socketpair()

    def work() -> None:
        ours.close()
        serve(theirs)

    pid = fork_child(log, work)
    theirs.close()
    return Companion(name, pid, log, ours)


def kill_children(pid: int) -> None:
    """SIGKILL all that process `pid` has started, directly or not, and that still runs."""
    for child in descendants(pid, all_processes())[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def send_line(connection: socket.socket, message: Message) -> None:
    """One message."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def read_line(connection: socket.socket) -> Message | None:
    """The next message; None where the other end is gone, even in the middle of one. One message is under way at a
    time, so nothing of the next one can be read here."""
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            return None
        data += piece
    return dict(json.loads(data))
