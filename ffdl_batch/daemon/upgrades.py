"""Connections that switch from HTTP to another protocol (RFC 9110, section 7.8): bytes in both directions.

The server offers an upgrade in the scope of a request; the application accepts it or answers as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

WEBSOCKET = "websocket"
"""The protocol of RFC 6455."""
LINGER_S = 30.0
"""Maximum time for a peer to read the rest after the stream was closed."""
_UPGRADE = "ffdl.upgrade"


class RawStream:
    """A connection after its upgrade. Use it in the event loop."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, cycle: RequestResponseCycle) -> None:
        self._transport, self._flow, self._cycle = transport, flow, cycle
        self._arrived = bytearray()
        self._news = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when the peer has closed the connection, or the server stops."""

    async def read(self) -> bytes:
        """Return the bytes that have arrived; wait if there are none. b"" at the end."""
        while not self._arrived and not self.ended.is_set():
            self._news.clear()
            await self._news.wait()
        data = bytes(self._arrived)
        self._arrived.clear()
        self._flow.resume_reading()
        return data

    def send_now(self, data: bytes) -> None:
        """Send a few bytes without waiting."""
        self._transport.write(data)

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the peer does not read. The bytes are dropped if it has disconnected."""
        if self.ended.is_set():
            return
        self._transport.write(data)
        await self._flow.drain()

    def close(self) -> None:
        """Close the connection after sending what was written."""
        self._cycle.disconnected = True  # else uvicorn reports an incomplete answer
        self._transport.close()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def feed(self, data: bytes) -> None:
        """Take bytes from the server. It pauses reading while too many have not been read from the stream."""
        self._arrived += data
        if len(self._arrived) >= HIGH_WATER_LIMIT:
            self._flow.pause_reading()
        self._news.set()

    def feed_end(self) -> None:
        """Take the end from the server."""
        self.ended.set()
        self._news.set()


class Upgrade:
    """The upgrade that a request asks for."""

    def __init__(self, protocol: str, start: Callable[[], RawStream]) -> None:
        self.protocol = protocol
        self.stream: RawStream | None = None
        """The connection after :meth:`accept`."""
        self._start = start

    def accept(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> RawStream:
        """Send status 101 with these headers, and return the connection as a stream."""
        self.stream = self._start()
        lines = [b"HTTP/1.1 101 Switching Protocols", b"Connection: Upgrade", b"Upgrade: " + self.protocol.encode()]
        lines += [name + b": " + value for name, value in headers]
        self.stream.send_now(b"\r\n".join((*lines, b"", b"")))
        return self.stream


def with_upgrade(scope: Scope, upgrade: Upgrade) -> None:
    """Offer an upgrade in a request's scope."""
    scope["extensions"][_UPGRADE] = upgrade


def without_upgrade(scope: Scope) -> Scope:
    """Return the scope without the offer."""
    extensions = {name: value for name, value in scope["extensions"].items() if name != _UPGRADE}
    return {**scope, "extensions": extensions}


def find_upgrade(scope: Scope, *protocols: str) -> Upgrade | None:
    """Return the upgrade if the request asks for one of these protocols."""
    found = scope.get("extensions", {}).get(_UPGRADE)
    return found if isinstance(found, Upgrade) and found.protocol in protocols else None
