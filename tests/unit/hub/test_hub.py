"""The hub: which callers it lets through, what it passes on, and what it does when a side breaks off."""

from __future__ import annotations

import json
import os
import pwd
import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

import pytest

from ffdl_batch.site.hub import daemons
from tests.unit.hub.conftest import ID, OWN, TOKEN, Site, answer

StartHub = Callable[..., Site]
ME = pwd.getpwuid(OWN).pw_name


def audit(site: Site) -> list[dict[str, Any]]:
    file = site.place / "audit"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_request_reaches_own_daemon_with_token_and_without_headers_of_connection(start_hub: StartHub) -> None:
    site, seen = start_hub(), []

    def script(handler: Any) -> None:
        seen.append((handler.command, handler.path, dict(handler.headers)))
        answer(handler, b'{"jobs": []}')

    site.serve_daemon(script)
    reply = site.ask(
        "/api/v1/jobs?state=QUEUED&name=a%20b", User_Agent="x", Cookie="c=1", FfDL_Role="operator", FfDL_Actor="0",
        X_Forwarded_For="1.2.3.4", Keep_Alive="5", Proxy_Authorization="p", Accept="application/json",
    )  # fmt: skip
    assert (reply.status, reply.body) == (200, b'{"jobs": []}')
    ((method, path, headers),) = seen
    assert (method, path) == ("GET", "/api/v1/jobs?state=QUEUED&name=a%20b")
    request = headers.pop("FfDL-Request")
    assert reply.headers["ffdl-request"] == request and len(request) == 16
    assert {name.lower(): value for name, value in headers.items()} == {
        "host": "ffdl", "connection": "close", "authorization": f"Bearer {TOKEN}", "user-agent": "x",
        "accept": "application/json", "accept-encoding": "identity",
    }  # fmt: skip
    assert audit(site) == []


@pytest.mark.parametrize("chunked", [False, True])
def test_upload_of_any_form_arrives_whole(start_hub: StartHub, chunked: bool) -> None:
    site, seen, body = start_hub(), [], os.urandom(3_000_000)

    def script(handler: Any) -> None:
        if chunked:
            assert handler.headers["Transfer-Encoding"] == "chunked" and "Content-Length" not in handler.headers
            whole = b""
            while size := int(handler.rfile.readline(), 16):
                whole += handler.rfile.read(size)
                handler.rfile.readline()
        else:
            whole = handler.rfile.read(int(handler.headers["Content-Length"]))
        seen.append(whole)
        answer(handler, status=201)

    site.serve_daemon(script)
    parts = (body[i : i + 100_000] for i in range(0, len(body), 100_000)) if chunked else body
    assert site.ask("/api/v1/archives/x", "PUT", body=parts).status == 201
    assert seen == [body]
    assert [(line["caller"], line["what"], line["status"]) for line in audit(site)] == [
        (OWN, "PUT /api/v1/archives/x", 201)
    ]


def test_stream_is_passed_on_piece_by_piece(start_hub: StartHub) -> None:
    site, go_on = start_hub(), threading.Event()

    def script(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"6\r\nfirst\n\r\n")
        assert go_on.wait(60)
        handler.wfile.write(b"5\r\nlast\n\r\n0\r\n\r\n")

    site.serve_daemon(script)
    connection = site.remote()
    connection.request("GET", "/api/v1/jobs/j/logs", headers={"Authorization": f"Bearer {TOKEN}"})
    reply = connection.getresponse()
    assert reply.readline() == b"first\n"
    go_on.set()
    assert reply.read() == b"last\n"
    connection.close()


def test_head_request_is_answered_without_body(start_hub: StartHub) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        handler.send_response(404)
        handler.send_header("Content-Length", "500")
        handler.end_headers()

    site.serve_daemon(script)
    assert site.ask("/api/v1/archives/x", "HEAD").status == 404


