"""Tests request heads that are too large or too slow, and requests that the parser refuses. No real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from ffdl_batch.daemon import connections
from ffdl_batch.daemon.connections import MAX_HEAD_BYTES, ConnectionLimits, PeerProtocol
from ffdl_batch.host.users import Credentials


class Transport(asyncio.Transport):
    """Records written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return None

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def application(_scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the number of bytes of the body."""
    size, more = 0, True
    while more:
        message: Message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[PeerProtocol, Transport]]:
    """Return a function that opens a connection of a user. Call it in an event loop."""
    uids: list[int] = []
    monkeypatch.setattr(connections, "read_credentials", lambda _: Credentials(1, uids[-1], 1))
    config = uvicorn.Config(application, http=PeerProtocol, lifespan="off", ws="none", log_config=None)
    state = ServerState()

    def open_one(uid: int = 1000) -> tuple[PeerProtocol, Transport]:
        uids.append(uid)
        protocol, transport = PeerProtocol(config, state, {}, asyncio.get_running_loop()), Transport()
        protocol.connection_made(transport)
        return protocol, transport

    return open_one


def refusal(transport: Transport) -> tuple[int, str]:
    """Return status and message of the reply that ended the connection."""
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert transport.is_closing() and b"Connection: close" in head
    return int(head.split()[1]), json.loads(body)["problem"]["message"]


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"x" * MAX_HEAD_BYTES,
        HEAD + b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        HEAD + b"X: y\r\n" * (MAX_HEAD_BYTES // 6),
        b"\r\n" * MAX_HEAD_BYTES,
        CHUNKED + b"5;" + b"x" * MAX_HEAD_BYTES * 2,
        CHUNKED + b"0\r\n" + b"X: y\r\n" * MAX_HEAD_BYTES,
    ],
    ids=["URL", "one header", "many headers", "blank lines", "chunk extension", "trailers"],
)
@pytest.mark.parametrize("piece", [1000, 1 << 20])
def test_protocol_refuses_oversized_request_head(connect: Any, sent: bytes, piece: int) -> None:
    async def send() -> tuple[int, str]:
        protocol, transport = connect()
        for start in range(0, len(sent), piece):
            if not transport.is_closing():
                protocol.data_received(sent[start : start + piece])
        return refusal(transport)

    assert asyncio.run(send()) == (431, "the head of the request is larger than 64 KiB")


def test_protocol_answers_invalid_http_with_problem(connect: Any) -> None:
    async def send() -> tuple[int, str]:
        protocol, transport = connect()
        protocol.data_received(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n")
        return refusal(transport)

    assert asyncio.run(send()) == (400, "the request is not valid HTTP/1.1")


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_protocol_accepts_large_head_and_larger_body_on_kept_connection(connect: Any, framing: str) -> None:
    body = bytes(3 * MAX_HEAD_BYTES)
    head = HEAD + b"X: " + b"x" * (MAX_HEAD_BYTES - 1000) + b"\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    if framing == "chunked":
        request = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"

    async def send() -> None:
        protocol, transport = connect()
        for _ in range(2):
            transport.written = b""
            protocol.data_received(request)
            await asyncio.gather(*protocol.tasks)
            assert transport.written.endswith(b"\r\n\r\n%d" % len(body)) and not transport.is_closing()

    asyncio.run(send())


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ([], None),
        ([b"P", b"OST / HTTP/1.1\r\n", b"Host: x\r\n"], 408),
        ([b"\r\n", b"\r\n"], 408),
        ([HEAD + b"Content-Length: 0\r\n\r\n", HEAD], 408),
    ],
    ids=["nothing", "slow head", "blank lines", "slow head after a reply"],
)
def test_protocol_ends_connection_whose_head_is_late(
    connect: Any, monkeypatch: pytest.MonkeyPatch, sent: list[bytes], answer: int | None
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.0)

    async def send() -> None:
        protocol, transport = connect()
        for data in sent:
            transport.written = b""
            protocol.data_received(data)
            await asyncio.gather(*protocol.tasks)
        await transport.closed.wait()
        if answer is None:
            assert transport.written == b""
        else:
            assert refusal(transport) == (answer, "the head of the request was not complete after 0 s")

    asyncio.run(send())


def test_protocol_does_not_limit_time_of_body_and_reply(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.0)

    async def send() -> None:
        protocol, transport = connect()
        protocol.data_received(HEAD + b"Content-Length: 2\r\n\r\n")
        for data in (b"x", b"y"):
            await asyncio.sleep(0)  # a timer of 0 s would run
            protocol.data_received(data)
        await asyncio.gather(*protocol.tasks)
        assert transport.written.endswith(b"\r\n\r\n2") and not transport.is_closing()

    asyncio.run(send())


def test_protocol_ends_connection_whose_body_is_late_after_the_answer(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.0)

    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def send() -> None:
        protocol, transport = connect()
        protocol.app = refuse
        protocol.data_received(HEAD + b"Content-Length: 9\r\n\r\n")
        await asyncio.gather(*protocol.tasks)
        protocol.data_received(b"x")  # after this, uvicorn has no timer
        await asyncio.wait_for(transport.closed.wait(), 60)
        assert transport.written.startswith(b"HTTP/1.1 401")

    asyncio.run(send())


def test_protocol_queues_no_request_behind_one_that_is_not_answered(connect: Any) -> None:
    async def send() -> None:
        protocol, transport = connect()
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        assert refusal(transport) == (400, "the request is not valid HTTP/1.1")
        assert len(protocol.tasks) == 1 and not protocol.pipeline
        await asyncio.gather(*protocol.tasks)

    asyncio.run(send())


def test_protocol_drops_trailers(connect: Any) -> None:
    async def send() -> None:
        protocol, transport = connect()
        protocol.data_received(CHUNKED + b"2\r\nxy\r\n0\r\nX-Forwarded-For: 192.0.2.1\r\nX: y\r\n\r\n")
        await asyncio.gather(*protocol.tasks)
        assert transport.written.endswith(b"\r\n\r\n2")
        assert {name for name, _ in protocol.scope["headers"]} == {b"host", b"transfer-encoding"}

    asyncio.run(send())


def test_crowd_reserves_connections_for_other_users(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = ConnectionLimits()
    crowd.most, crowd.most_of_user = 6, 3
    monkeypatch.setattr(PeerProtocol, "limits", crowd)

    async def open_several() -> list[bytes]:
        return [connect(uid)[1].written for uid in (1000, 1000, 1000, 1000, 0, 0, 0)]

    replies = asyncio.run(open_several())
    assert [reply[:12] for reply in replies] == [b"", b"", b"", b"HTTP/1.1 503", b"", b"", b"HTTP/1.1 503"]
    assert b"user 1000 has 3 open connections" in replies[3] and b"the daemon has 6 open connections" in replies[6]
