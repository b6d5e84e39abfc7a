"""Pass one request on to a daemon, and its answer back, piece by piece. Nothing is kept, logged or interpreted."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import httptools
from starlette.types import Message, Receive, Scope, Send

from ffdl_batch.daemon.upgrades import WEBSOCKET, RawStream, find_upgrade
from ffdl_batch.domain.launch.attach_protocol import UPGRADE

BLOCK = 1 << 16
KEPT_BYTES = 256 * 1024
"""Bodies up to this size are sent again if a daemon ends before it answers."""
MAX_ANSWER_HEAD_BYTES = 256 * 1024
"""Maximum size of the head of a daemon's answer, and of its trailers. Users may replace the program of their daemon."""
BODY_SILENCE_S = 60.0
"""A caller that sends no part of a body for this time is disconnected."""
STREAM_SILENCE_S = 60.0
"""A stream ends if its caller sends nothing, or its daemon reads nothing, for this time. Clients send a ping every five
seconds."""
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
"""Headers of one connection (RFC 9110, section 7.6.1)."""
_DROPPED = _HOP_BY_HOP | {
    b"host", b"expect", b"cookie", b"forwarded", b"content-length", b"x-watson-authorization-token"
}  # fmt: skip
_ANSWER_HEADERS = frozenset(
    (b"allow", b"content-length", b"content-type", b"date", b"retry-after", b"www-authenticate")
)
"""Headers of answers that are passed on, each once."""
UPGRADES = (UPGRADE, WEBSOCKET)
"""Protocols that a daemon may switch to."""
_OF_WEBSOCKET = frozenset((b"sec-websocket-accept", b"sec-websocket-protocol"))
_OF_CREATED = re.compile(rb"/v1/models/[a-z0-9-]{1,40}")
"""The header Location of FfDL's API, in answers with status 201."""
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LAST_STATUS = 599
OWN_PREFIX = b"ffdl-"
"""Headers that only the hub may set."""


class CallerGone(Exception):
    """The caller has disconnected, or sends its body too slowly."""


class AnswerBroken(Exception):
    """The daemon's answer ended before it was complete. The caller must see that, so its connection is dropped."""


class NotAnswered(Exception):
    """The daemon ended the connection before it answered: it was killed, or exited because it was idle."""


