"""Create, list and revoke tokens, with a hub that listens, one that does not, and a program that poses as the hub."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.access import new_token, parse_token, write_login
from ffdl_batch.services import hub as hub_module
from ffdl_batch.services import tokens as token_service
from ffdl_batch.services.hub import Hub
from ffdl_batch.services.tokens import MOST_OF_MEMBER
from tests.unit.daemon.conftest import OWN_UID, Answer, Desk

NEW = {"name": "laptop", "scopes": ["write", "read"]}
HUB_UID = OWN_UID + 1


class HubServer(socketserver.ThreadingUnixStreamServer):
    """A hub that records requests and answers them with `status` and `body`."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), HubHandler)
        self.requests: list[tuple[str, str, Any]] = []
        self.status, self.body = 200, b"{}"


class HubHandler(BaseHTTPRequestHandler):
    server: HubServer

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, json.loads(body) if body else None))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def do_DELETE(self) -> None:
        self.do_PUT()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def hub(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub of the user who runs the tests; the daemon knows its socket."""
    monkeypatch.setattr(hub_module, "PATIENCE_S", 60.0)
    path = tmp_path / "hub.sock"
    server = HubServer(path)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    desk.context.hub = Hub(os.getuid(), str(path))
    yield server
    server.shutdown()
    serving.join()
    server.server_close()


def create(desk: Desk, **changes: object) -> Answer:
    return desk.ask("POST", "/api/v1/tokens", NEW | changes)


def listed(desk: Desk) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = desk.ask("GET", "/api/v1/tokens").json["tokens"]
    return found


def status_with(desk: Desk, secret: str) -> int:
    """The status of a request with this token that the hub passes on."""
    known = desk.context.hub
    desk.context.hub = Hub(HUB_UID, "")
    headers = {"Authorization": f"Bearer {secret}"}
    status = desk.ask("GET", "/api/v1/jobs", uid=HUB_UID, headers=headers).status
    desk.context.hub = known
    return status


def test_token_is_registered_used_listed_and_revoked(desk: Desk, hub: HubServer) -> None:
    now = desk.platform.storage.clock.now()
    answer = create(desk, lifetime_s=3600)
    view, secret = answer.json["token"], answer.json["secret"]
    token = parse_token(secret)
    assert token is not None and answer.status == 200
    assert view == {
        "id": token.id, "name": "laptop", "scopes": ["read", "write"], "created_at": now, "expires_at": now + 3600
    }  # fmt: skip
    assert hub.requests == [("PUT", f"/api/site/v1/tokens/{token.id}", {"expires_at": now + 3600})]
    assert listed(desk) == [view] and token.secret not in str(listed(desk))
    assert status_with(desk, secret) == 200
    for _ in range(2):
        revoked = desk.ask("DELETE", f"/api/v1/tokens/{token.id}")
        assert (revoked.status, revoked.json) == (200, {"token": view, "hub_informed": True, "schema": 1})
    assert hub.requests[1:] == [("DELETE", f"/api/site/v1/tokens/{token.id}", None)] * 2
    assert listed(desk) == [] and status_with(desk, secret) == 401


def trust_hub(desk: Desk) -> None:
    desk.platform.settings = replace(desk.platform.settings, trust_hub_sessions=True)


def log_in(desk: Desk, text: str, uid: int | None = None) -> Answer:
    return desk.ask("POST", "/api/v1/trusted-logins", {"login": text}, uid=os.getuid() if uid is None else uid)


def test_login_that_hub_has_checked_stores_token_for_8_hours_without_scope_tokens(desk: Desk, hub: HubServer) -> None:
    trust_hub(desk)
    token, now = new_token(), desk.platform.storage.clock.now()
    answer = log_in(desk, write_login(token, "login on laptop").decode())
    view = {"id": token.id, "name": "login on laptop", "scopes": ["read", "write"], "created_at": now}
    assert answer.json["token"] == view | {"expires_at": now + 8 * 3600}
    assert hub.requests == [("PUT", f"/api/site/v1/tokens/{token.id}", {"expires_at": now + 8 * 3600})]
    assert status_with(desk, token.text) == 200
    again = log_in(desk, write_login(replace(new_token(), id=token.id), "other").decode())
    assert_refused(again, 401, 77, "its token already exists")
    for text in ("", "ffdl-token x", f"ffdl-token {token.id} {'0' * 64} a\x1b", "é"):
        assert log_in(desk, text).status in (400, 401)
    assert listed(desk) == [answer.json["token"]] and len(hub.requests) == 1


def test_login_that_only_hub_has_checked_is_refused_unless_site_trusts_it(desk: Desk, hub: HubServer) -> None:
    text = write_login(new_token(), "login on laptop").decode()
    for uid in (os.getuid(), OWN_UID):
        assert_refused(log_in(desk, text, uid), 403, 77, "trust_hub_sessions is not set in the site file")
    assert hub.requests == [] and listed(desk) == []
    trust_hub(desk)
    assert log_in(desk, text, OWN_UID + 5).status == 403
    desk.context.hub = None
    assert_refused(log_in(desk, text, OWN_UID), 422, 69, "was not started by a site's spawner")


def test_database_has_no_secret(desk: Desk, hub: HubServer, tmp_path: Path) -> None:
    secret = create(desk).json["secret"].split("_", 2)[2].encode()
    files = [path.read_bytes() for path in (tmp_path / "state").iterdir() if path.is_file()]
    assert any(b"laptop" in content for content in files) and not any(secret in content for content in files)


def test_token_expires(desk: Desk, hub: HubServer) -> None:
    secret = create(desk).json["secret"]
    desk.platform.storage.clock.tick(30 * 86400 - 1)  # type: ignore[attr-defined]  # a FakeClock
    assert status_with(desk, secret) == 200 and len(listed(desk)) == 1
    desk.platform.storage.clock.tick(1)  # type: ignore[attr-defined]
    assert status_with(desk, secret) == 401 and listed(desk) == []


def assert_refused(answer: Answer, status: int, exit_code: int, text: str) -> None:
    problem = answer.json["problem"]
    assert (answer.status, problem["exit_code"]) == (status, exit_code), problem
    assert text in problem["message"]


def test_no_token_is_created_without_registration_by_hub(desk: Desk, hub: HubServer) -> None:
    hub.status = 503
    assert_refused(create(desk), 503, 75, "no token was created: the hub answered with status 503")
    hub.status, hub.body = 429, b'{"problem": {"message": "too many"}}'
    assert_refused(create(desk), 503, 75, "status 429")
    hub.status, hub.body = 409, b'{"problem": {"message": "you have 200 valid tokens"}}'
    assert_refused(create(desk), 409, 1, "because the hub refuses it: you have 200 valid tokens")
    hub.body = b"<html>"
    assert_refused(create(desk), 409, 1, "because the hub refuses it: status 409")
    assert len(hub.requests) == 4 and listed(desk) == []


def test_no_token_is_created_if_hub_does_not_answer(
    desk: Desk, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.context.hub = Hub(os.getuid(), str(tmp_path / "none"))
    assert_refused(create(desk), 503, 75, "the hub does not answer at")
    monkeypatch.setattr(hub_module, "PATIENCE_S", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        desk.context.hub = Hub(os.getuid(), str(tmp_path / "silent"))
        assert_refused(create(desk), 503, 75, "timed out")
    assert listed(desk) == []


def test_daemon_sends_nothing_to_another_user_at_socket_of_hub(desk: Desk, hub: HubServer) -> None:
    desk.context.hub = Hub(os.getuid() + 1, str(hub.server_address))
    assert_refused(
        create(desk), 503, 75, f"user {os.getuid()} listens there, but the hub runs as user {os.getuid() + 1}"
    )
    assert hub.requests == [] and listed(desk) == []


@pytest.mark.parametrize("status", [None, 503, 404])
def test_revocation_is_stored_if_hub_is_not_informed(
    desk: Desk, hub: HubServer, tmp_path: Path, status: int | None
) -> None:
    made = create(desk).json
    if status is None:
        desk.context.hub = Hub(os.getuid(), str(tmp_path / "none"))
    else:
        hub.status = status
    revoked = desk.ask("DELETE", f"/api/v1/tokens/{made['token']['id']}")
    assert (revoked.status, revoked.json["hub_informed"]) == (200, False)
    assert status_with(desk, made["secret"]) == 401


def test_unknown_token_cannot_be_revoked(desk: Desk, hub: HubServer) -> None:
    assert_refused(desk.ask("DELETE", "/api/v1/tokens/aaaaaaaaaaaa"), 404, 1, "there is no token 'aaaaaaaaaaaa'")
    assert hub.requests == []


def test_number_of_tokens_is_limited(desk: Desk, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_service, "MOST_LIVE", 2)
    first = create(desk).json["token"]["id"]
    assert create(desk).status == 200
    assert_refused(create(desk), 409, 1, "you have 2 valid tokens, which is the maximum")
    assert len(hub.requests) == 2
    desk.ask("DELETE", f"/api/v1/tokens/{first}")
    assert create(desk).status == 200


def test_scope_tokens_is_not_granted(desk: Desk, hub: HubServer) -> None:
    assert_refused(
        create(desk, scopes=["read", "tokens"]), 403, 77, "only `ffdl login` on a login node grants the scope tokens"
    )
    assert hub.requests == []


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""}, {"name": "x" * 65}, {"name": "a\nb"}, {"name": "\0"}, {"name": 1}, {"scopes": []},
        {"scopes": ["admin"]}, {"scopes": ["read"] * 4}, {"scopes": "read"}, {"lifetime_s": 59},
        {"lifetime_s": 365 * 86400 + 1}, {"lifetime_s": None}, {"lifetime_s": 1e400},
    ],
)  # fmt: skip
def test_request_outside_limits_creates_no_token(desk: Desk, hub: HubServer, changes: dict[str, object]) -> None:
    assert_refused(create(desk, **changes), 400, 2, "does not match the interface")
    assert hub.requests == []


def test_personal_daemon_creates_no_token(desk: Desk) -> None:
    assert_refused(create(desk), 422, 69, "this daemon was not started by a site's spawner")
    assert listed(desk) == []


def test_member_of_tenant_without_accounts_has_few_tokens_and_loses_the_oldest(desk: Desk, hub: HubServer) -> None:
    desk.platform.storage = replace(desk.platform.storage, is_tenant=True)
    tokens = []
    for name in ("ada@example.org", "bob@example.org", *["ada@example.org"] * MOST_OF_MEMBER):
        tokens.append(new_token())
        assert log_in(desk, write_login(tokens[-1], name).decode()).status == 200  # whatever trust_hub_sessions says
        desk.platform.storage.clock.tick(1)  # type: ignore[attr-defined]
    assert [status_with(desk, token.text) for token in tokens] == [401, *[200] * (MOST_OF_MEMBER + 1)]
    assert ("DELETE", f"/api/site/v1/tokens/{tokens[0].id}", None) in hub.requests
