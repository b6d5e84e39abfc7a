"""One HTTP/1.1 exchange over a connected socket.

httptools parses the replies. The standard library's client would also import ssl and email, which takes longer than a
whole request.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import IO

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_BLOCK = 1 << 18


class Reply:
    """A reply whose body is read from the socket as it arrives. Its methods raise OSError, also for malformed HTTP.

    `will_close` is whether the connection cannot be used for another request.
    """

    def __init__(self, connected: socket.socket, *, has_body: bool = True) -> None:
        """Read until the end of the headers. `has_body` is false for the reply to HEAD."""
        self._connected = connected
        self._parser = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._is_measured = self._is_whole = self.will_close = False
        self.status = 0
        while not self.status:
            self._receive()
        self._is_whole |= not has_body

    def pieces(self) -> Iterator[bytes]:
        """Yield the body in parts of any length."""
        while True:
            parts, self._parts = self._parts, []
            yield from parts
            if self._is_whole:
                return
            self._receive()

    def read(self) -> bytes:
        """Return the whole body, or what is left of it."""
        return b"".join(self.pieces())

    def _receive(self) -> None:
        data = self._connected.recv(_BLOCK)
        if data:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade:
                self._is_whole = True
            except HttpParserError as error:
                raise ConnectionError(f"this is no HTTP: {error}") from error
        elif self.status and not self._is_measured:
            self._is_whole = True  # the end of the connection is the end of such a body
        else:
            raise ConnectionResetError("the connection was closed before the whole reply was received")

    # Called by the parser.

    def on_header(self, name: bytes, _value: bytes) -> None:
        """Note a header."""
        self._is_measured |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """Note status and headers, unless another reply follows this one."""
        status = self._parser.get_status_code()
        if status >= HTTPStatus.OK or status == HTTPStatus.SWITCHING_PROTOCOLS:
            self.status, self.will_close = status, not self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Note the end of the reply."""
        self._is_whole = bool(self.status)


def send_request(
    connected: socket.socket, method: str, path: str, headers: Mapping[str, str], body: bytes | IO[bytes] | None = None
) -> None:
    """Send a request. Raises OSError, and ValueError for a path or header that would be read as something else."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if " " in path or not all(line.isascii() and line.isprintable() for line in lines):
        raise ValueError(f"{method} {path!r} cannot be sent: the path or a header has characters that HTTP forbids")
    head = "\r\n".join([*lines, "", ""]).encode("ascii")
    if body is None or isinstance(body, bytes):
        connected.sendall(head + (body or b""))
        return
    connected.sendall(head)
    while block := body.read(_BLOCK):
        connected.sendall(block)
