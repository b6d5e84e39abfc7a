"""Callers and daemons that do harm: floods of connections, guessed ids of tokens, forged headers, hostile answers."""

from __future__ import annotations

import json
import pwd
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.access import new_token
from ffdl_batch.site.hub import accepting, bodies, daemons
from ffdl_batch.site.hub.accepting import Shares
from ffdl_batch.site.hub.callers import TrustedProxies
from tests.fakes.certificates import certificate_for
from tests.unit.hub.conftest import OWN, TOKEN, Site, answer
from tests.unit.hub.test_hub import audit, until

StartHub = Callable[..., Site]
ME = pwd.getpwuid(OWN).pw_name
WRONG = TOKEN[:-1] + "x"
HEALTH = b"GET /api/site/v1/health HTTP/1.1\r\nHost: x\r\n\r\n"


def connect(site: Site, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.port), timeout=60, source_address=(source, 0))


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 16384, 1 << 20])
def test_shares_leave_descriptors_for_daemons_and_files(descriptors: int) -> None:
    shares = Shares.of(descriptors)
    assert min(shares.remote, shares.local, shares.opening) >= 2
    used = 2 * (shares.remote + shares.local) + 2 * shares.opening
    assert used <= descriptors - min(192, descriptors // 2)


def test_handshakes_of_one_address_are_bounded_and_others_are_served(start_hub: StartHub, tmp_path: Path) -> None:
    certificate, key = certificate_for("127.0.0.1", tmp_path)
    site = start_hub(tls=True, certificate=str(certificate), key=str(key), descriptors=1024)  # 52 being opened
    silent = [connect(site, "127.0.0.2") for _ in range(40)]
    until(lambda: sum(is_closed(one) for one in silent) == 40 - 13)
    import http.client
    import ssl

    context = ssl.create_default_context(cafile=str(certificate))
    asked = http.client.HTTPSConnection("127.0.0.1", site.port, timeout=60, context=context)
    asked.request("GET", "/api/site/v1/health")
    assert asked.getresponse().status == 200
    asked.close()
    for one in silent:
        one.close()


def test_connections_of_one_address_are_a_quarter_and_surplus_is_refused_with_retry_after(start_hub: StartHub) -> None:
    site = start_hub(descriptors=256)  # 32 connections, 8 of one address
    held = [connect(site, "127.0.0.2") for _ in range(8)]
    for one in held:
        one.sendall(HEALTH)
        assert one.recv(12) == b"HTTP/1.1 200"
    more = connect(site, "127.0.0.2")
    head = more.recv(4096)
    assert head.startswith(b"HTTP/1.1 503") and b"\r\nRetry-After: 5\r\n" in head
    assert site.ask("/api/site/v1/health").status == 200
    for one in (*held, more):
        one.close()


def test_flood_of_many_addresses_is_closed_before_descriptors_run_out(start_hub: StartHub) -> None:
    site = start_hub(descriptors=256)  # 32 connections, 8 being opened or refused
    held = [connect(site, f"127.0.1.{n % 60 + 1}") for n in range(120)]
    until(lambda: sum(is_closed(one) for one in held) >= 120 - 32 - 8)
    for one in held:
        one.close()
    until(lambda: site.ask("/api/site/v1/health").status == 200)


def test_request_whose_body_does_not_come_is_dropped(start_hub: StartHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SMALL_S", 0.2)
    site = start_hub()
    with connect(site) as slow:
        slow.sendall(b"POST /api/site/v1/device-logins HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        assert slow.recv(1) == b""


def test_uid_of_a_user_namespace_reaches_nothing_of_the_hub(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start_hub()
    assert site.ask("/api/site/v1/health", local=True, token="").status == 200
    accepting._is_subordinate.cache_clear()
    monkeypatch.setattr(accepting, "is_subordinate", lambda uid: uid == OWN)
    with pytest.raises(ConnectionError):
        site.ask("/api/site/v1/health", local=True, token="")
    accepting._is_subordinate.cache_clear()


def test_token_takes_half_of_the_limits_and_leaves_the_rest_to_its_owner(start_hub: StartHub) -> None:
    site, go_on, own = start_hub(requests_at_once=4), threading.Event(), new_token()
    site.tokens.put(own.id, OWN, time.time() + 1000)
    held: list[str] = []

    def script(handler: Any) -> None:
        if handler.path == "/api/v1/slow":
            held.append(handler.path)
            assert go_on.wait(60)
        answer(handler)

    site.serve_daemon(script)
    assert [site.ask("/api/v1/jobs", token=token).status for token in (TOKEN, own.text)] == [200, 200]
    waiting = [threading.Thread(target=site.ask, args=("/api/v1/slow",)) for _ in range(2)]
    for number, thread in enumerate(waiting, 1):
        thread.start()
        until(lambda number=number: len(held) == number)  # type: ignore[misc]
    refused = site.ask("/api/v1/jobs")
    assert (refused.status, f"2 requests of user {OWN} are" in refused.message) == (429, True)
    assert refused.message.endswith("with this token")
    assert site.ask("/api/v1/jobs", token=own.text).status == 200
    go_on.set()
    for thread in waiting:
        thread.join()


def test_wrong_secret_uses_up_nothing_of_the_owner(start_hub: StartHub) -> None:
    site, go_on = start_hub(requests_per_minute=9, requests_at_once=2), threading.Event()

    def script(handler: Any) -> None:
        is_right = handler.headers["Authorization"] == f"Bearer {TOKEN}"
        assert is_right or handler.path != "/api/v1/slow" or go_on.wait(60)
        answer(handler, status=200 if is_right else 401)

    site.serve_daemon(script)
    assert site.ask("/api/v1/jobs").status == 200
    waiting = [threading.Thread(target=site.ask, args=("/api/v1/slow",), kwargs={"token": WRONG}) for _ in range(2)]
    for thread in waiting:
        thread.start()
    until(lambda: "for user" in str(site.ask("/api/v1/jobs", token=WRONG).body))
    assert site.ask("/api/v1/jobs").status == 200
    go_on.set()
    for thread in waiting:
        thread.join()
    for _ in range(10):
        site.ask("/api/v1/jobs", token=WRONG)
    assert site.ask("/api/v1/jobs", token=WRONG).status == 429
    assert [site.ask("/api/v1/jobs").status for _ in range(4)] == [200, 200, 200, 429]  # a token has half, rounded up


def test_refusal_before_the_token_was_checked_does_not_prove_it(start_hub: StartHub) -> None:
    site = start_hub(requests_per_minute=3)
    site.serve_daemon(lambda handler: answer(handler, status=200 if handler.headers["X"] else 431))
    assert [site.ask("/api/v1/jobs", token=WRONG).status for _ in range(4)] == [431, 431, 431, 429]
    assert [site.ask("/api/v1/jobs", X="1").status for _ in range(2)] == [429, 429]  # new from the same address
    other = TrustedProxies(["127.0.0.1"])
    assert "127.0.0.1" in other and "127.0.0.2" not in other


def test_refusals_of_another_users_daemon_do_not_count_against_the_operator(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start_hub(operators=[ME], wrong_tokens_per_minute=1)
    monkeypatch.setattr(daemons.Daemons, "_checked", staticmethod(lambda connection, _uid: connection))
    site.serve_daemon(lambda handler: answer(handler, b'{"scopes": ["read"]}'))
    site.serve_daemon(lambda handler: answer(handler, status=401), uid=4711)
    assert [site.ask("/users/4711/api/v1/jobs").status for _ in range(3)] == [401] * 3
    assert site.ask("/api/v1/jobs", token="x").status == 401  # not 429


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Type: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX\x00Y: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 999 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 000 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"hello\r\n\r\n",
    ],
)
def test_answer_that_may_be_read_in_two_ways_is_refused(
    start_hub: StartHub, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        handler.connection.sendall(head)
        handler.close_connection = True

    site.serve_daemon(script)
    assert site.ask("/api/v1/jobs").status == 503
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints\r\nSet-Cookie: a=b"])
def test_interim_answers_are_dropped(start_hub: StartHub, interim: bytes) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        handler.connection.sendall(b"HTTP/1.1 " + interim + b"\r\n\r\n")
        answer(handler, b'{"jobs": []}')

    site.serve_daemon(script)
    reply = site.ask("/api/v1/jobs")
    assert (reply.status, reply.body) == (200, b'{"jobs": []}') and "Set-Cookie" not in str(reply.headers)


def test_endless_interim_answers_are_refused(start_hub: StartHub) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        for _ in range(40):
            handler.connection.sendall(b"HTTP/1.1 102 Processing\r\nX: " + b"a" * 10_000 + b"\r\n\r\n")
        handler.close_connection = True

    site.serve_daemon(script)
    assert site.ask("/api/v1/jobs").status == 503


def test_only_known_headers_of_answers_reach_the_caller(start_hub: StartHub) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        handler.connection.sendall(
            b"HTTP/1.1 200 \x1b[2JOK\r\nSet-Cookie: session=x\r\nLocation: https://elsewhere\r\nRefresh: 0\r\n"
            b"Access-Control-Allow-Origin: *\r\nClear-Site-Data: *\r\nFfDL-Request: forged\r\nX-Any: 1\r\n"
            b"Content-Security-Policy: none\r\nContent-Type: text/html\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}"
        )
        handler.close_connection = True

    site.serve_daemon(script)
    reply = site.ask("/api/v1/jobs")
    request = reply.headers.pop("ffdl-request") if isinstance(reply.headers, dict) else ""
    assert len(request) == 16
    assert {name.lower(): value for name, value in reply.headers.items()} == {
        "content-type": "text/html", "retry-after": "3", "content-length": "2", "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("peer", "header", "client"),
    [
        ("10.0.0.5", ["1.2.3.4"], "1.2.3.4"),
        ("10.0.0.5", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
        ("10.0.0.5", ["6.6.6.6", "1.2.3.4, 10.0.0.6"], "1.2.3.4"),
        ("10.0.0.5", ["1.2.3.4, 10.0.0.6,10.0.0.5"], "1.2.3.4"),
        ("10.0.0.5", ["10.0.0.6"], "10.0.0.6"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["1.2.3.4, unknown"], "10.0.0.5"),
        ("10.0.0.5", ["1.2.3.4, 8.8.8.8:99"], "10.0.0.5"),
        ("10.0.0.5", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.5", ["::ffff:1.2.3.4"], "1.2.3.4"),
    ],
)
def test_client_of_a_proxy_is_the_last_address_that_is_no_proxy(peer: str, header: list[str], client: str) -> None:
    proxies = TrustedProxies(["10.0.0.0/29"])
    assert peer in proxies and f"::ffff:{peer}" in proxies and "10.0.0.8" not in proxies and "user 0" not in proxies
    assert proxies.client_of(peer, header) == client


@pytest.mark.parametrize(("proxies", "origin"), [([], "127.0.0.1"), (["127.0.0.1"], "1.2.3.4")])
def test_address_of_client_behind_trusted_proxy_is_in_audit_and_limits(
    start_hub: StartHub, proxies: list[str], origin: str
) -> None:
    site, seen = start_hub(trusted_proxies=proxies, wrong_tokens_per_minute=1), []

    def script(handler: Any) -> None:
        seen.append(handler.headers.get("X-Forwarded-For"))
        answer(handler)

    site.serve_daemon(script)
    forged: dict[str, Any] = {"X_Forwarded_For": "9.9.9.9, 1.2.3.4"}
    assert site.ask("/api/v1/jobs", **forged).status == 200 and seen == [None]
    assert site.ask("/api/v1/jobs", token="x", **forged).status == 401
    assert audit(site)[-1]["from"] == f"address {origin}"
    assert site.ask("/api/v1/jobs", token="x", **forged).status == 429
    other = site.ask("/api/v1/jobs", token="x", X_Forwarded_For="9.9.9.9, 5.6.7.8").status
    assert other == (401 if proxies else 429)


def test_trusted_proxy_may_have_more_than_a_quarter_of_the_connections(start_hub: StartHub) -> None:
    site = start_hub(descriptors=256, trusted_proxies=["127.0.0.2"])  # 32 connections
    held = []
    for _ in range(25):
        one = connect(site, "127.0.0.2")
        held.append(one)
        one.sendall(HEALTH)
        assert one.recv(12) == b"HTTP/1.1 200"
    for one in held:
        one.close()


def test_local_socket_ignores_header_of_proxies(start_hub: StartHub) -> None:
    site = start_hub(trusted_proxies=["0.0.0.0/0"])
    body = json.dumps({"expires_at": 1})
    assert site.ask(f"/api/site/v1/tokens/{'1' * 12}", "PUT", local=True, token="", body=body,
                    X_Forwarded_For="1.2.3.4").status == 422  # fmt: skip
    assert audit(site)[-1]["from"] == f"user {OWN}"