def test_refusal_during_an_upload_reaches_the_caller(start_hub: StartHub) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        handler.rfile.read(10)
        answer(handler, b'{"problem": "large"}', 413)
        handler.close_connection = True

    site.serve_daemon(script)
    connection = site.remote()
    connection.putrequest("PUT", "/api/v1/archives/x")
    for name, value in (("Authorization", f"Bearer {TOKEN}"), ("Content-Length", "5000000")):
        connection.putheader(name, value)
    connection.endheaders(b"x" * 100_000)
    reply = connection.getresponse()
    assert (reply.status, reply.read()) == (413, b'{"problem": "large"}')
    connection.close()


def test_answer_that_breaks_off_is_not_completed(start_hub: StartHub, caplog: pytest.LogCaptureFixture) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        if handler.path.endswith("none"):
            handler.close_connection = True
            return
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"6\r\nfirst\n\r\n")
        handler.close_connection = True

    site.serve_daemon(script)
    with pytest.raises((HTTPException, OSError)):
        site.ask("/api/v1/jobs/j/logs")
    assert [record.name for record in caplog.records] == ["ffdl_batch.site.hub.app"]
    reply = site.ask("/api/v1/none")
    assert reply.status == 503 and "did not answer" in reply.message


def test_endless_head_of_a_daemon_is_refused(start_hub: StartHub) -> None:
    site = start_hub()

    def script(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(64):
            handler.wfile.write(b"X-Large: " + b"a" * 65_536 + b"\r\n")
        handler.wfile.write(b"Content-Length: 0\r\n\r\n")

    site.serve_daemon(script)
    reply = site.ask("/api/v1/jobs")
    assert reply.status == 503 and "the head of its answer is larger than 256 KiB" in reply.message


@pytest.mark.parametrize(("size", "status"), [(0, 200), (200_000, 200), (400_000, 503)])
def test_request_that_a_daemon_has_not_answered_when_it_ended_is_sent_once_more(
    start_hub: StartHub, size: int, status: int
) -> None:
    site, seen = start_hub(), []

    def script(handler: Any) -> None:
        seen.append(handler.rfile.read(int(handler.headers.get("Content-Length", 0))))
        if len(seen) == 1:
            handler.close_connection = True
        else:
            answer(handler)

    site.serve_daemon(script)
    body = os.urandom(size)
    assert site.ask("/api/v1/jobs", "POST", body=body).status == status
    assert seen == [body] * (2 if status == 200 else 1)


def test_daemon_notices_that_the_caller_has_gone(start_hub: StartHub) -> None:
    site, gone = start_hub(), threading.Event()

    def script(handler: Any) -> None:
        assert handler.connection.recv(1) == b""
        gone.set()
        handler.close_connection = True

    site.serve_daemon(script)
    connection = site.remote()
    connection.request("GET", "/api/v1/jobs/j/wait", headers={"Authorization": f"Bearer {TOKEN}"})
    until(lambda: site.ask("/api/site/v1/health").status == 200)
    connection.close()
    assert gone.wait(60)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "x",
        TOKEN[:-1],
        TOKEN.upper(),
        f"ffdl_{'0' * 12}_{'s' * 43}",
        f"{TOKEN} {TOKEN}",
        "ffdl_../../etc/pas_" + "s" * 43,
    ],
)
def test_request_without_valid_token_reaches_no_daemon(start_hub: StartHub, given: str) -> None:
    site = start_hub()
    site.serve_daemon(lambda _: pytest.fail("reached"))
    reply = site.ask("/api/v1/jobs", token=given)
    assert reply.status == 401 and json.loads(reply.body)["problem"]["exit_code"] == 77
    (line,) = audit(site)
    assert (line["caller"], line["from"], line["status"]) == (None, "address 127.0.0.1", 401)
    assert given == "" or given not in (site.place / "audit").read_text()


