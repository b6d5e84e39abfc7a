"""HTTP/1.1 on asyncio: as much as an API server needs, and nearness to the connection, so that it can be broken."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

HEAD_BYTES = 64 * 1024
BODY_BYTES = 3 * 1024 * 1024
"""The API server's limit of a request."""


@dataclass
class Request:
    """What was asked; `pairs` is the query with what is in it several times, `user` who asks, `drop` whether the answer
    is to be thrown away."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    warnings: list[str] = field(default_factory=list)
    drop: bool = False
    reset: bool = False
    pairs: list[tuple[str, str]] = field(default_factory=list)
    user: Any = None

    def asks(self, name: str) -> bool:
        """Whether a query parameter is true."""
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


Answer = Callable[[Request], Awaitable[Response]]


class Broken(Exception):
    """The connection is to be reset now."""


class WebServer:
    """Listens on loopback. `port` stays the same over :meth:`stop` and :meth:`start`."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._answer, self._tls = answer, tls
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls, limit=HEAD_BYTES, backlog=1024
        )
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
        except Broken:
            _reset(writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False where the connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        body = await _body(reader, headers)
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        request = Request(
            method, unquote(parts.path), dict(pairs), headers, body, pairs=pairs
        )  # fmt: skip
        response = await self._answer(request)
        if request.drop or request.reset:
            raise Broken
        for text in request.warnings:
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers["Warning"] = ", ".join(
                filter(None, [response.headers.get("Warning"), f'299 - "{escaped}"'])
            )
        keep = headers.get("connection", "").lower() != "close"
        if response.upgrade is not None:
            writer.write(_head(response, {}))
            await writer.drain()
            await response.upgrade(reader, writer)
            return False
        if response.stream is not None:
            await _stream(reader, writer, response)
            return False
        _send(writer, response, keep, method == "HEAD")
        await writer.drain()
        return keep


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        found = b""
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            found += await reader.readexactly(size)
            await reader.readline()
            if size == 0:
                return found
    return await reader.readexactly(int(headers.get("content-length", "0")))


def _head(response: Response, more: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}", f"Content-Type: {response.media}"]
    lines += [f"{name}: {value}" for name, value in {**response.headers, **more}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _send(writer: asyncio.StreamWriter, response: Response, keep: bool, head_only: bool) -> None:
    more = {"Content-Length": str(len(response.body)), "Connection": "keep-alive" if keep else "close"}
    writer.write(_head(response, more) + (b"" if head_only else response.body))


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: Response) -> None:
    """Chunks until the stream ends or the other side has gone."""
    assert response.stream is not None
    writer.write(_head(response, {"Transfer-Encoding": "chunked"}))
    await writer.drain()
    gone = asyncio.ensure_future(reader.read(1))
    stream = response.stream
    try:
        while True:
            step = asyncio.ensure_future(anext(stream, None))
            await asyncio.wait({gone, step}, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                step.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await step
                return
            chunk = step.result()
            if chunk is None:
                break
            if chunk:
                writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    finally:
        gone.cancel()
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def _reset(writer: asyncio.StreamWriter) -> None:
    plain: socket.socket | None = writer.get_extra_info("socket")
    if plain is not None:
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
