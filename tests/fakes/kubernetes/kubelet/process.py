"""One container as the kubelet sees it: the process that is its parent, and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

_ROOT = Path(__file__).resolve().parents[4]
_RUNTIME = f"""\
import sys
sys.path.insert(0, {str(_ROOT)!r})
from tests.fakes.kubernetes.kubelet.runtime import serve_forks
serve_forks()
"""


@dataclass(frozen=True, slots=True)
class End:
    """How a container ended."""

    code: int
    oom: bool = False


class StartFailed(Exception):
    """The container could not be started."""


class Running(Protocol):
    """A container that runs."""

    ended: asyncio.Future[End]

    def signal(self, number: int) -> None: ...

    def kill(self) -> None: ...

    def rotate(self) -> None: ...

    def run_out_of_memory(self, *, whole: bool) -> None: ...

    async def execute(self, argv: list[str], timeout: float | None) -> tuple[int, str]: ...

    async def attach(self, argv: list[str], place: Path) -> Attached: ...


@dataclass(slots=True)
class Attached:
    """Another process in the container, with pipes: `ended` has its status, and why it could not be executed."""

    ended: asyncio.Future[tuple[int, str]]
    given: asyncio.StreamWriter
    printed: asyncio.StreamReader
    complained: asyncio.StreamReader

    def close(self) -> None:
        """Its input ends, as it does when whoever asked for it has gone; the process itself goes on."""
        self.given.close()


@cache
def _forks() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that forks the parents of containers, and the connection to it. It ends with this process."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        return own, subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _RUNTIME], stdin=other.fileno(), start_new_session=True
        )


class Process:
    """A container of real processes."""

    def __init__(self, wake_readers: Callable[[], None]) -> None:
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.pid = 0
        self._wake_readers = wake_readers
        self._executed: dict[int, asyncio.Future[tuple[int, str]]] = {}
        self._executing: dict[int, asyncio.Event] = {}
        self._number = 0
        self._given: asyncio.StreamWriter | None = None
        self._said: asyncio.StreamReader | None = None
        self._listener: asyncio.Task[None] | None = None

    async def start(self, spec: dict[str, Any]) -> None:
        """Run; :class:`StartFailed`."""
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
            elif said["event"] == "executing":
                self._executing.pop(said["id"]).set()
            elif said["event"] == "executed":
                waiting = self._executed.pop(said["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result((said["code"], said["output"]))
            elif said["event"] == "ended":
                self._end(End(said["code"], said["oom"]))
        self._end(End(137))

    def _end(self, end: End) -> None:
        if not self.ended.done():
            self.ended.set_result(end)
        for waiting in self._executed.values():
            if not waiting.done():
                waiting.set_result((137, ""))
        self._executed.clear()
        self._wake_readers()

    def _send(self, said: dict[str, Any]) -> None:
        assert self._given is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._given.write(json.dumps(said).encode() + b"\n")

    def signal(self, number: int) -> None:
        """To the container's first process."""
        self._send({"do": "signal", "signal": number})

    def kill(self) -> None:
        """Every process of it."""
        self._send({"do": "kill"})

    def rotate(self) -> None:
        """Begin a new log file."""
        self._send({"do": "rotate"})

    def run_out_of_memory(self, *, whole: bool) -> None:
        """As the kernel does it."""
        self._send({"do": "oom", "whole": whole})

    async def execute(self, argv: list[str], timeout: float | None) -> tuple[int, str]:
        """Another process in the container: its status and what it printed."""
        if self.ended.done():
            return 137, ""
        self._number += 1
        waiting: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._executed[self._number] = waiting
        self._send({"do": "exec", "id": self._number, "argv": argv, "timeout": timeout})
        return await waiting

    async def attach(self, argv: list[str], place: Path) -> Attached:
        """Another process in the container, with pipes in `place`; :class:`StartFailed` where the container ends
        meanwhile."""
        self._number += 1
        number, begun = self._number, asyncio.Event()
        place.mkdir(parents=True, exist_ok=True)
        for name in ("in", "out", "err"):
            os.mkfifo(place / name)
        held = os.open(place / "in", os.O_RDWR | os.O_NONBLOCK)  # as a writer before there is a reader
        readers = [os.open(place / name, os.O_RDONLY | os.O_NONBLOCK) for name in ("out", "err")]
        ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._executed[number], self._executing[number] = ended, begun
        self._send({"do": "exec", "id": number, "argv": argv, "timeout": None, "streams": str(place)})
        ended.add_done_callback(lambda _: begun.set())
        await begun.wait()
        if number in self._executing:
            del self._executing[number]
            for descriptor in (held, *readers):
                os.close(descriptor)
            raise StartFailed("the container has ended")
        writer = os.open(place / "in", os.O_WRONLY | os.O_NONBLOCK)
        os.close(held)
        shutil.rmtree(place)
        return Attached(ended, await _writer(writer), await _reader(readers[0]), await _reader(readers[1]))

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

    def rotate(self) -> None:
        """There is no log."""

    def run_out_of_memory(self, *, whole: bool) -> None:
        self._end(End(137, oom=whole))

    async def execute(self, argv: list[str], timeout: float | None) -> tuple[int, str]:
        return 0, ""

    async def attach(self, argv: list[str], place: Path) -> Attached:
        raise StartFailed("it is imagined")


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)