def test_many_requests_without_valid_token_are_refused_and_valid_ones_are_answered(start_hub: StartHub) -> None:
    site = start_hub(wrong_tokens_per_minute=3)
    site.serve_daemon(answer)
    assert [site.ask("/api/v1/jobs", token="x").status for _ in range(3)] == [401] * 3
    assert [site.ask("/api/v1/jobs", token=token).status for token in ("x", "", TOKEN.replace(ID, "0" * 12))] == [
        429
    ] * 3
    assert site.ask("/nothing").status == site.ask("/api/site/v1/nothing").status == 429
    assert site.ask("/api/v1/jobs").status == 200
    assert len(audit(site)) == 3


def test_token_that_the_daemon_refuses_counts_as_invalid(start_hub: StartHub) -> None:
    site = start_hub(wrong_tokens_per_minute=2)
    site.serve_daemon(lambda handler: answer(handler, status=401))
    assert [site.ask("/api/v1/jobs").status for _ in range(3)] == [401] * 3
    assert site.ask("/api/v1/jobs", token="x").status == 429


def test_large_answer_about_token_of_operator_is_dropped(start_hub: StartHub) -> None:
    site = start_hub(operators=[ME])
    site.serve_daemon(lambda handler: answer(handler, b" " * 1_000_000))
    assert "is too large" in site.ask("/users/4711/api/v1/jobs").message


def test_token_is_refused_after_removal_expiry_and_for_another_account(start_hub: StartHub) -> None:
    site = start_hub()
    site.serve_daemon(answer)
    site.tokens.put(ID, OWN, time.time() - 1)
    assert site.ask("/api/v1/jobs").status == 401
    site.tokens.put(ID, OWN, time.time() + 100)
    assert site.ask("/api/v1/jobs").status == 200
    site.tokens._account = lambda _: "another person"
    assert site.ask("/api/v1/jobs").status == 401
    site.tokens._account = lambda uid: f"user{uid}"
    site.tokens.remove(ID, OWN + 1)
    assert site.ask("/api/v1/jobs").status == 200
    site.tokens.remove(ID, OWN)
    assert site.ask("/api/v1/jobs").status == 401


def test_limits_count_the_requests_of_a_user(start_hub: StartHub) -> None:
    site, go_on = start_hub(requests_at_once=2, requests_per_minute=6), threading.Event()

    def script(handler: Any) -> None:
        assert handler.path != "/api/v1/slow" or go_on.wait(60)
        answer(handler)

    site.serve_daemon(script)
    waiting = [threading.Thread(target=site.ask, args=("/api/v1/slow",)) for _ in range(2)]
    for thread in waiting:
        thread.start()
    until(lambda: site.ask("/api/v1/fast").status == 429)
    go_on.set()
    for thread in waiting:
        thread.join()
    until(lambda: f"user {OWN} has sent 6 requests within a minute".encode() in site.ask("/api/v1/fast").body)


def test_hub_socket_gives_nobody_the_own_daemon_without_token(start_hub: StartHub) -> None:
    site = start_hub()
    site.serve_daemon(lambda _: pytest.fail("reached"))
    reply = site.ask("/api/v1/jobs", local=True, token="")
    assert reply.status == 403 and "need a token" in reply.message


