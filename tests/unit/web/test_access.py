"""The guard of the page: who gets an answer, and what a browser may do with it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from ffdl_batch.daemon.connections import Peer, with_peer
from ffdl_batch.web.access import OPEN, STATIC, Guard, Keys

HOST = {"host": "localhost:8470"}


class Answer:
    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self.status = int(sent[0]["status"])
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in sent[1:]).decode()


def ask(
    keys: Keys, path: str, headers: dict[str, str] = HOST, *, method: str = "GET", uid: int | None = None
) -> Answer:
    """The answer of a guarded application that shows everything to everybody."""
    sent: list[dict[str, Any]] = []
    path, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    with_peer(scope, Peer(1, os.geteuid() if uid is None else uid, lambda: None))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Guard(PlainTextResponse("the jobs"), keys)(scope, receive, send))
    return Answer(sent)


def signed_in(keys: Keys) -> dict[str, str]:
    cookie = ask(keys, f"{OPEN}?token={keys.new_token()}").headers["set-cookie"]
    return {**HOST, "cookie": cookie.partition(";")[0]}


def test_address_signs_in_once_with_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    keys = Keys()
    token = keys.new_token()
    first = ask(keys, f"{OPEN}?token={token}")
    assert (first.status, first.headers["location"]) == (303, "/")
    attributes = {part.strip().lower() for part in first.headers["set-cookie"].split(";")[1:]}
    assert attributes == {"httponly", "samesite=strict", "path=/"}
    assert ask(keys, "/", signed_in(keys)).body == "the jobs"
    second = ask(keys, f"{OPEN}?token={token}")
    assert (second.status, "set-cookie" in second.headers) == (403, False)


def test_new_address_makes_unused_one_invalid() -> None:
    keys = Keys()
    old, new = keys.new_token(), keys.new_token()
    assert ask(keys, f"{OPEN}?token={old}").status == 403
    assert ask(keys, f"{OPEN}?token={new}").status == 303


@pytest.mark.parametrize("token", ["", "x", "\N{LATIN SMALL LETTER E WITH ACUTE}", "%00"])
def test_open_refuses_other_tokens(token: str) -> None:
    keys = Keys()
    assert ask(keys, f"{OPEN}?token={token}").status == 403
    keys.new_token()
    assert ask(keys, f"{OPEN}?token={token}").status == 403


def test_guard_refuses_cookies_of_earlier_starts() -> None:
    keys = Keys()
    earlier = signed_in(Keys())
    assert ask(keys, "/", earlier).status == 403
    value = earlier["cookie"].partition("=")[2]
    assert ask(keys, "/", {**HOST, "cookie": f"{keys.name}={value}"}).status == 403
    assert ask(keys, "/", {**HOST, "cookie": f"{keys.name}=; a=;;; {keys.name}"}).status == 403
    assert ask(keys, "/").status == 403


def test_guard_shows_files_of_the_program_before_sign_in() -> None:
    assert ask(Keys(), f"{STATIC}app.css").body == "the jobs"


def test_guard_refuses_other_users_even_with_cookie() -> None:
    keys = Keys()
    refused = ask(keys, "/", signed_in(keys), uid=os.geteuid() + 1)
    assert (refused.status, "the jobs" in refused.body) == (403, False)
    assert ask(keys, f"{OPEN}?token={keys.new_token()}", uid=os.geteuid() + 1).status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8470", "localhost.evil.example:8470", "", "10.0.0.1:80"]
)
def test_guard_refuses_names_that_another_site_lets_resolve_to_localhost(host: str) -> None:
    keys = Keys()
    assert ask(keys, "/", {**signed_in(keys), "host": host}).status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8470", "[::1]:8470"])
def test_guard_accepts_any_port_of_localhost(host: str) -> None:
    keys = Keys()
    assert ask(keys, "/", {**signed_in(keys), "host": host}).body == "the jobs"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8470", 200),
        ("http://localhost:9999", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_guard_accepts_changes_from_its_own_page_only(origin: str, status: int) -> None:
    keys = Keys()
    headers = signed_in(keys) | ({"origin": origin} if origin else {})
    assert ask(keys, "/act", headers, method="POST").status == status


def test_answers_restrict_scripts_frames_and_caches() -> None:
    for answer in (ask(Keys(), "/"), ask(keys := Keys(), "/", signed_in(keys))):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
