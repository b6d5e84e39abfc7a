"""`ffdl login` by OpenID Connect from end to end: the command, a hub and a provider with TLS, and the daemon's API."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.hub import Hub
from ffdl_batch.site.hub import daemons
from ffdl_batch.site.hub.tokens import device_logins
from tests.fakes.certificates import certificate_for
from tests.fakes.oidc_provider import USER_CODE, OidcProvider
from tests.unit.cli.programs import FFDL, run
from tests.unit.daemon.conftest import Desk, desk  # noqa: F401 - a fixture
from tests.unit.hub.conftest import OWN, Site, answer, serving_hub

HUB_UID = 7000
HEADERS = ("Authorization", "FfDL-Request", "FfDL-Role", "FfDL-Actor")


class Registry(Hub):
    """The hub as the daemon knows it: requests come from HUB_UID, and the user of the tests listens at its socket."""

    def _exchange(self, *arguments: Any) -> Any:
        return Hub(os.getuid(), self.socket)._exchange(*arguments)


@dataclass
class Place:
    """A laptop, and what it reaches."""

    hub: Site
    provider: OidcProvider
    daemon: Desk
    ca: Path
    home: Path

    @property
    def tokens(self) -> Path:
        return self.home / ".config/ffdl/tokens.toml"

    def ffdl(self, *words: str) -> Any:
        """Run a command on the laptop, which has no munge."""
        nothing = {name: str(self.home / "none") for name in ("FFDL_SITE_RUN", "FFDL_HUB_SOCKET")}
        unset = dict.fromkeys(("XDG_CONFIG_HOME", "FFDL_SOCKET", "FFDL_STATE_DIR"), "")
        return run(FFDL, *words, env={"HOME": str(self.home), "PATH": str(self.home), **nothing, **unset})

    def log_in(self) -> Any:
        return self.ffdl("login", f"https://127.0.0.1:{self.hub.port}", "--ca", str(self.ca))


@pytest.fixture
def place(
    desk: Desk,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    """A site that trusts its hub. The tests may run as root, which the hub refuses like every system account. So
    `find_user`, which the unit tests cover, is replaced and finds the user of the tests."""
    monkeypatch.setattr(device_logins, "find_user", lambda claims, *_: ({"ada": OWN}[claims["preferred_username"]], ""))
    monkeypatch.setattr(daemons, "ask_spawner", lambda *_: ("ok", ""))
    daemon = desk
    daemon.platform.settings = replace(daemon.platform.settings, trust_hub_sessions=True)
    clock: Any = daemon.platform.storage.clock
    clock.tick(time.time() - clock.now())

    def pass_on(handler: Any) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        headers = {name: handler.headers[name] for name in HEADERS if handler.headers[name]}
        replied = daemon.ask(handler.command, handler.path, body, uid=HUB_UID, headers=headers)
        answer(handler, replied.body, replied.status)

    provider = OidcProvider(tmp_path / "provider", {"preferred_username": "ada"}).start()
    ca, key = certificate_for("127.0.0.1", tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    with ExitStack() as stack:
        stack.callback(provider.stop)
        settings = provider.settings() | {"certificate": str(ca), "key": str(key)}
        hub = stack.enter_context(serving_hub(tmp_path, tls=True, **settings))
        hub.serve_daemon(pass_on)
        context: Any = daemon.context
        context.hub = Registry(HUB_UID, hub.settings.socket)
        yield Place(hub, provider, daemon, ca, home)


def test_login_by_browser_gives_ordinary_token_of_user_whom_provider_names(place: Place) -> None:
    done = place.log_in()
    assert (done.returncode, "logged in to https://127.0.0.1" in done.stdout) == (0, True), done.stderr
    assert f"open {place.provider.issuer}/activate?code={USER_CODE} in a browser" in done.stderr
    listed = place.ffdl("list")
    assert (listed.returncode, listed.stderr) == (0, ""), listed.stderr
    (token,) = place.daemon.ask("GET", "/api/v1/tokens").json["tokens"]
    assert token["name"].startswith("login on ") and token["scopes"] == ["read", "write"]
    assert place.daemon.ask("DELETE", f"/api/v1/tokens/{token['id']}").status == 200
    assert place.ffdl("list").returncode == 77
    audit = [json.loads(line) for line in (place.hub.place / "audit").read_text().splitlines()]
    assert any(line["caller"] == OWN and "/device-logins/" in line["what"] for line in audit)
    secrets = [place.tokens.read_text().split("'")[1].rpartition("_")[2]]
    kept = b"".join(path.read_bytes() for path in place.hub.place.glob("*") if path.is_file())
    assert not any(secret.encode() in kept for secret in (*secrets, "eyJ"))


def test_daemon_that_does_not_trust_hub_refuses_login_that_hub_offers(place: Place) -> None:
    place.daemon.platform.settings = replace(place.daemon.platform.settings, trust_hub_sessions=False)
    done = place.log_in()
    assert (done.returncode, place.tokens.exists()) == (77, False)
    assert (
        "the site permits no login that only the hub has checked: trust_hub_sessions is not set in the site file"
        in done.stderr
    )


def test_login_that_provider_denies_stores_nothing(place: Place) -> None:
    place.provider.confirmed, place.provider.error = False, "access_denied"
    done = place.log_in()
    assert (done.returncode, "the login has failed: it was denied" in done.stderr) == (77, True), done.stderr
    assert not place.tokens.exists() and place.daemon.ask("GET", "/api/v1/tokens").json["tokens"] == []
