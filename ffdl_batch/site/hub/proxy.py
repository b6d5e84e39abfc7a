"""Pass one request on to a daemon, and its answer back, piece by piece. Nothing is kept, logged or interpreted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping

import httptools
from starlette.types import Receive, Scope, Send

from ffdl_batch.site.hub.daemons import unavailable

BLOCK = 1 << 16
BODY_SILENCE_S = 60.0
"""A caller who sends no piece of a body for this time is dropped."""
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
"""Headers of one connection (RFC 9110, section 7.6.1)."""
_DROPPED = _HOP_BY_HOP | {b"host", b"expect", b"cookie", b"forwarded", b"content-length"}
OWN_PREFIX = b"ffdl-"
"""Headers that only the hub may set."""


class CallerGone(Exception):
    """The caller has disconnected, or sends its body too slowly."""


class AnswerBroken(Exception):
    """The daemon's answer ended before it was complete. The caller must see that, so its connection is dropped."""


async def forward(scope: Scope, receive: Receive, send: Send, daemon: socket.socket, head: bytes) -> int:
    """Send a request with this head, and the body that `receive` yields, to a connected daemon; pass the answer to
    `send`. Return its status. Raises CallerGone, AnswerBroken, and Refused if there is no answer."""
    reader, writer = await asyncio.open_unix_connection(sock=daemon, limit=BLOCK)
    answering = asyncio.ensure_future(_pass_answer(reader, send, is_head=scope["method"] == "HEAD"))
    sending = asyncio.ensure_future(_send_request(scope, receive, writer, head))
    try:
        await asyncio.wait({answering, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and not isinstance(sending.exception(), ConnectionError):
            raise CallerGone
        return await answering  # a daemon may refuse an upload before it has read all of it
    finally:
        for task in (answering, sending):
            task.cancel()
        await asyncio.gather(answering, sending, return_exceptions=True)
        writer.transport.abort()


def request_head(scope: Scope, path: bytes, own: Mapping[str, str], *, with_token: bool) -> bytes:
    """Return request line and headers for the daemon. `own` are the hub's own headers."""
    target = path + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    lines = [scope["method"].encode("ascii") + b" " + target + b" HTTP/1.1", b"Host: ffdl", b"Connection: close"]
    lines += [f"{name}: {value}".encode("ascii") for name, value in own.items()]
    lines += [name + b": " + value for name, value in scope["headers"] if _is_passed(name, with_token)]
    if _is_chunked(scope):
        lines.append(b"Transfer-Encoding: chunked")
    elif (length := dict(scope["headers"]).get(b"content-length")) is not None:
        lines.append(b"Content-Length: " + length)
    return b"\r\n".join((*lines, b"", b""))


def _is_passed(name: bytes, with_token: bool) -> bool:
    if name in _DROPPED or name.startswith((OWN_PREFIX, b"x-forwarded-")):
        return False
    return with_token or name != b"authorization"


def _is_chunked(scope: Scope) -> bool:
    return any(name == b"transfer-encoding" for name, _ in scope["headers"])


async def _send_request(scope: Scope, receive: Receive, writer: asyncio.StreamWriter, head: bytes) -> None:
    """Send head and body, then wait until the caller disconnects. Raises ConnectionError if the daemon
    reads no more, TimeoutError if the caller is too slow."""
    chunked = _is_chunked(scope)
    writer.write(head)
    more = True
    while more:
        async with asyncio.timeout(BODY_SILENCE_S):
            message = await receive()
        if message["type"] == "http.disconnect":
            return
        piece, more = message.get("body", b""), message.get("more_body", False)
        if chunked and piece:
            writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        elif piece:
            writer.write(piece)
        await writer.drain()
    if chunked:
        writer.write(b"0\r\n\r\n")
    while (await receive())["type"] != "http.disconnect":
        pass


class _Answer:
    """Receives what the parser of an HTTP response finds."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = self.is_complete = False
        self.pieces: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


async def _pass_answer(reader: asyncio.StreamReader, send: Send, *, is_head: bool) -> int:
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    is_begun = False
    while not (answer.is_complete or (is_head and is_begun)):
        try:
            data = await reader.read(BLOCK)
            if data:
                parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as error:
            raise _broken(is_begun, str(error)) from error
        if answer.has_head and not is_begun:
            is_begun = True
            headers = [(name, value) for name, value in answer.headers if name not in _HOP_BY_HOP]
            await send({"type": "http.response.start", "status": parser.get_status_code(), "headers": headers})
        for piece in _taken(answer.pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not data and not answer.is_complete:
            raise _broken(is_begun, "it ended its connection")
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return int(parser.get_status_code())


def _taken(pieces: list[bytes]) -> Iterable[bytes]:
    taken = pieces[:]
    pieces.clear()
    return taken


def _broken(is_begun: bool, why: str) -> Exception:
    return AnswerBroken(why) if is_begun else unavailable(f"the daemon did not answer: {why}")
