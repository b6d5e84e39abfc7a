"""Sends text over a WebSocket (RFC 6455). Ignores client messages except ping and close frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError, generate_accept_token

from ffdl_batch.daemon.upgrades import RawStream, Upgrade

PING_S = 20.0
"""Interval of pings. Keeps proxies from closing idle connections."""
_SUBPROTOCOLS = ("ws", "wss")
"""FfDL's command line offers one of them."""


class WebSocketReply(Response):
    """A response that upgrades the connection to a WebSocket. Sends each text as a message, then calls `end`."""

    def __init__(self, upgrade: Upgrade, texts: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        super().__init__(status_code=101)
        self._upgrade, self._texts, self._end = upgrade, texts, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the text until it ends, or until the client closes the connection."""
        del receive, send  # the connection is no longer HTTP
        headers = Headers(scope=scope)
        key = headers.get("sec-websocket-key", "").encode("latin-1")
        accept = [(b"sec-websocket-accept", generate_accept_token(key))]
        offered = (one.strip() for one in headers.get("sec-websocket-protocol", "").split(","))
        if chosen := next((one for one in offered if one in _SUBPROTOCOLS), ""):
            accept.append((b"sec-websocket-protocol", chosen.encode("ascii")))
        stream = self._upgrade.accept(accept)
        socket = _Socket(stream)
        sending = asyncio.ensure_future(socket.send_all(self._texts))
        listening = asyncio.ensure_future(socket.listen())
        try:
            await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, listening):
                task.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)
            self._end()
            stream.close()


class _Socket:
    def __init__(self, stream: RawStream) -> None:
        self._stream, self._connection = stream, Connection(ConnectionType.SERVER)

    async def send_all(self, texts: AsyncIterator[bytes]) -> None:
        """Send each piece as a message, and a close at the end."""
        async for text in texts:
            await self._send(TextMessage(text.decode("utf-8", "replace")))
        await self._send(CloseConnection(1000))

    async def listen(self) -> None:
        """Answer pings and the close. Returns when the client has closed the connection, or breaks the protocol."""
        pinging = asyncio.ensure_future(self._ping())
        try:
            while data := await self._stream.read():
                self._connection.receive_data(data)
                for event in self._connection.events():
                    if isinstance(event, Ping | CloseConnection):
                        await self._send(event.response())
                    if isinstance(event, CloseConnection):
                        return
        except (LocalProtocolError, RemoteProtocolError):
            return
        finally:
            pinging.cancel()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            await self._send(Ping())

    async def _send(self, event: Event) -> None:
        if self._connection.state is ConnectionState.OPEN or isinstance(event, CloseConnection):
            await self._stream.write(self._connection.send(event))
