"""Logins by OpenID Connect: what the hub asks the provider, which ID token it accepts, and whose account that is."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey

from ffdl_batch.domain.access import new_token, rename_login, write_login
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub import daemons
from ffdl_batch.site.hub.app import Hub
from ffdl_batch.site.hub.settings import HubSettings, SettingsRefused
from ffdl_batch.site.hub.tokens import device_logins, oidc
from ffdl_batch.site.hub.tokens.device_logins import DeviceLogins, find_user
from ffdl_batch.site.hub.tokens.token_index import account_name
from tests.fakes.oidc_provider import CLIENT, KEY, OTHER_KEY, USER_CODE, OidcProvider
from tests.unit.hub.conftest import OWN, Reply, Site, answer
from tests.unit.hub.test_hub import audit, until

StartHub = Callable[..., Site]
ACCOUNTS = {"ada": 7001, "Ada": 7001, "root": 0, "kid": 500, "nobody": 65534, "mapped": 100005, "ffdl": 7000}
LOGIN = write_login(new_token(), "login on laptop").decode()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[OidcProvider]:
    """A provider whose user `ada` has confirmed."""
    started = OidcProvider(tmp_path / "provider", {"preferred_username": "ada"}).start()
    yield started
    started.stop()


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts of the hub's host. Names are found whatever their case, as by some name services."""

    def getpwnam(name: str) -> Any:
        if "\0" in name:
            raise ValueError("embedded null byte")
        return SimpleNamespace(pw_name=name.lower(), pw_uid=ACCOUNTS[name])

    monkeypatch.setattr("pwd.getpwnam", getpwnam)
    monkeypatch.setattr("os.geteuid", lambda: 7000)
    monkeypatch.setattr(device_logins, "is_subordinate", lambda uid: uid >= 100000)


