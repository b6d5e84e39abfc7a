"""One container as the kubelet sees it: the process that is its parent, and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_ROOT = Path(__file__).resolve().parents[4]
_RUNTIME = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from tests.fakes.kubernetes.kubelet.runtime import main; main()"
)


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


class Process:
    """A container of real processes."""

    def __init__(self, wake_readers: Callable[[], None]) -> None:
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.pid = 0
        self._wake_readers = wake_readers
        self._executed: dict[int, asyncio.Future[tuple[int, str]]] = {}
        self._number = 0
        self._process: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None

    async def start(self, spec: dict[str, Any]) -> None:
        """Run; :class:`StartFailed`."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", _RUNTIME,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            self._send(spec)
            said = await self._line()
        except asyncio.CancelledError:
            self._process.kill()
            raise
        if said.get("event") != "started":
            raise StartFailed(said.get("message", "the container's parent ended"))
        self.pid = said["pid"]
        self._listener = asyncio.create_task(self._listen())

    async def _line(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        return dict(json.loads(line)) if line else {}

    async def _listen(self) -> None:
        while said := await self._line():
            if said["event"] == "log":
                self._wake_readers()
            elif said["event"] == "executed":
                waiting = self._executed.pop(said["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result((said["code"], said["output"]))
            elif said["event"] == "ended":
                self._end(End(said["code"], said["oom"]))
        self._end(End(137))
        assert self._process is not None
        await self._process.wait()

    def _end(self, end: End) -> None:
        if not self.ended.done():
            self.ended.set_result(end)
        for waiting in self._executed.values():
            if not waiting.done():
                waiting.set_result((137, ""))
        self._executed.clear()
        self._wake_readers()

    def _send(self, said: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(json.dumps(said).encode() + b"\n")

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

    async def release(self) -> None:
        """End the parent, and so everything."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()


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
