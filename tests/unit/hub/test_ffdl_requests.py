"""What the hub does for clients of FfDL's API before their requests reach a daemon, and after."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.hub.conftest import TOKEN, Reply, Site, answer

StartHub = Callable[..., Site]
WRONG = "dummy"


def ask(site: Site, path: str, headers: dict[str, str]) -> Reply:
    given: dict[str, Any] = headers
    return site.ask(path, token="", **given)


def serve_headers(site: Site) -> list[Any]:
    """Let a daemon answer; the headers that it gets."""
    seen: list[Any] = []

    def note(request: Any) -> None:
        seen.append(request.headers)
        answer(request)

    site.serve_daemon(note)
    return seen


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"test-user:{password}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": basic(TOKEN)},
        {"Authorization": basic(TOKEN).replace("Basic", "basic ")},
        {"Authorization": f"Bearer {TOKEN}"},
        {"X-Watson-Authorization-Token": TOKEN},
        {"Authorization": basic(WRONG), "X-Watson-Authorization-Token": TOKEN},
    ],
)
def test_token_of_ffdl_client_reaches_daemon_as_bearer_token(start_hub: StartHub, headers: dict[str, str]) -> None:
    site = start_hub()
    seen = serve_headers(site)
    assert ask(site, "/v1/models?version=x", headers).status == 200
    assert seen[0].get_all("Authorization") == [f"Bearer {TOKEN}"]
    assert seen[0].get("X-Watson-Authorization-Token") is None


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/models", {}),
        ("/v1/models", {"Authorization": basic(WRONG)}),
        ("/v1/models", {"Authorization": "Basic !"}),
        ("/v1/models", {"Authorization": "Basic"}),
        (f"/v1/models?watson-token={TOKEN}", {}),
        ("/api/v1/jobs", {"Authorization": basic(TOKEN)}),
        ("/api/v1/jobs", {"X-Watson-Authorization-Token": TOKEN}),
    ],
)
def test_request_without_token_where_it_may_be_reaches_no_daemon(
    start_hub: StartHub, path: str, headers: dict[str, str]
) -> None:
    site, seen = start_hub(), list[Any]()
    site.serve_daemon(seen.append)
    reply = ask(site, path, headers)
    assert (reply.status, seen) == (401, [])
    body = json.loads(reply.body)
    assert body["code"] == 401 if path.startswith("/v1/") else body["problem"]["code"] == "C101"


@pytest.mark.parametrize(
    ("status", "location", "is_passed"),
    [
        (201, "/v1/models/training-0a1b2c3d4", True),
        (201, "https://example.com/", False),
        (201, "/v1/models/x/../../users", False),
        (302, "/v1/models/training-0a1b2c3d4", False),
    ],
)
def test_location_is_passed_on_for_new_model_only(
    start_hub: StartHub, status: int, location: str, is_passed: bool
) -> None:
    def create(request: Any) -> None:
        request.send_response(status)
        request.send_header("Location", location)
        request.send_header("Content-Length", "0")
        request.end_headers()

    site = start_hub()
    site.serve_daemon(create)
    reply = site.ask("/v1/models", "POST", body="x")
    assert (reply.status, reply.headers.get("location")) == (status, location if is_passed else None)


@pytest.mark.parametrize(("path", "protocol"), [("/v1/models/x/logs", "websocket"), ("/api/v1/jobs", None)])
def test_websocket_is_offered_to_daemon_below_path_of_ffdl_only(
    start_hub: StartHub, path: str, protocol: str | None
) -> None:
    site = start_hub()
    seen = serve_headers(site)
    asked = {"Connection": "Upgrade", "Upgrade": "websocket", "Authorization": f"Bearer {TOKEN}"}
    assert ask(site, path, asked).status == 200
    assert [headers.get("Upgrade") for headers in seen] == [protocol]