@pytest.fixture
def ada(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user who runs the tests, who may be root, has the account `ada`, which the spawner admits."""
    monkeypatch.setattr(daemons, "ask_spawner", lambda *_: ("ok", ""))
    monkeypatch.setattr(device_logins, "find_user", lambda claims, *_: ({"ada": OWN}[claims["preferred_username"]], ""))


def begin(site: Site, login: str = LOGIN) -> dict[str, Any]:
    reply = site.ask("/api/site/v1/device-logins", "POST", token="", body=json.dumps({"login": login}))
    assert reply.status == 200, reply.body
    begun: dict[str, Any] = json.loads(reply.body)
    return begun


def poll(site: Site, begun: dict[str, Any]) -> Reply:
    return site.ask(f"/api/site/v1/device-logins/{begun['login']}", "POST", token="")


def start(start_hub: StartHub, provider: OidcProvider, **changes: Any) -> Site:
    return start_hub(**provider.settings() | changes)


def test_login_asks_provider_and_passes_token_to_daemon_of_named_user_once(
    start_hub: StartHub, provider: OidcProvider, ada: None
) -> None:
    site, seen = start(start_hub, provider), []

    def script(handler: Any) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        seen.append((handler.command, handler.path, json.loads(body), handler.headers["Authorization"]))
        answer(handler, b'{"account": "whom the daemon likes"}')

    site.serve_daemon(script)
    assert json.loads(site.ask("/api/site/v1/health", token="").body)["device_logins"] is True
    provider.confirmed = False
    begun = begin(site)
    assert begun["user_code"] == USER_CODE and begun["verification_uri"] == f"{provider.issuer}/activate"
    pending = poll(site, begun)
    assert (pending.status, json.loads(pending.body)["interval_s"], seen) == (202, 0, [])
    provider.confirmed = True
    completed = poll(site, begun)
    assert (completed.status, json.loads(completed.body)) == (200, {"schema": 1, "account": account_name(OWN)})
    assert seen == [("POST", "/api/v1/trusted-logins", {"login": LOGIN}, None)]
    asked = dict(provider.requests)
    assert asked["POST /device"] == {"client_id": CLIENT, "scope": "openid profile"}
    assert asked["POST /token"]["grant_type"] == "urn:ietf:params:oauth:grant-type:device_code"
    again = poll(site, begun)
    assert again.status == 401 and "completed before" in again.message and len(seen) == 1
    assert [(line["caller"], line["status"]) for line in audit(site)] == [(None, 200), (OWN, 200), (None, 401)]


def forged(claims: dict[str, Any], header: dict[str, Any], key: Any) -> str:
    return jwt.encode(header, claims, key, [header["alg"]])


def test_daemon_that_answers_as_a_pending_login_is_in_the_audit(start_hub: StartHub) -> None:
    site = start_hub()
    site.serve_daemon(lambda handler: answer(handler, status=202))
    assert site.ask("/api/v1/jobs", "POST", body="{}").status == 202
    (line,) = (site.place / "audit").read_text().splitlines()
    assert json.loads(line)["status"] == 202


def signed_by_hand(claims: dict[str, Any], alg: str, secret: bytes = b"") -> str:
    """Make a token that the library refuses to make."""
    parts = [json.dumps(part).encode() for part in ({"alg": alg, "kid": "one"}, claims)]
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(secret, text, "sha256")) if secret else b""
    return b".".join((text, signature.rstrip(b"="))).decode()


FORGERIES: dict[str, Callable[[dict[str, Any]], str]] = {
    "without signature": lambda claims: signed_by_hand(claims, "none"),
    "with the public key as a secret": lambda claims: signed_by_hand(claims, "HS256", KEY.as_pem(private=False)),
    "with the id of a key that the provider has not": lambda claims: forged(
        claims, {"alg": "RS256", "kid": "two"}, KEY
    ),
    "with another key of the same id": lambda claims: forged(
        claims, {"alg": "ES256", "kid": "one"}, ECKey.generate_key("P-256")
    ),
    "with another signature": lambda claims: f"{forged(claims, {'alg': 'RS256', 'kid': 'one'}, KEY)[:-8]}AAAAAAAA",
    "as no token at all": lambda _: "a.b.c",
    "as a long text": lambda _: "a" * 150_000,
}
CLAIMS: dict[str, dict[str, Any]] = {
    "for another client": {"aud": "other"},
    "for several clients": {"aud": [CLIENT, "other"]},
    "of several clients by another one": {"aud": [CLIENT, "other"], "azp": "other"},
    "of another issuer": {"iss": "https://other.example"},
    "that has expired": {"exp": int(time.time()) - 61},
    "without expiry": {"exp": None},
    "that never expires": {"exp": float("inf")},
    "of the future": {"iat": int(time.time()) + 3600},
    "not valid yet": {"nbf": int(time.time()) + 3600},
    "without subject": {"sub": None},
    "without audience": {"aud": None},
}


@pytest.mark.parametrize("case", [*FORGERIES, *CLAIMS])
def test_id_token_that_is_not_valid_logs_nobody_in(start_hub: StartHub, provider: OidcProvider, case: str) -> None:
    site = start(start_hub, provider)
    site.serve_daemon(lambda _: pytest.fail("reached"))
    provider.sign = FORGERIES.get(case)
    provider.claims |= CLAIMS.get(case, {})
    begun = begin(site)
    refused = poll(site, begun)
    assert refused.status == 401 and "the ID token is not valid" in refused.message, refused.body
    provider.sign, provider.claims = None, {"preferred_username": "ada"}
    assert poll(site, begun).status == 401  # the login has ended


def test_id_token_for_several_clients_counts_if_it_was_issued_to_the_hub(provider: OidcProvider) -> None:
    token = provider.id_token(aud=["other", CLIENT], azp=CLIENT)
    assert oidc.verify_id_token(token, provider.keys(), provider.issuer, CLIENT)["sub"] == "u-1"


def test_renewed_key_is_used_at_once_and_removed_key_no_longer(
    start_hub: StartHub, provider: OidcProvider, ada: None
) -> None:
    site = start(start_hub, provider)
    site.serve_daemon(lambda handler: answer(handler, b'{"token": {}}'))
    assert poll(site, begin(site)).status == 200
    provider.key, provider.published = OTHER_KEY, [KEY, OTHER_KEY]
    assert poll(site, begin(site)).status == 200
    provider.key, provider.published = KEY, [OTHER_KEY]
    refused = poll(site, begin(site))
    assert refused.status == 401 and "No key for kid" in refused.message


UNREADABLE_KEYS: list[Any] = [
    {"kty": "EC", "crv": "brainpoolP256r1", "kid": "two", "x": "AA", "y": "AA"},
    {"kty": "AKP", "alg": "ML-DSA-44", "kid": "two", "pub": "AA"},
    {"kty": ["RSA"], "kid": "two"},
    {"kty": "RSA", "kid": "one", "n": 1},
    "text",
]


@pytest.mark.parametrize("key", UNREADABLE_KEYS, ids=repr)
def test_key_that_cannot_be_read_prevents_no_login_with_another(provider: OidcProvider, key: Any) -> None:
    keys = provider.keys()["keys"]
    for of_provider in ([key, *keys], [*keys, key]):
        found = oidc.verify_id_token(provider.id_token(), {"keys": of_provider}, provider.issuer, CLIENT)
        assert found["sub"] == "u-1"


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize("alg", ["Ed25519", "EdDSA"])
def test_both_names_of_eddsa_signatures_are_accepted(provider: OidcProvider, alg: str) -> None:
    key = OKPKey.generate_key("Ed25519", {"kid": "three"})
    provider.published = [KEY, key]
    provider.sign = lambda claims: forged(claims, {"alg": alg, "kid": "three"}, key)
    assert oidc.verify_id_token(provider.id_token(), provider.keys(), provider.issuer, CLIENT)["sub"] == "u-1"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"preferred_username": None}, "has no claim preferred_username"),
        ({"preferred_username": ["ada"]}, "has no claim preferred_username"),
        ({"preferred_username": "eve"}, "'eve' has no account on the hub's host"),
        ({"preferred_username": "Ada"}, "'Ada' has no account on the hub's host"),
        ({"preferred_username": "ada\0"}, "has no account on the hub's host"),
        ({"preferred_username": "root"}, "'root' is not the account of a user"),
        ({"preferred_username": "kid"}, "'kid' is not the account of a user"),
        ({"preferred_username": "nobody"}, "'nobody' is not the account of a user"),
        ({"preferred_username": "mapped"}, "'mapped' is not the account of a user"),
        ({"preferred_username": "ffdl"}, "'ffdl' is not the account of a user"),
    ],
)
def test_claim_that_names_no_account_of_a_user_is_refused(accounts: None, claims: dict[str, Any], said: str) -> None:
    assert find_user({"preferred_username": "ada"}, HubSettings()) == (7001, "")
    with pytest.raises(Refused, match=re.escape(said)) as refused:
        find_user(claims, HubSettings())
    assert refused.value.status == 403


def test_claim_of_member_without_account_names_daemon_of_the_tenant(accounts: None) -> None:
    daemons = {"carol@example.org": 300000, "ada": 300000}.get
    assert find_user({"preferred_username": "carol@example.org"}, HubSettings(), daemons) == (
        300000,
        "carol@example.org",
    )
    assert find_user({"preferred_username": "ada"}, HubSettings(), daemons) == (300000, "ada")
    with pytest.raises(Refused, match="has no account on the hub's host"):
        find_user({"preferred_username": "dora@example.org"}, HubSettings(), daemons)


def test_login_of_member_without_account_gets_the_members_name() -> None:
    text = f"ffdl-token {'a' * 12} {'0' * 64} a laptop"
    assert rename_login(text, "carol@example.org") == f"ffdl-token {'a' * 12} {'0' * 64} carol@example.org"
    with pytest.raises(ValueError, match="it names no token"):
        rename_login("ffdl-token a b c", "carol@example.org")


def test_claim_email_counts_only_if_provider_has_verified_it(accounts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACCOUNTS, "ada@example.org", 7001)
    settings = HubSettings(oidc_claim="email")
    assert find_user({"email": "ada@example.org", "email_verified": True}, settings) == (7001, "")
    for verified in ({}, {"email_verified": False}, {"email_verified": "true"}):
        with pytest.raises(Refused, match="no claim email that the provider has verified"):
            find_user({"email": "ada@example.org", **verified}, settings)


def test_root_is_not_logged_in_by_provider(start_hub: StartHub, provider: OidcProvider) -> None:
    site = start(start_hub, provider, wrong_tokens_per_minute=1)
    site.serve_daemon(lambda _: pytest.fail("reached"))
    provider.claims = {"preferred_username": "root"}
    refused = poll(site, begun := begin(site))
    assert refused.status == 403 and "'root' is not the account of a user" in refused.message
    assert poll(site, begun).status == 429  # the address has used up its wrong logins


def test_account_that_has_been_locked_is_not_logged_in_although_its_daemon_runs(
    start_hub: StartHub, provider: OidcProvider, ada: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, answers = start(start_hub, provider), iter([("later", "it is busy"), ("refused", "the account is locked")])
    site.serve_daemon(lambda _: pytest.fail("reached"))
    monkeypatch.setattr(daemons, "ask_spawner", lambda *_: next(answers))
    refused = poll(site, begin(site))
    assert refused.status == 403 and "the account is locked" in refused.message
    assert [line["caller"] for line in audit(site)] == [None, OWN]


def test_login_waits_no_longer_for_spawner_than_for_daemon(
    start_hub: StartHub, provider: OidcProvider, ada: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start(start_hub, provider)
    monkeypatch.setattr(daemons, "START_S", 0.0)
    monkeypatch.setattr(daemons, "ask_spawner", lambda *_: ("later", "it is busy"))
    refused = poll(site, begin(site))
    assert refused.status == 503 and "cannot be checked: it is busy" in refused.message


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("device-logins", "{}", 422),
        ("device-logins", "x" * 40_000, 413),
        ("device-logins", json.dumps({"login": LOGIN}), 503),
        (f"device-logins/{'x' * 32}", "", 401),
        (f"logins/{'x' * 32}", "{}", 422),
    ],
)
def test_refusals_without_token_fill_neither_audit_nor_provider(
    start_hub: StartHub, provider: OidcProvider, path: str, body: str, status: int
) -> None:
    site = start(start_hub, provider, wrong_tokens_per_minute=2)
    provider.answers["/.well-known/openid-configuration"] = (500, b"")
    replies = [site.ask(f"/api/site/v1/{path}", "POST", token="", body=body).status for _ in range(4)]
    assert replies == [status, status, 429, 429] and len(audit(site)) == 2
    assert len(provider.requests) == (3 if status == 503 else 0)  # not for the fourth


def test_request_that_caller_without_token_abandons_is_not_in_audit(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, seen = start_hub(), list[int]()
    write = Hub._write_audit

    def write_audit(hub: Hub, scope: Any, entry: Any) -> None:
        write(hub, scope, entry)
        seen.append(entry.status)

    monkeypatch.setattr(Hub, "_write_audit", write_audit)
    with socket.create_connection(("127.0.0.1", site.port)) as caller:
        caller.sendall(b"POST /api/site/v1/device-logins HTTP/1.1\r\nHost: hub\r\nContent-Length: 9\r\n\r\n{")
    until(lambda: seen == [499])
    assert audit(site) == []


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"trust_hub_sessions": False}, "trust_hub_sessions"), ({"oidc_issuer": ""}, "oidc_issuer")],
)
def test_hub_that_daemons_do_not_trust_or_without_provider_offers_no_login(
    start_hub: StartHub, provider: OidcProvider, changes: dict[str, Any], missing: str
) -> None:
    changes |= {} if changes.get("oidc_issuer") is None else {"oidc_client_id": ""}
    site = start(start_hub, provider, **changes)
    assert json.loads(site.ask("/api/site/v1/health", token="").body)["device_logins"] is False
    for path in ("", f"/{'x' * 32}"):
        body = json.dumps({"login": LOGIN})
        refused = site.ask(f"/api/site/v1/device-logins{path}", "POST", token="", body=body)
        assert refused.status == 409 and f"{missing} is not set in the site file" in refused.message
    assert provider.requests == []


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"login": 1}', '{"login": "ffdl-token x"}', json.dumps({"login": f"{LOGIN}\n"}),
             json.dumps({"login": f"{LOGIN}é"}), "[" * 9000]
)  # fmt: skip
def test_login_with_invalid_body_asks_provider_nothing(start_hub: StartHub, provider: OidcProvider, body: str) -> None:
    site = start(start_hub, provider)
    assert site.ask("/api/site/v1/device-logins", "POST", token="", body=body.encode()).status == 422
    assert provider.requests == []


CONFIGURATION = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answers": {CONFIGURATION: (404, b"{}")}}, "status 404"),
        ({"answers": {CONFIGURATION: (200, b"[" * 200_000)}}, "does not describe itself"),
        ({"answers": {CONFIGURATION: (302, b"")}}, "status 302"),
        ({"answers": {CONFIGURATION: (200, b"{" + b" " * oidc.MOST_BYTES)}}, "larger than 256 KiB"),
        ({"configuration": {"issuer": "https://other.example"}}, "issuer 'https://other.example'"),
        ({"configuration": {"token_endpoint": "http://127.0.0.1/token"}}, "no usable token_endpoint"),
        ({"configuration": {"jwks_uri": None}}, "no usable jwks_uri"),
        ({"configuration": {"device_authorization_endpoint": "https://[x"}}, "that is malformed"),
        ({"configuration": {"device_authorization_endpoint": "https://x:99999"}}, "that is malformed"),
        ({"configuration": {"device_authorization_endpoint": None}}, "no usable device_authorization_endpoint"),
        ({"answers": {"/device": (400, b'{"error": "unauthorized_client"}')}}, "error 'unauthorized_client'"),
        ({"device": {"user_code": "\x1b[2J"}}, "no usable user_code"),
        ({"device": {"verification_uri": "javascript:alert(1)"}}, "no usable verification_uri"),
        ({"device": {"verification_uri_complete": "https://x/\n"}}, "no usable verification_uri_complete"),
        ({"device": {"expires_in": None}}, "no usable expires_in"),
        ({"device": {"interval": -1}}, "no usable interval"),
    ],
)
def test_provider_that_answers_otherwise_begins_no_login(
    start_hub: StartHub, provider: OidcProvider, changes: dict[str, Any], said: str
) -> None:
    site = start(start_hub, provider)
    for name, value in changes.items():
        setattr(provider, name, value)
    refused = site.ask("/api/site/v1/device-logins", "POST", token="", body=json.dumps({"login": LOGIN}))
    assert refused.status == 503 and said in refused.message, refused.body


@pytest.mark.parametrize(
    ("path", "reply", "said"),
    [
        ("/token", (500, b""), "does not answer as it should: status 500"),
        ("/token", (400, b"<html>"), "does not answer as it should: status 400"),
        ("/keys", (500, b""), "keys cannot be read"),
        ("/keys", (200, b" " * (oidc.MOST_BYTES + 1)), "larger than 256 KiB"),
    ],
)
def test_login_continues_after_provider_has_not_answered_as_it_should(
    start_hub: StartHub, provider: OidcProvider, ada: None, path: str, reply: tuple[int, bytes], said: str
) -> None:
    site = start(start_hub, provider)
    site.serve_daemon(lambda handler: answer(handler, b'{"token": {}}'))
    begun = begin(site)
    provider.answers[path] = reply
    refused = poll(site, begun)
    assert refused.status == 503 and said in refused.message, refused.body
    provider.answers.clear()
    expected = 401 if path == "/keys" else 200  # the provider gives out each ID token once
    assert poll(site, begun).status == expected


@pytest.mark.parametrize("keys", [b"{}", b'{"keys": 1}', b'{"keys": [1]}', b'{"keys": []}', b"not json"])
def test_keys_that_cannot_be_read_log_nobody_in(start_hub: StartHub, provider: OidcProvider, keys: bytes) -> None:
    site = start(start_hub, provider)
    provider.answers["/keys"] = (200, keys)
    refused = poll(site, begin(site))
    assert refused.status == 401 and "the ID token is not valid" in refused.message


@pytest.mark.parametrize(
    ("error", "said"),
    [("access_denied", "it was denied"), ("expired_token", "the code has expired"), ("\x1b[2J", r"error '\x1b[2J'")],
)
def test_login_that_provider_ends_has_ended(start_hub: StartHub, provider: OidcProvider, error: str, said: str) -> None:
    site = start(start_hub, provider)
    provider.confirmed, provider.error = False, error
    begun = begin(site)
    refused = poll(site, begun)
    assert refused.status == 401 and said in refused.message
    assert "completed before" in poll(site, begun).message


def test_provider_that_is_away_or_has_another_certificate_begins_no_login(provider: OidcProvider) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = f"https://127.0.0.1:{closed.getsockname()[1]}"
    for changes, said in (
        ({"oidc_ca": ""}, "certificate verify failed"),
        ({"oidc_issuer": away}, "Connect call failed"),
    ):
        with pytest.raises(oidc.ProviderFailed, match=said):
            asyncio.run(oidc.Provider(HubSettings(**provider.settings() | changes)).begin())
    assert provider.requests == []


def test_silent_provider_is_abandoned(provider: OidcProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "LONGEST_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        issuer = f"https://127.0.0.1:{silent.getsockname()[1]}"
        settings = HubSettings(**provider.settings() | {"oidc_issuer": issuer})
        with pytest.raises(oidc.ProviderFailed, match=r"does not answer: no answer within 0\.05 s"):
            asyncio.run(oidc.Provider(settings).begin())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_provider_is_polled_at_its_pace_and_login_expires(provider: OidcProvider) -> None:
    provider.confirmed, provider.device = False, {"interval": 7, "expires_in": 100_000 // 2}
    clock = Clock()
    logins = DeviceLogins(HubSettings(**provider.settings()), clock=clock)

    async def run() -> None:
        begun = await logins.begin("laptop", LOGIN)
        key = str(begun["login"])
        assert begun["seconds"] == device_logins.LONGEST_LOGIN_S

        def polls() -> int:
            return sum(path == "POST /token" for path, _ in provider.requests)

        assert (await logins.poll(key), polls()) == (7, 0)
        clock.now = 7.0
        provider.error = "slow_down"
        assert (await logins.poll(key), polls()) == (12, 1)
        clock.now = 18.0
        assert (await logins.poll(key), polls()) == (12, 1)
        clock.now = 19.0
        assert [*await asyncio.gather(logins.poll(key), logins.poll(key))] == [17, 12]
        assert polls() == 2
        clock.now = 900.0
        with pytest.raises(Refused, match="has expired"):
            await logins.poll(key)
        assert polls() == 2

    asyncio.run(run())


def test_logins_that_have_begun_are_limited(provider: OidcProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_logins, "MOST_OPEN", 3)
    monkeypatch.setattr(device_logins, "MOST_OPEN_OF_PEER", 2)
    clock = Clock()
    logins = DeviceLogins(HubSettings(**provider.settings()), clock=clock)

    async def run() -> None:
        for peer, is_refused in (("a", False), ("a", False), ("a", True), ("b", False), ("c", True)):
            if is_refused:
                with pytest.raises(Refused, match="too many logins"):
                    await logins.begin(peer, LOGIN)
            else:
                await logins.begin(peer, LOGIN)
        clock.now = 901.0
        provider.answers["/device"] = (500, b"")
        for _ in range(4):  # logins that have failed do not count
            with pytest.raises(Refused, match="cannot be used"):
                await logins.begin("a", LOGIN)

    asyncio.run(run())


def test_hub_names_missing_authority_and_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, Any] = {"oidc_issuer": "https://id.example.org", "oidc_client_id": "x", "trust_hub_sessions": True}
    with pytest.raises(SettingsRefused, match=r"oidc_ca: /nonexistent: No such file"):
        DeviceLogins(HubSettings(**named, oidc_ca="/nonexistent"))
    monkeypatch.setitem(sys.modules, "joserfc.jwt", None)
    with pytest.raises(SettingsRefused, match=r"pip install 'ffdl-batch\[oidc\]'"):
        DeviceLogins(HubSettings(**named))
