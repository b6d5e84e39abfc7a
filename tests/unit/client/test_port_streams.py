"""TCP connections over one pair of pipes: both ends in this process."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from ffdl_batch.client.port_streams import DATA, MOST, OPEN, WINDOW, WRITTEN, Streams

HEAD = struct.Struct(">cII")


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all pairs of sockets after the test."""
    made: list[socket.socket] = []
    real = socket.socketpair

    def socketpair() -> tuple[socket.socket, socket.socket]:
        made.extend(real())
        return made[-2], made[-1]

    monkeypatch.setattr(socket, "socketpair", socketpair)
    yield
    for one in made:
        one.close()


def turn(*ends: Streams) -> None:
    """Serve every socket that is ready, until none is."""
    busy = True
    while busy:
        busy = False
        for end in ends:
            poll = select.poll()
            numbers = end.register(poll)
            for descriptor, events in poll.poll(0):
                end.serve(numbers[descriptor], events)
                busy = True


class Pair:
    """A near end that accepts connections, and a far one that makes them."""

    def __init__(self, dial: Callable[[], socket.socket]) -> None:
        self.sent: list[int] = []
        self.reasons: list[str] = []
        self.near = Streams(self.to_far, report=self.reasons.append)
        self.far = Streams(self.near.feed, dial)

    def to_far(self, data: bytes) -> None:
        self.sent.append(len(data))
        self.far.feed(data)

    def connect(self) -> socket.socket:
        """The user's end of a new connection."""
        mine, accepted = socket.socketpair()
        mine.setblocking(False)
        self.near.accept(accepted)
        return mine


def refuse() -> socket.socket:
    raise ConnectionRefusedError(111, "Connection refused")


def test_streams_hold_back_data_that_the_other_side_does_not_read() -> None:
    servers: list[socket.socket] = []

    def dial() -> socket.socket:
        ours, theirs = socket.socketpair()
        servers.append(theirs)
        return ours

    pair = Pair(dial)
    mine, other = pair.connect(), pair.connect()
    sent, data = 0, bytes(1 << 16)
    for _ in range(100):
        try:
            sent += mine.send(data)
        except BlockingIOError:
            turn(pair.near, pair.far)
    assert sum(pair.sent) < 10 * WINDOW
    other.sendall(b"question")
    other.shutdown(socket.SHUT_WR)
    turn(pair.near, pair.far)
    assert (servers[1].recv(100), servers[1].recv(100)) == (b"question", b"")
    servers[1].sendall(b"answer")
    servers[1].close()
    turn(pair.near, pair.far)
    assert (other.recv(100), other.recv(100), len(pair.near), len(pair.far)) == (b"answer", b"", 1, 1)
    servers[0].setblocking(False)
    mine.shutdown(socket.SHUT_WR)
    received = 0
    while True:
        try:
            data = servers[0].recv(1 << 16)
        except BlockingIOError:
            turn(pair.near, pair.far)
            continue
        if not data:
            break
        received += len(data)
    assert received == sent


def test_streams_report_connection_that_cannot_be_made() -> None:
    pair = Pair(refuse)
    mine = pair.connect()
    assert (mine.recv(100), pair.reasons, len(pair.near), len(pair.far)) == (b"", ["Connection refused"], 0, 0)


def test_streams_refuse_more_connections_than_the_maximum() -> None:
    kept: list[socket.socket] = []

    def dial() -> socket.socket:
        kept.extend(socket.socketpair())
        return kept[-1]

    pair = Pair(dial)
    opened = [pair.connect() for _ in range(MOST + 1)]
    assert (opened[-1].recv(100), pair.reasons, len(pair.far)) == (b"", ["too many connections"], MOST)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (HEAD.pack(DATA, 1, 1 << 20), "a frame of 1048576 bytes"),
        ((HEAD.pack(DATA, 1, 1 << 14) + bytes(1 << 14)) * 40, "unexpected frame b'D'"),
        (HEAD.pack(b"?", 1, 0), "unexpected frame"),
        (HEAD.pack(OPEN, 1, 0), "unexpected frame b'O'"),
        (HEAD.pack(WRITTEN, 1, 4) + b"\0\0\0\1", "unexpected frame b'W'"),
    ],
)
def test_near_end_rejects_frames_that_it_did_not_ask_for(data: bytes, said: str) -> None:
    near = Streams(lambda _: None)
    mine, accepted = socket.socketpair()
    near.accept(accepted)
    with pytest.raises(ValueError, match=said):
        near.feed(data)
    mine.close()
