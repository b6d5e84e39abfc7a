"""One HTTP exchange over a socket: replies of all shapes, cut, malformed and in small pieces."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator

import pytest

from ffdl_batch.client.connection.http_reply import Reply, send_request

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's and the daemon's end of a connection."""
    near, far = socket.socketpair()
    near.settimeout(10)
    far.settimeout(10)
    with near, far:
        yield near, far


@pytest.mark.parametrize(
    ("sent", "status", "body", "will_close"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nConnection: close\r\n\r\nabc", 200, b"abc", True),
        (CHUNKED, 200, b"abcdefg", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\nx", 404, b"x", False),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\nuntil the end", 502, b"until the end", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
    ],
)
@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_reply_has_status_and_body(
    ends: tuple[socket.socket, socket.socket], sent: bytes, status: int, body: bytes, will_close: bool, piece: int
) -> None:
    near, far = ends

    def send() -> None:
        for start in range(0, len(sent), piece):
            far.sendall(sent[start : start + piece])
        far.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    reply = Reply(near)
    assert (reply.status, reply.read(), reply.will_close) == (status, body, will_close)
    thread.join()


def test_second_reply_follows_on_the_same_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    for body in (b"one", b""):
        far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert Reply(near).read() == body
    far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")  # of a HEAD request, which has no body
    assert Reply(near, has_body=False).read() == b""
    far.sendall(CHUNKED)
    assert Reply(near).read() == b"abcdefg"


def test_upgrade_leaves_the_connection_to_the_caller(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    far.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ffdl-attach\r\n\r\n")
    assert Reply(near).status == 101
    far.sendall(b"frames")
    assert near.recv(100) == b"frames"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        CHUNKED[:-5],
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: no\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_cut_or_malformed_reply_raises(ends: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    near, far = ends
    far.sendall(sent)
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        Reply(near).read()


def test_silent_daemon_raises_timeout(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].settimeout(0.05)
    with pytest.raises(TimeoutError):
        Reply(ends[0])


@pytest.mark.parametrize("body", [b"abc", io.BytesIO(b"abc")])
def test_request_has_headers_and_body(ends: tuple[socket.socket, socket.socket], body: bytes | io.BytesIO) -> None:
    near, far = ends
    send_request(near, "PUT", "/a?b=c", {"Host": "ffdl", "Content-Length": "3"}, body)
    near.shutdown(socket.SHUT_WR)
    sent = b"".join(iter(lambda: far.recv(1 << 16), b""))
    assert sent == b"PUT /a?b=c HTTP/1.1\r\nHost: ffdl\r\nContent-Length: 3\r\n\r\nabc"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/a b", "x"),
        ("/a\r\nX: y", "x"),
        ("/\N{SNOWMAN}", "x"),
        ("/a", "Bearer token\r\nX: y"),
        ("/a", "Bearer \N{SNOWMAN}"),
        ("/a", "\0"),
    ],
)
def test_request_that_would_be_read_as_another_is_not_sent(
    ends: tuple[socket.socket, socket.socket], path: str, value: str
) -> None:
    near, far = ends
    with pytest.raises(ValueError, match="cannot be sent"):
        send_request(near, "GET", path, {"Authorization": value})
    near.close()
    assert far.recv(1) == b""
