"""pods/exec over a WebSocket: handshake, subprotocols, channels.

Sources: kubernetes/kubernetes 1.36, staging/src/k8s.io: apimachinery/pkg/util/remotecommand/constants.go (channels, v4
and v5), apiserver/pkg/util/proxy/streamtranslator.go (v5: the upgrade comes first, what kubelet refuses is told on the
error channel), kubelet/pkg/cri/streaming/remotecommand/exec.go (Status of an end); RFC 6455.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.refusals import Refusal, bad_request
from tests.fakes.kubernetes.web import Request, Response

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
_STREAMS = ("stdin", "stdout", "stderr")
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DRAIN_S = 60.0
"""How long whoever still holds the output of a process that has ended is waited for."""
_TRANSLATES_SINCE = (1, 30)
"""TranslateStreamCloseWebsocketRequests is on by default since this release."""
Begin = Callable[[list[str]], Awaitable[Process]]


def check(request: Request) -> list[str]:
    """Return the command. Raises Refusal for what is no such request."""
    if request.headers.get("upgrade", "").lower() != "websocket":
        raise bad_request("Upgrade request required")
    if not any(request.asks(stream) for stream in _STREAMS):
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    if request.asks("tty"):
        raise Refusal(501, "NotImplemented", "the tests' kubelet gives no terminals")
    command = [value for name, value in request.pairs if name == "command"]
    if not command:
        raise bad_request("you must specify at least one command")
    return command


async def execute(request: Request, release: str, command: list[str], begin: Begin) -> Response:
    """Return the answer that begins it. Raises Refusal where kubelet's refusal comes before the upgrade (v4)."""
    spoken = (V5, V4) if tuple(map(int, release.split("."))) >= _TRANSLATES_SINCE else (V4,)
    wanted = [one.strip() for one in request.headers.get("sec-websocket-protocol", "").split(",")]
    chosen = next((one for one in spoken if one in wanted), None)
    if chosen is None:
        raise bad_request(f"unable to upgrade: no subprotocol of {wanted} is spoken here")
    accept = hashlib.sha1(f"{request.headers['sec-websocket-key']}{_GUID}".encode()).digest()
    headers = {
        "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": base64.b64encode(accept).decode(),
        "Sec-WebSocket-Protocol": chosen,
    }  # fmt: skip
    early = await begin(command) if chosen == V4 else None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = _Session(reader, writer, halves=chosen == V5)
        try:
            process = early or await begin(command)
        except Refusal as refusal:
            await session.end(refusal.status)
            return
        await session.run(process, {name for name in _STREAMS if request.asks(name)})

    return Response(101, headers=headers, upgrade=serve)


class _Session:
    """One connection. `halves`: one side may close the input alone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, halves: bool) -> None:
        self._reader, self._writer, self._halves = reader, writer, halves
        self._connection = Connection(ConnectionType.SERVER)
        self._turn = asyncio.Lock()
        self._rest = b""

    async def run(self, process: Process, wanted: set[str]) -> None:
        """Serve until the process has ended, and the other side knows it."""
        assert process.stdin and process.stdout and process.stderr
        outputs = ((process.stdout, STDOUT, "stdout"), (process.stderr, STDERR, "stderr"))
        copies = [asyncio.ensure_future(self._copy(one, number, told=name in wanted)) for one, number, name in outputs]
        if "stdin" not in wanted:
            process.stdin.close()
        hearing = asyncio.ensure_future(self._hear(process.stdin))
        try:
            code = await process.wait()
            await asyncio.wait(copies, timeout=_DRAIN_S)
            await self.end(_status(128 - code if code < 0 else code))
        finally:
            process.stdin.close()
            for task in (*copies, hearing):
                task.cancel()

    async def _copy(self, reader: asyncio.StreamReader, channel: int, *, told: bool) -> None:
        """Copy to the end, also when the other side has gone: the process is not disturbed."""
        while data := await reader.read(32 * 1024):
            if told:
                with contextlib.suppress(OSError):
                    await self._send(channel, data)

    async def _hear(self, given: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await self._reader.read(64 * 1024):
                self._connection.receive_data(data)
                for event in self._connection.events():
                    await self._obey(event, given)
        given.close()

    async def _obey(self, event: Event, given: asyncio.StreamWriter) -> None:
        if isinstance(event, Ping):
            await self._write(self._connection.send(event.response()))
        elif isinstance(event, CloseConnection):
            given.close()
        elif isinstance(event, TextMessage):
            raise AssertionError("text came on a binary channel")
        elif isinstance(event, BytesMessage):
            self._rest += bytes(event.data)
            if not event.message_finished:
                return
            message, self._rest = self._rest, b""
            if message[:1] == bytes([STDIN]):
                with contextlib.suppress(OSError):
                    given.write(message[1:])
                    await given.drain()
            elif message == bytes([CLOSE, STDIN]) and self._halves:
                given.close()
            else:
                raise AssertionError(f"channel {message[:1]!r} is not the client's")

    async def end(self, status: Obj) -> None:
        """Send the last word, and close."""
        with contextlib.suppress(OSError):
            await self._send(ERROR, json.dumps(status).encode())
            await self._write(self._connection.send(CloseConnection(code=1000)))

    async def _send(self, channel: int, data: bytes) -> None:
        await self._write(self._connection.send(BytesMessage(data=bytes([channel]) + data)))

    async def _write(self, data: bytes) -> None:
        async with self._turn:
            self._writer.write(data)
            await self._writer.drain()


def _status(code: int) -> Obj:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }  # fmt: skip


def internal(text: str) -> Refusal:
    """Return a refusal that is kubelet's or the runtime's fault."""
    return Refusal(500, "InternalError", f"Internal error occurred: {text}")
