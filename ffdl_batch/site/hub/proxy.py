"""Pass one request on to a daemon, and its answer back, piece by piece. Nothing is kept, logged or interpreted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping

import httptools
from starlette.types import Message, Receive, Scope, Send

BLOCK = 1 << 16
KEPT_BYTES = 256 * 1024
"""Bodies up to this size are sent once more if a daemon ends before it answers."""
MAX_ANSWER_HEAD_BYTES = 256 * 1024
"""Maximum size of the head of a daemon's answer, and of its trailers. A user may replace the own daemon's program."""
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


class NotAnswered(Exception):
    """The daemon ended the connection before it answered: it was killed, or has just been idle for long enough."""


class Body:
    """The messages of a request's body. As long as they are few, they can be received once more."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []
        self._bytes = 0

    @property
    def is_kept(self) -> bool:
        """Whether all that was received can be received once more."""
        return self._bytes <= KEPT_BYTES

    def receiver(self) -> Receive:
        """Return a `receive` that begins with the first message."""
        kept = iter(tuple(self._kept))

        async def receive_next() -> Message:
            if (again := next(kept, None)) is not None:
                return again
            message = await self._receive()
            if message["type"] != "http.disconnect" and self.is_kept:
                self._bytes += len(message.get("body", b""))
                self._kept.append(message)
            return message

        return receive_next


async def forward(scope: Scope, receive: Receive, send: Send, daemon: socket.socket, head: bytes) -> int:
    """Send a request with this head, and the body that `receive` yields, to a connected daemon; pass the answer to
    `send`. Return its status. Raises CallerGone, AnswerBroken, and NotAnswered."""
    # Not a stream of asyncio: it drops an answer that has arrived as soon as the daemon reads no more.
    answering = asyncio.ensure_future(_pass_answer(daemon, send, is_head=scope["method"] == "HEAD"))
    sending = asyncio.ensure_future(_send_request(scope, receive, daemon, head))
    try:
        await asyncio.wait({answering, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and not isinstance(sending.exception(), ConnectionError):
            raise CallerGone
        return await answering  # a daemon may refuse an upload before it has read all of it
    finally:
        for task in (answering, sending):
            task.cancel()
        await asyncio.gather(answering, sending, return_exceptions=True)
        daemon.close()


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


async def _send_request(scope: Scope, receive: Receive, daemon: socket.socket, head: bytes) -> None:
    """Send head and body, then wait until the caller disconnects. Raises ConnectionError if the daemon reads no more,
    TimeoutError if the caller is too slow."""
    loop, chunked = asyncio.get_running_loop(), _is_chunked(scope)
    await loop.sock_sendall(daemon, head)
    more = True
    while more:
        async with asyncio.timeout(BODY_SILENCE_S):
            message = await receive()
        if message["type"] == "http.disconnect":
            return
        piece, more = message.get("body", b""), message.get("more_body", False)
        if piece:
            await loop.sock_sendall(daemon, b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    if chunked:
        await loop.sock_sendall(daemon, b"0\r\n\r\n")
    while (await receive())["type"] != "http.disconnect":
        pass


class _Answer:
    """Receives what the parser of an HTTP response finds."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = self.is_complete = False
        self.unparsed = 0
        """Bytes since the parser last completed the head or a piece of the body."""
        self.pieces: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head, self.unparsed = True, 0

    def on_body(self, body: bytes) -> None:
        self.unparsed = 0
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


async def _pass_answer(daemon: socket.socket, send: Send, *, is_head: bool) -> int:
    loop = asyncio.get_running_loop()
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    is_begun = False
    while not (answer.is_complete or (is_head and is_begun)):
        try:
            data = await loop.sock_recv(daemon, BLOCK)
            if data:
                answer.unparsed += len(data)
                parser.feed_data(data)
            if answer.unparsed > MAX_ANSWER_HEAD_BYTES:
                raise OSError(f"its head is larger than {MAX_ANSWER_HEAD_BYTES // 1024} KiB")
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
    return (AnswerBroken if is_begun else NotAnswered)(why)