@pytest.mark.parametrize("role", ["operators", "auditors"])
def test_listed_user_acts_on_other_daemon_with_role_and_without_own_token(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    site, other = start_hub(**{role: [ME]}), 4711
    seen: list[tuple[str, dict[str, str]]] = []

    def script(handler: Any) -> None:
        seen.append((handler.path, {name.lower(): value for name, value in handler.headers.items()}))
        answer(handler, b'{"scopes": ["read", "write"]}')

    # The kernel reports this process for every socket that it listens at.
    monkeypatch.setattr(daemons.Daemons, "_checked", staticmethod(lambda connection, _uid: connection))
    site.serve_daemon(script)
    site.serve_daemon(script, uid=other)
    for local, token in ((True, ""), (False, TOKEN)):
        seen.clear()
        assert site.ask(f"/users/{other}/api/v1/jobs/j/cancel", "POST", local=local, token=token).status == 200
        path, headers = seen.pop()
        assert path == "/api/v1/jobs/j/cancel" and "authorization" not in headers
        assert (headers["ffdl-role"], headers["ffdl-actor"]) == (role[:-1], str(OWN))
        checked = [(path, headers["authorization"], headers.get("ffdl-role")) for path, headers in seen]
        assert checked == ([] if local else [("/api/v1/whoami", f"Bearer {TOKEN}", None)])
    assert [(line["caller"], line["user"], line["role"], line["status"]) for line in audit(site)] == [
        (OWN, other, role[:-1], 200)
    ] * 2


def test_user_without_role_and_token_that_own_daemon_refuses_reach_no_other_daemon(start_hub: StartHub) -> None:
    site = start_hub(operators=["@nobody-is-in-this-group"])
    site.serve_daemon(lambda handler: answer(handler, status=401))
    assert site.ask("/users/4711/api/v1/jobs", local=True, token="").status == 403


def test_operator_whose_token_the_own_daemon_refuses_reaches_no_other_daemon(start_hub: StartHub) -> None:
    site = start_hub(operators=[ME])
    site.serve_daemon(lambda handler: answer(handler, status=401))
    site.serve_daemon(lambda _: pytest.fail("reached"), uid=4711)
    assert site.ask("/users/4711/api/v1/jobs").status == 401


@pytest.mark.parametrize(
    ("scopes", "method", "status"),
    [
        ("read", "GET", 503),
        ("read", "POST", 403),
        ("write", "POST", 503),
        ("write", "GET", 403),
        ("tokens", "GET", 403),
    ],
)
def test_token_of_operator_needs_scope_for_other_daemon(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch, scopes: str, method: str, status: int
) -> None:
    site = start_hub(operators=[ME])
    monkeypatch.setattr(daemons, "START_S", 0.0)
    site.serve_daemon(lambda handler: answer(handler, json.dumps({"scopes": [scopes]}).encode()))
    assert site.ask("/users/4711/api/v1/jobs", method).status == status  # 503: there is no such daemon


@pytest.mark.parametrize(
    "path",
    ["/", "/users/4711/metrics", "/users/0/api/v1/jobs", "/users/x/api/v1/jobs", "/api/v2/jobs", "//api/v1/jobs"],
)
def test_other_paths_are_unknown(start_hub: StartHub, path: str) -> None:
    site = start_hub(operators=[ME])
    site.serve_daemon(lambda _: pytest.fail("reached"))
    assert site.ask(path).status == 404


def test_daemon_that_does_not_listen_is_asked_for_once(start_hub: StartHub, monkeypatch: pytest.MonkeyPatch) -> None:
    site, asked = start_hub(), []

    def ask_spawner(place: Any, uid: int) -> tuple[str, str]:
        asked.append((place, uid))
        if len(asked) == 1:
            return "later", "it is busy"
        time.sleep(0.2)
        site.serve_daemon(answer)
        return "ok", "/some/path"

    monkeypatch.setattr(daemons, "ask_spawner", ask_spawner)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(site.ask("/api/v1/jobs").status)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [200] * 5 and asked == [(site.place / "spawner.sock", OWN)] * 2


def test_refusal_of_the_spawner_and_its_silence_are_told_apart(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start_hub()
    monkeypatch.setattr(daemons, "START_S", 0.1)
    reply = site.ask("/api/v1/jobs")
    spawner = site.place / "spawner.sock"
    assert (reply.status, reply.message.partition("answer: ")[2]) == (503, f"{spawner}: No such file or directory")
    monkeypatch.setattr(daemons, "ask_spawner", lambda *_: ("refused", "uid 7 is not a user account"))
    reply = site.ask("/api/v1/jobs")
    assert (reply.status, reply.message) == (403, f"the spawner refuses user {OWN}: uid 7 is not a user account")


def test_daemon_of_another_user_at_the_path_gets_no_token(start_hub: StartHub) -> None:
    site = start_hub()
    site.tokens.put("0" * 12, 4711, time.time() + 100)
    site.serve_daemon(lambda _: pytest.fail("reached"), uid=4711)
    reply = site.ask("/api/v1/jobs", token=TOKEN.replace(ID, "0" * 12))
    assert (reply.status, reply.message) == (403, f"user {OWN} listens at the socket of user 4711")


def test_full_backlog_of_a_daemon_is_waited_for(start_hub: StartHub) -> None:
    site = start_hub()
    place = site.place / "users" / str(OWN) / "daemon.sock"
    place.parent.mkdir(parents=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(place))
    listening.listen(0)
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    filler.connect(str(place))
    replies: list[int] = []
    thread = threading.Thread(target=lambda: replies.append(site.ask("/api/v1/jobs").status))
    thread.start()
    time.sleep(0.3)
    assert not replies
    listening.accept()[0].close()
    served, _ = listening.accept()
    served.recv(65536)
    served.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    thread.join(60)
    for one in (served, filler, listening):
        one.close()
    assert replies == [200]


def test_change_of_operator_is_in_audit_with_its_values(start_hub: StartHub) -> None:
    site = start_hub(operators=[ME])
    change = {"member": "", "amount": 7, "why": "x" * 5000}
    for path, body in (("vision", "{}"), ("vision/quotas/gpus", json.dumps(change))):
        reply = site.ask(f"/api/site/v1/tenants/{path}", "PUT", local=True, token="", body=body)
        assert reply.status == 200
    lines = audit(site)
    assert [line["what"] for line in lines] == [
        "PUT /api/site/v1/tenants/vision", "PUT /api/site/v1/tenants/vision/quotas/gpus"
    ]  # fmt: skip
    assert "values" not in lines[0]
    assert lines[1]["values"].startswith('{"member": "", "amount": 7') and len(lines[1]["values"]) == 300


def test_daemon_registers_tokens_of_its_own_user_only(start_hub: StartHub) -> None:
    site = start_hub()
    body = json.dumps({"expires_at": time.time() + 50})
    new = f"/api/site/v1/tokens/{'1' * 12}"
    assert site.ask(new, "PUT", local=True, token="", body=body).status == 200
    assert site.tokens.owner("1" * 12) == OWN
    site.tokens.put("2" * 12, 4711, time.time() + 100)
    taken = f"/api/site/v1/tokens/{'2' * 12}"
    assert site.ask(taken, "PUT", local=True, token="", body=body).status == 409
    assert site.ask(taken, "DELETE", local=True, token="").status == 200
    assert site.tokens.owner("2" * 12) == 4711
    assert site.ask(new, "DELETE", local=True, token="").status == 200
    assert site.tokens.owner("1" * 12) is None
    assert site.ask(new, "PUT", body=body).status == 404  # not over TCP, whatever the token


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{}", '{"expires_at": "x"}', '{"expires_at": 1e300}', '{"expires_at": NaN}', "[" * 4000],
)
def test_registration_with_invalid_body_is_refused(start_hub: StartHub, body: str) -> None:
    site = start_hub()
    assert site.ask(f"/api/site/v1/tokens/{'1' * 12}", "PUT", local=True, token="", body=body).status == 422


def test_large_registration_is_refused(start_hub: StartHub) -> None:
    site = start_hub()
    reply = site.ask(f"/api/site/v1/tokens/{'1' * 12}", "PUT", local=True, token="", body=b"x" * 40_000)
    assert reply.status == 413


def test_user_has_a_limited_number_of_tokens(start_hub: StartHub, monkeypatch: pytest.MonkeyPatch) -> None:
    site = start_hub()
    monkeypatch.setattr("ffdl_batch.site.hub.tokens.token_index.MOST_OF_USER", 2)
    body = json.dumps({"expires_at": time.time() + 50})
    statuses = [
        site.ask(f"/api/site/v1/tokens/{str(n) * 12}", "PUT", local=True, token="", body=body).status for n in (1, 2)
    ]
    assert statuses == [200, 409]
