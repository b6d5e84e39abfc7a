"""One container as the kubelet sees it: the process that is its parent, and what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.fakes.kubernetes.kubelet.inside import look_up

_ROOT = Path(__file__).resolve().parents[4]
_RUNTIME = f"""\
import sys
sys.path.insert(0, {str(_ROOT)!r})
from tests.fakes.kubernetes.kubelet.runtime import serve_forks
serve_forks()
"""


@dataclass(frozen=True, slots=True)
class End:
    code: int
    oom: bool = False


class StartFailed(Exception):
    """The container, or a process in it, could not be started."""


@cache
def _forks() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that forks the parents of containers; it ends with this process."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-I", "-S", "-c", _RUNTIME]
    with other:
        return own, subprocess.Popen(argv, stdin=other.fileno(), start_new_session=True)


class Process:
    """A container of real processes."""

    def __init__(self, wake_readers: Callable[[], None]) -> None:
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.pid = 0
        self._wake_readers = wake_readers
        self._spec: dict[str, Any] = {}
        self._given: asyncio.StreamWriter | None = None
        self._said: asyncio.StreamReader | None = None
        self._listener: asyncio.Task[None] | None = None

    async def start(self, spec: dict[str, Any]) -> None:
        """Run. Raises StartFailed."""
        self._spec = spec
        given, gives = os.pipe()
        says, said = os.pipe()
        socket.send_fds(_forks()[0], [b"+"], [given, said])
        os.close(given)
        os.close(said)
        self._given, self._said = await _writer(gives), await _reader(says)
        try:
            self._send(spec)
            answer = await self._line()
        except asyncio.CancelledError:
            self._given.close()
            raise
        if answer.get("event") != "started":
            raise StartFailed(answer.get("message", "the container's parent ended"))
        self.pid = answer["pid"]
        self._listener = asyncio.create_task(self._listen())

    async def _line(self) -> dict[str, Any]:
        assert self._said is not None
        line = await self._said.readline()
        return dict(json.loads(line)) if line else {}

    async def _listen(self) -> None:
        while said := await self._line():
            if said["event"] == "log":
                self._wake_readers()
            elif said["event"] == "ended":
                self._end(End(said["code"], said["oom"]))
        self._end(End(137))

    def _end(self, end: End) -> None:
        if not self.ended.done():
            self.ended.set_result(end)
        self._wake_readers()

    def _send(self, said: dict[str, Any]) -> None:
        assert self._given is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._given.write(json.dumps(said).encode() + b"\n")

    def signal(self, number: int) -> None:
        self._send({"do": "signal", "signal": number})

    def kill(self) -> None:
        self._send({"do": "kill"})

    def rotate(self) -> None:
        self._send({"do": "rotate"})

    def run_out_of_memory(self, *, whole: bool) -> None:
        self._send({"do": "oom", "whole": whole})

    async def attach(self, argv: list[str], streams: int) -> asyncio.subprocess.Process:
        """Start another process in the container. Raises StartFailed."""
        user, environment = self._spec["user"], self._spec["environment"]
        try:
            look_up(argv[0], environment["PATH"], f"/proc/{self.pid}/root")
        except OSError as error:
            raise StartFailed(str(error)) from error
        confined = ["--bounding-set=-all"] * user["drop"] + ["--no-new-privs"] * user["no_new_privs"]
        groups = f"--groups={','.join(map(str, user['groups']))}" if user["groups"] else "--clear-groups"
        return await asyncio.create_subprocess_exec(
            "nsenter", f"--target={self.pid}", "--mount", "--uts", "--pid", "--net",
            "setpriv", f"--reuid={user['uid']}", f"--regid={user['gid']}", groups, *confined,
            "env", "-i", f"--chdir={self._spec['cwd']}", *(f"{name}={value}" for name, value in environment.items()),
            *argv, stdin=streams, stdout=streams, stderr=streams,
        )  # fmt: skip

    async def execute(self, argv: list[str], timeout: float) -> int:
        """Run another process in the container; return its status."""
        try:
            process = await self.attach(argv, DEVNULL)
            return await asyncio.wait_for(process.wait(), timeout)
        except (StartFailed, TimeoutError):
            return 127

    async def release(self) -> None:
        """End the parent, and so everything."""
        if self._given is not None and self._listener is not None:
            self._given.close()
            await asyncio.wait([self._listener])


class Imagined:
    """A container without processes: it succeeds after `seconds`, or (None) when it is told to end. For figures with
    hundreds of pods."""

    def __init__(self, seconds: float | None) -> None:
        self._obeys = seconds is None
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[End] = loop.create_future()
        if seconds is not None:
            loop.call_later(seconds, self._end, End(0))

    def _end(self, end: End) -> None:
        if not self.ended.done():
            self.ended.set_result(end)

    def signal(self, number: int) -> None:
        self._end(End(0 if self._obeys else 128 + number))

    def kill(self) -> None:
        self._end(End(137))

    async def execute(self, argv: list[str], timeout: float) -> int:
        return 0


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop, pipe = asyncio.get_running_loop(), os.fdopen(descriptor, "wb", 0)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


Running = Process | Imagined
"""A container that runs."""
