"""Logins by munge: which credential the hub accepts, and what it passes on to the daemon."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from ffdl_batch.domain.access import login_payload
from ffdl_batch.host.munge import Decoded, MungeFailed
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub import daemons
from ffdl_batch.site.hub.tokens import logins
from ffdl_batch.site.hub.tokens.logins import fingerprint
from tests.fakes.certificates import certificate_for
from tests.unit.hub.conftest import OWN, Site, answer

StartHub = Callable[..., Site]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, str]:
    """A PEM file with a comment, a certificate, and another one; and the certificate's SHA-256."""
    file, _ = certificate_for("127.0.0.1", tmp_path)
    text = file.read_bytes()
    sha256 = x509.load_pem_x509_certificate(text).fingerprint(hashes.SHA256()).hex()
    file.write_bytes(b"# a comment\n" + text + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    return file, sha256


def begin(site: Site) -> str:
    reply = site.ask("/api/site/v1/logins", "POST", token="")
    begun = json.loads(reply.body)
    assert (reply.status, begun["hub_uid"], begun["seconds"]) == (200, os.geteuid(), 60)
    return str(begun["nonce"])


def finish(site: Site, nonce: str, to_hub: str = "MUNGE:H:", to_daemon: str = "MUNGE:D:") -> Any:
    body = json.dumps({"to_hub": to_hub, "to_daemon": to_daemon})
    return site.ask(f"/api/site/v1/logins/{nonce}", "POST", token="", body=body)


def begin_proven(site: Site, sha256: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Begin a login for which every credential is valid."""
    nonce = begin(site)
    proven = Decoded(OWN, os.geteuid(), 60, login_payload(nonce, sha256))
    monkeypatch.setattr(logins, "decode", lambda _: proven)
    return nonce


def test_fingerprint_is_that_of_the_first_certificate(certificate: tuple[Path, str]) -> None:
    assert fingerprint(certificate[0]) == certificate[1]


def test_login_passes_credential_to_daemon_of_proven_user_once(
    start_hub: StartHub, certificate: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, seen = start_hub(certificate=str(certificate[0]), key="/key"), []

    def script(handler: Any) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        seen.append((handler.command, handler.path, json.loads(body), handler.headers["Authorization"]))
        answer(handler, b'{"token": "t"}')

    site.serve_daemon(script)
    monkeypatch.setattr(daemons, "ask_spawner", lambda *_: ("ok", ""))
    nonce = begin_proven(site, certificate[1], monkeypatch)
    reply = finish(site, nonce)
    assert (reply.status, reply.body) == (200, b'{"token": "t"}')
    assert seen == [("POST", "/api/v1/logins", {"credential": "MUNGE:D:"}, None)]
    again = finish(site, nonce)
    assert again.status == 401 and "already completed" in again.message and len(seen) == 1
    lines = [json.loads(line) for line in (site.place / "audit").read_text().splitlines()]
    assert [(line["caller"], line["status"]) for line in lines] == [(None, 200), (OWN, 200), (None, 401)]
    assert "MUNGE" not in (site.place / "audit").read_text()


def test_locked_account_is_not_logged_in_although_its_daemon_runs(
    start_hub: StartHub, certificate: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start_hub(certificate=str(certificate[0]), key="/key")
    site.serve_daemon(lambda _: pytest.fail("reached"))
    monkeypatch.setattr(daemons, "ask_spawner", lambda *_: ("refused", "the account is locked"))
    refused = finish(site, begin_proven(site, certificate[1], monkeypatch))
    assert refused.status == 403 and "the account is locked" in refused.message


@pytest.mark.parametrize("change", ["reader", "anybody", "ttl", "nonce", "certificate", "invalid"])
def test_credential_for_anything_else_reaches_no_daemon(
    start_hub: StartHub, certificate: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    site = start_hub(certificate=str(certificate[0]), key="/key", wrong_tokens_per_minute=1)
    site.serve_daemon(lambda _: pytest.fail("reached"))
    nonce = begin(site)
    reader = {"reader": 1, "anybody": None}.get(change, os.geteuid())
    payload = login_payload(
        "x" * 32 if change == "nonce" else nonce, "0" * 64 if change == "certificate" else certificate[1]
    )

    def decode(_: str) -> Decoded:
        if change == "invalid":
            raise MungeFailed("Expired credential")
        return Decoded(OWN, reader, 300 if change == "ttl" else 60, payload)

    monkeypatch.setattr(logins, "decode", decode)
    reply = finish(site, nonce)
    assert reply.status == 401
    assert ("Expired" if change == "invalid" else "for another login, hub or certificate") in reply.message
    assert finish(site, nonce).status == 429  # the address has used up its wrong credentials
    monkeypatch.setattr(logins, "decode", lambda _: pytest.fail("decoded"))
    assert [site.ask(f"/api/site/v1/{path}", "POST", token="").status for path in ("logins", f"logins/{nonce}")] == [
        429
    ] * 2


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"to_hub": 1, "to_daemon": "x"}', "[" * 9000])
def test_login_with_invalid_body_keeps_its_nonce(start_hub: StartHub, certificate: tuple[Path, str], body: str) -> None:
    site = start_hub(certificate=str(certificate[0]), key="/key")
    nonce = begin(site)
    assert site.ask(f"/api/site/v1/logins/{nonce}", "POST", token="", body=body).status == 422
    assert finish(site, nonce).message.startswith("the munge credential is not valid")


def test_hub_without_certificate_and_with_many_open_logins_begins_none(
    start_hub: StartHub, certificate: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start_hub()
    reply = site.ask("/api/site/v1/logins", "POST", token="")
    assert reply.status == 409 and "no certificate" in reply.message
    monkeypatch.setattr(logins, "MOST_OPEN", 3)
    monkeypatch.setattr(logins, "MOST_OPEN_OF_PEER", 2)
    now = [0.0]
    opened = logins.Logins(str(certificate[0]), clock=lambda: now[0])
    nonces = [str(opened.begin("login2")["nonce"]) for _ in range(2)]
    with pytest.raises(Refused, match="too many logins"):
        opened.begin("login2")
    opened.begin("login3")
    with pytest.raises(Refused, match="too many logins"):
        opened.begin("login4")
    now[0] = 61.0
    with pytest.raises(Refused, match="has expired"):
        opened.take(nonces[0])
    opened.begin("login2")
