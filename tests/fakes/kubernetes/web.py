"""HTTP/1.1 on asyncio: as much as an API server needs, near to the connection, so that it can be broken; and the faults
that a test asks for."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.fakes.kubernetes.refusals import Refusal


@dataclass
class Request:
    """What was asked; `pairs` is the query with what is in it several times, `drop` whether the answer is to be thrown
    away."""

    method: str
    path: str
    pairs: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes
    drop: bool = False

    @property
    def query(self) -> dict[str, str]:
        return dict(self.pairs)

    def asks(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("1", "true")


@dataclass
class Response:
    """The answer; `stream` is sent in chunks as it comes. With `upgrade` the connection is another protocol's from then
    on, which it speaks until it returns."""

    status: int
    body: bytes = b""
    media: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    upgrade: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None

    def head(self, more: dict[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", f"Content-Type: {self.media}"]
        lines += [f"{name}: {value}" for name, value in {**self.headers, **more}.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class WebServer:
    """Listens on loopback, at `port`."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]], tls: ssl.SSLContext | None = None) -> None:
        self._answer, self._tls = answer, tls
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no longer, and break all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False where the connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {}
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        request = Request(method, unquote(parts.path), pairs, headers, body)
        response = await self._answer(request)
        if request.drop:
            _reset(writer)
            return False
        if response.upgrade is not None:
            writer.write(response.head({}))
            await writer.drain()
            await response.upgrade(reader, writer)
            return False
        if response.stream is not None:
            await _stream(reader, writer, response, response.stream)
            return False
        writer.write(response.head({"Content-Length": str(len(response.body))}) + response.body)
        await writer.drain()
        return headers.get("connection", "").lower() != "close"


async def _stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: Response, stream: AsyncIterator[bytes]
) -> None:
    """Send chunks until the stream ends or the other side has gone."""
    writer.write(response.head({"Transfer-Encoding": "chunked"}))
    await writer.drain()
    gone, step = asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(anext(stream, None))
    try:
        while True:
            await asyncio.wait({gone, step}, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                return
            chunk = step.result()
            if chunk is None:
                break
            if chunk:
                writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                await writer.drain()
            step = asyncio.ensure_future(anext(stream, None))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    finally:
        gone.cancel()
        step.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await step
        await stream.aclose()  # type: ignore[attr-defined]


def _reset(writer: asyncio.StreamWriter) -> None:
    plain: socket.socket | None = writer.get_extra_info("socket")
    if plain is not None:
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Fault:
    """What the next `count` requests meet that `method` ("" = all) and `path` (a pattern) choose. `what`: ``drop``
    (executed, but not answered), ``status`` (refused with `code`), ``slow`` (executed after `seconds`)."""

    what: str
    method: str = ""
    path: str = ""
    count: int = 1
    seconds: float = 0.0
    code: int = 500
    retry_after: int | None = None

    def fits(self, request: Request) -> bool:
        asked = request.path + ("?watch" if request.asks("watch") else "")
        return self.method in ("", request.method) and re.search(self.path, asked) is not None


async def meet(faults: list[Fault], request: Request) -> None:
    """Let a request meet the first fault that fits, before it is executed."""
    fault = next((one for one in faults if one.fits(request)), None)
    if fault is None:
        return
    fault.count -= 1
    if fault.count == 0:
        faults.remove(fault)
    await asyncio.sleep(fault.seconds)
    request.drop = fault.what == "drop"
    if fault.what == "status" and fault.code == 429:
        message = "the server has received too many requests and has asked us to try again later"
        raise Refusal(429, "TooManyRequests", message, retry_after=fault.retry_after)
    if fault.what == "status":
        raise Refusal(fault.code, "InternalError", "an error on the server has prevented the request from succeeding")