class Body:
    """The messages of a request's body. They can be received again unless they exceed KEPT_BYTES."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []
        self._bytes = 0

    @property
    def is_kept(self) -> bool:
        """Whether everything received so far can be received again."""
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
    `send`. Return its status. Raises CallerGone, AnswerBroken, and NotAnswered.

    If the daemon accepts an upgrade, bytes are passed on both ways until one side ends.
    """
    # Not an asyncio stream, which drops a received answer as soon as the daemon stops reading.
    answering = asyncio.ensure_future(_pass_answer(scope, daemon, send))
    sending = asyncio.ensure_future(_send_request(scope, receive, daemon, head))
    try:
        await asyncio.wait({answering, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and not isinstance(sending.exception(), ConnectionError):
            raise CallerGone
        return await answering  # a daemon may refuse an upload before it has read all of it
    except _Upgraded as upgraded:
        upgrade = find_upgrade(scope, *UPGRADES)
        assert upgrade is not None and upgrade.stream is not None
        await _relay(upgrade.stream, daemon, upgraded.args[0])
        return HTTPStatus.SWITCHING_PROTOCOLS
    finally:
        for task in (answering, sending):
            task.cancel()
        await asyncio.gather(answering, sending, return_exceptions=True)
        daemon.close()


def request_head(scope: Scope, path: bytes, own: Mapping[str, str], *, with_token: bool) -> bytes:
    """Return request line and headers for the daemon. `own` are the hub's own headers."""
    target = path + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    lines = [scope["method"].encode("ascii") + b" " + target + b" HTTP/1.1", b"Host: ffdl"]
    if (upgrade := find_upgrade(scope, *UPGRADES)) is not None:
        lines += [b"Connection: Upgrade", b"Upgrade: " + upgrade.protocol.encode("ascii")]
    else:
        lines.append(b"Connection: close")
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
    """Send head and body, then wait until the caller disconnects. Raises ConnectionError if the daemon stops
    reading, TimeoutError if the caller is too slow."""
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


class _Upgraded(Exception):
    """The daemon has accepted the upgrade. `args` contains the bytes after its answer. Not an error."""


class Answer:
    """Collects the parsed parts of an HTTP response. Interim answers (RFC 9110, section 15.2) are dropped."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = self.is_complete = False
        self.unparsed = 0
        """Bytes since the parser last completed the head or a piece of the body."""
        self.pieces: list[bytes] = []

    @property
    def status(self) -> int:
        """The status of the answer, of an interim one before the last."""
        return int(self.parser.get_status_code())

    def feed(self, data: bytes) -> bytes | None:
        """Parse data. Return the bytes after the head of an answer with status 101, else None. Raises OSError."""
        self.unparsed += len(data)
        rest = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            raise OSError(f"its answer is not valid HTTP/1.1: {error}") from error
        if self.unparsed > MAX_ANSWER_HEAD_BYTES:
            raise OSError(f"the head of its answer is larger than {MAX_ANSWER_HEAD_BYTES // 1024} KiB")
        return rest

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by httptools. Raises ValueError, which becomes an HttpParserError."""
        if not HTTPStatus.CONTINUE <= self.status <= _LAST_STATUS:
            raise ValueError("the status does not exist")
        self.has_head = self.status >= HTTPStatus.OK or self.status == HTTPStatus.SWITCHING_PROTOCOLS
        if self.has_head:
            self.unparsed = 0

    def on_body(self, body: bytes) -> None:
        """Called by httptools."""
        self.unparsed = 0
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        """Called by httptools."""
        self.is_complete = self.has_head
        if not self.has_head:
            self.headers.clear()


async def _pass_answer(scope: Scope, daemon: socket.socket, send: Send) -> int:
    loop = asyncio.get_running_loop()
    answer = Answer()
    is_begun = False
    while not (answer.is_complete or (is_begun and scope["method"] == "HEAD")):
        try:
            data = await loop.sock_recv(daemon, BLOCK)
            rest = answer.feed(data) if data else None
        except OSError as error:
            raise _broken(is_begun, str(error)) from error
        if answer.has_head and not is_begun:
            is_begun = True
            start = {"type": "http.response.start", "status": answer.status, "headers": _passed_headers(answer)}
            if answer.status == HTTPStatus.SWITCHING_PROTOCOLS:
                if rest is None or not find_upgrade(scope, *UPGRADES):
                    raise NotAnswered("it switched to a protocol that the caller did not request")
                await send(start)
                raise _Upgraded(rest)
            await send(start)
        for piece in _taken(answer.pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not data and not answer.is_complete:
            raise _broken(is_begun, "it closed the connection")
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return answer.status


async def _relay(stream: RawStream, daemon: socket.socket, first: bytes) -> None:
    """Pass bytes on both ways until one side ends, or the caller is silent for too long."""
    ways = [
        asyncio.ensure_future(way)
        for way in (_pass_up(stream, daemon), _pass_down(daemon, stream, first), stream.ended.wait())
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        stream.close()


async def _pass_up(stream: RawStream, daemon: socket.socket) -> None:
    while True:
        async with asyncio.timeout(STREAM_SILENCE_S):
            if not (data := await stream.read()):
                return
            await asyncio.get_running_loop().sock_sendall(daemon, data)


async def _pass_down(daemon: socket.socket, stream: RawStream, first: bytes) -> None:
    data = first
    while True:
        await stream.write(data)
        if not (data := await asyncio.get_running_loop().sock_recv(daemon, BLOCK)):
            return


def _passed_headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that are passed on. Users may replace the program of their daemon, and an
    operator's browser gets its answers from the hub's address."""
    names = _ANSWER_HEADERS | (_OF_WEBSOCKET if answer.status == HTTPStatus.SWITCHING_PROTOCOLS else frozenset())
    found = {name: value for name, value in answer.headers if name in names and not _CONTROLS.search(value)}
    location = dict(answer.headers).get(b"location", b"")
    if answer.status == HTTPStatus.CREATED and _OF_CREATED.fullmatch(location):
        found[b"location"] = location
    return [*found.items(), (b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"sandbox")]


def _taken(pieces: list[bytes]) -> Iterable[bytes]:
    taken = pieces[:]
    pieces.clear()
    return taken


def _broken(is_begun: bool, why: str) -> Exception:
    return (AnswerBroken if is_begun else NotAnswered)(why)
