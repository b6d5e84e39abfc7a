"""Streams both ways through the hub: an upgraded connection between a client and the user's daemon."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ffdl_batch.domain.launch.attach_protocol import UPGRADE
from ffdl_batch.site.hub import daemons, proxy
from tests.unit.hub.conftest import ID, OWN, TOKEN, Site, answer
from tests.unit.hub.test_hub import audit, until

StartHub = Callable[..., Site]
PATH = "/api/v1/jobs/j/attach/stream?learner=1"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ffdl-attach\r\n\r\n"


def ask(site: Site, path: str = PATH, protocol: str = UPGRADE, *, token: str = TOKEN) -> tuple[int, socket.socket]:
    """Ask for an upgrade; return the status and the connection."""
    connection = socket.create_connection(("127.0.0.1", site.port), timeout=60)
    fields = [f"GET {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", "Connection: keep-alive, Upgrade"]
    connection.sendall("\r\n".join([*fields, f"Upgrade: {protocol}", "", ""]).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, head
        head += byte
    return int(head.split()[1]), connection


def serve_raw(site: Site, script: Callable[[socket.socket], None]) -> None:
    """Let the daemon accept each upgrade, and run `script` on the connection."""

    def handle(handler: Any) -> None:
        assert handler.headers["Upgrade"] == UPGRADE and handler.headers["Connection"] == "Upgrade"
        handler.connection.sendall(SWITCHED)
        script(handler.connection)
        handler.close_connection = True

    site.serve_daemon(handle)


def hold(end: threading.Event) -> None:
    assert end.wait(60)


def read_all(connection: socket.socket) -> bytes:
    found = b""
    while data := connection.recv(1 << 16):
        found += data
    return found


def test_bytes_pass_both_ways_and_audit_has_begin_and_end(start_hub: StartHub) -> None:
    site, sent = start_hub(), os.urandom(3_000_000)
    received: list[bytes] = []

    def script(connection: socket.socket) -> None:
        writing = threading.Thread(target=connection.sendall, args=(sent,))
        writing.start()
        found = b""
        while len(found) < len(sent):
            found += connection.recv(1 << 16)
        received.append(found)
        writing.join()

    serve_raw(site, script)
    status, connection = ask(site)
    assert status == 101
    assert [(line["status"], line["caller"], "seconds" in line) for line in audit(site)] == [(101, OWN, False)]
    writing = threading.Thread(target=connection.sendall, args=(sent,))
    writing.start()
    assert read_all(connection) == sent and received == [sent]
    writing.join()
    connection.close()
    until(lambda: len(audit(site)) == 2)
    begin, end = audit(site)
    assert end.pop("seconds") > 0 and end.pop("audit") > begin.pop("audit") and begin == end


def test_slow_reader_holds_back_the_daemon(start_hub: StartHub) -> None:
    site, sent, done = start_hub(), [0], threading.Event()

    def script(connection: socket.socket) -> None:
        connection.settimeout(2)
        with pytest.raises(TimeoutError):
            while True:
                sent.append(connection.send(bytes(1 << 16)))
        done.set()

    serve_raw(site, script)
    _, connection = ask(site)
    until(done.is_set)
    connection.close()
    assert 0 < sum(sent) < 64 << 20


def test_daemon_notices_end_of_client_and_client_end_of_daemon(start_hub: StartHub) -> None:
    site, gone = start_hub(), threading.Event()

    def script(connection: socket.socket) -> None:
        if connection.recv(1) == b"x":
            return
        gone.set()

    serve_raw(site, script)
    _, connection = ask(site)
    connection.sendall(b"x")
    assert connection.recv(1) == b""
    connection.close()
    _, connection = ask(site)
    connection.close()
    assert gone.wait(60)


def test_silent_client_is_dropped_and_daemon_that_reads_nothing(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "STREAM_SILENCE_S", 0.5)
    site, end = start_hub(), threading.Event()
    serve_raw(site, lambda _: hold(end))
    _, silent = ask(site)
    assert silent.recv(1) == b""
    silent.close()
    _, busy = ask(site)
    with pytest.raises(OSError):
        while True:
            busy.sendall(bytes(1 << 16))
    busy.close()
    end.set()


def test_streams_count_as_requests_of_their_user(start_hub: StartHub) -> None:
    site, end = start_hub(requests_at_once=4), threading.Event()
    serve_raw(site, lambda _: hold(end))
    streams = [ask(site) for _ in range(2)]
    assert [status for status, _ in streams] == [101, 101]
    assert site.ask("/api/v1/jobs").status == 429
    end.set()
    for _, connection in streams:
        connection.close()


def test_refusal_of_the_daemon_is_an_ordinary_answer(start_hub: StartHub) -> None:
    site = start_hub()
    site.serve_daemon(lambda handler: answer(handler, b'{"problem": 1}', 409))
    status, connection = ask(site)
    assert (status, connection.recv(100)) == (409, b'{"problem": 1}')
    connection.sendall(b"GET /api/site/v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 200"
    connection.close()


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "FFDL-ATTACH, websocket"])
def test_other_protocols_are_not_passed_on(start_hub: StartHub, protocol: str) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        assert "Upgrade" not in handler.headers and handler.headers["Connection"] == "close"
        answer(handler, status=426)

    site.serve_daemon(script)
    status, connection = ask(site, protocol=protocol)
    connection.close()
    assert status == 426


def test_upgrade_without_valid_token_reaches_no_daemon(start_hub: StartHub) -> None:
    site = start_hub()
    site.serve_daemon(lambda _: pytest.fail("reached"))
    for token in ("x", TOKEN.replace(ID, "0" * 12)):
        status, connection = ask(site, token=token)
        connection.close()
        assert status == 401


def test_data_before_the_answer_is_refused(start_hub: StartHub) -> None:
    site, begun, end = start_hub(), threading.Event(), threading.Event()

    def handle(handler: Any) -> None:
        begun.set()
        assert end.wait(60)
        handler.close_connection = True

    site.serve_daemon(handle)
    connection = socket.create_connection(("127.0.0.1", site.port), timeout=60)
    head = f"GET {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    connection.sendall(head.encode() + b"Connection: Upgrade\r\nUpgrade: ffdl-attach\r\n\r\n")
    assert begun.wait(60)
    connection.sendall(b"B e30=\n")
    assert read_all(connection).startswith(b"HTTP/1.1 400")
    connection.close()
    end.set()


@pytest.mark.parametrize("role", ["operators", "auditors"])
def test_upgrade_for_another_users_daemon_is_not_passed_on(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """The daemon refuses the operation to these roles; a hostile one that accepts it gets no stream either."""
    site = start_hub(**{role: [pwd.getpwuid(OWN).pw_name]})
    monkeypatch.setattr(daemons.Daemons, "_checked", staticmethod(lambda connection, _uid: connection))
    site.serve_daemon(lambda handler: answer(handler, b'{"scopes": ["read", "write"]}'))

    def script(handler: Any) -> None:
        assert "Upgrade" not in handler.headers
        handler.connection.sendall(SWITCHED + b"hello")
        handler.close_connection = True

    site.serve_daemon(script, uid=4711)
    status, connection = ask(site, f"/users/4711{PATH}")
    assert status == 503 and b"switched to a protocol" in connection.recv(1000)
    connection.close()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello",
    ],
)
def test_upgrade_that_was_not_asked_for_is_refused(start_hub: StartHub, head: bytes) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        handler.connection.sendall(head)
        handler.close_connection = True

    site.serve_daemon(script)
    assert site.ask("/api/v1/jobs").status == 503


def test_end_of_the_hub_ends_streams(start_hub: StartHub) -> None:
    site, gone = start_hub(), threading.Event()

    def script(connection: socket.socket) -> None:
        assert connection.recv(1) == b""
        gone.set()

    serve_raw(site, script)
    _, connection = ask(site)
    site.end()
    assert connection.recv(1) == b"" and gone.wait(60)
    connection.close()


@pytest.mark.parametrize("protocol", [UPGRADE, "h2c"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_request_with_body_that_asks_for_upgrade_is_refused(start_hub: StartHub, protocol: str, method: str) -> None:
    """The parser would take its body for the next request, which a proxy has not seen."""
    site = start_hub()
    site.serve_daemon(lambda _: pytest.fail("reached"))
    connection = site.remote()
    headers = {"Authorization": f"Bearer {TOKEN}", "Connection": "Upgrade", "Upgrade": protocol}
    connection.request(method, PATH, b"GET /x HTTP/1.1\r\n\r\n", headers)
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("Connection")) == (400, "close") and reply.read()
    assert connection.sock is None or read_all(connection.sock) == b""
    connection.close()
