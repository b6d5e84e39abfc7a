"""Ask the site's OpenID provider who logs in: device authorization (RFC 8628), and the check of the ID token.

The hub itself gets the ID token from the provider. It accepts none from a caller, so a stolen one is of no use here.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from ffdl_batch import __version__
from ffdl_batch.domain.network_address import parse_url
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.site.hub.proxy import BLOCK, Answer
from ffdl_batch.site.hub.settings import HubSettings, SettingsRefused

LONGEST_S = 15.0
"""Maximum time for a whole request to the provider."""
MOST_BYTES = 256 * 1024
"""Maximum size of an answer."""
LEEWAY_S = 60
"""By how much the provider's clock may differ."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Signatures with a key pair. `none` and those with a shared secret are no proof of the provider. Most providers still
use the older name `EdDSA` (RFC 9864)."""
_URL = re.compile(r"https://[!-~]{1,2000}", re.ASCII)
_USER_CODE, _DEVICE_CODE = re.compile(r"[ -~]{1,100}", re.ASCII), re.compile(r"[ -~]{1,4000}", re.ASCII)
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL_S, _SLOWER_S = 5.0, 5.0
"""Pause between two polls if the provider names none, and by how much `slow_down` extends it (RFC 8628, section 3)."""


class ProviderFailed(Exception):
    """The provider does not answer now, or not as it should. The text says why."""


class LoginDenied(Exception):
    """The login has failed for good. The text says why."""


@dataclass(slots=True)
class DeviceLogin:
    """A login that the provider has begun."""

    device_code: str = field(repr=False)
    user_code: str
    verification_uri: str
    complete_uri: str
    """The same with the code in it; "" if the provider has none."""
    seconds: float
    """How long the codes are valid."""
    interval_s: float
    """Pause between two polls."""
    token_url: str
    keys_url: str


class Provider:
    """The provider that the site file names. Nothing is kept between logins, so renewed keys are used at once."""

    def __init__(self, settings: HubSettings) -> None:
        """Raises SettingsRefused if the library is missing, or the authority's file cannot be used."""
        self._settings = settings
        try:
            import joserfc.jwt  # noqa: F401 - here and not at the first login, which would delay other requests
        except ImportError as error:
            cure = "pip install 'ffdl-batch[oidc]'"
            raise SettingsRefused(f"[hub]: oidc_issuer needs the library joserfc ({error}): {cure}") from error
        try:
            self._tls = ssl.create_default_context(cafile=settings.oidc_ca or None)
        except OSError as error:  # ssl.SSLError is one
            raise SettingsRefused(f"[hub]: oidc_ca: {settings.oidc_ca}: {error.strerror or error}") from error
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2

    async def begin(self) -> DeviceLogin:
        """Begin a login. Raises ProviderFailed."""
        issuer = self._settings.oidc_issuer
        status, found = await self._ask(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if status != HTTPStatus.OK or found.get("issuer") != issuer:
            why = f"status {status}, issuer {quoted(str(found.get('issuer')))}"
            raise ProviderFailed(f"{issuer} does not describe itself as an OpenID provider with this issuer: {why}")
        token_url, keys_url = _text(found, "token_endpoint", _URL), _text(found, "jwks_uri", _URL)
        asked = {"client_id": self._settings.oidc_client_id, "scope": self._settings.oidc_scope}
        status, begun = await self._ask(_text(found, "device_authorization_endpoint", _URL), asked)
        if status != HTTPStatus.OK:
            raise ProviderFailed(f"the provider begins no login: {_error(status, begun)}")
        return DeviceLogin(
            _text(begun, "device_code", _DEVICE_CODE),
            _text(begun, "user_code", _USER_CODE),
            _text(begun, "verification_uri", _URL),
            _text(begun, "verification_uri_complete", _URL) if "verification_uri_complete" in begun else "",
            _seconds(begun, "expires_in", None),
            _seconds(begun, "interval", _INTERVAL_S),
            token_url,
            keys_url,
        )

    async def poll(self, login: DeviceLogin) -> Mapping[str, Any] | None:
        """Return the claims of the user who has confirmed the login; None if no user has yet. Raises ProviderFailed,
        LoginDenied."""
        client_id = self._settings.oidc_client_id
        asked = {"grant_type": _GRANT, "device_code": login.device_code, "client_id": client_id}
        status, found = await self._ask(login.token_url, asked)
        error = found.get("error")
        if status == HTTPStatus.OK:
            return await self._verify(found.get("id_token"), login.keys_url)
        if error in ("authorization_pending", "slow_down"):
            login.interval_s += _SLOWER_S if error == "slow_down" else 0
            return None
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or not isinstance(error, str):
            raise ProviderFailed(f"the provider does not answer as it should: {_error(status, found)}")
        known = {"access_denied": "it was denied", "expired_token": "the code has expired"}
        raise LoginDenied(known.get(error) or _error(status, found))

    async def _verify(self, id_token: object, keys_url: str) -> Mapping[str, Any]:
        if not isinstance(id_token, str):
            raise LoginDenied("the provider sent no ID token")
        status, keys = await self._ask(keys_url)
        if status != HTTPStatus.OK:
            raise ProviderFailed(f"the provider's keys cannot be read: status {status}")
        return verify_id_token(id_token, keys, self._settings.oidc_issuer, self._settings.oidc_client_id)

    async def _ask(self, url: str, form: Mapping[str, str] | None = None) -> tuple[int, Mapping[str, Any]]:
        """Send a request; return the status and the object of the answer. Redirects are not followed, and no proxy of
        the environment is used. Raises ProviderFailed."""
        parts = parse_url(url)
        if parts is None:
            raise ProviderFailed(f"the provider names an address that is malformed: {quoted(url)}")
        target = url[len(f"{parts.scheme}://{parts.authority}") :].partition("#")[0]
        body = b"" if form is None else urlencode(form).encode("ascii")
        lines = [
            f"{'GET' if form is None else 'POST'} {target or '/'} HTTP/1.1",
            f"Host: {parts.authority.rpartition('@')[2]}",
            f"User-Agent: ffdl-hub/{__version__}",
            "Accept: application/json",
            "Connection: close",
        ]
        if form is not None:
            lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}"]
        request = "\r\n".join([*lines, "", ""]).encode("ascii") + body
        try:
            async with asyncio.timeout(LONGEST_S):
                status, reply = await self._exchange(parts.host, parts.port or 443, request)
        except (OSError, ValueError) as error:  # TimeoutError and ssl.SSLError are OSError
            why = str(error) or f"no answer within {LONGEST_S:g} s"
            raise ProviderFailed(f"{parts.scheme}://{parts.authority} does not answer: {why}") from error
        try:
            found = json.loads(reply)
        except (ValueError, RecursionError):
            found = None
        return status, found if isinstance(found, dict) else {}

    async def _exchange(self, host: str, port: int, request: bytes) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            writer.write(request)
            answer, size = Answer(), 0
            while not answer.is_complete:
                data = await reader.read(BLOCK)
                size += len(data)
                if size > MOST_BYTES:
                    raise OSError(f"its answer is larger than {MOST_BYTES // 1024} KiB")
                if not data or answer.feed(data) is not None:
                    raise OSError("its answer broke off")
            return answer.status, b"".join(answer.pieces)
        finally:
            writer.transport.abort()


def verify_id_token(
    id_token: str, keys: Mapping[str, Any], issuer: str, client_id: str, now: int | None = None
) -> Mapping[str, Any]:
    """Return the claims of an ID token that a key of the provider has signed for this client (OpenID Connect Core,
    section 3.1.3.7). Raises LoginDenied."""
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    rules = jwt.JWTClaimsRegistry(
        now,
        LEEWAY_S,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )
    try:
        known = KeySet([key for one in keys["keys"] for key in _known_keys(one)])
        claims = jwt.decode(id_token, known, ALGORITHMS).claims
        rules.validate(claims)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LoginDenied(f"the ID token is not valid: {quoted(str(error))}") from error
    is_for_us_alone = claims["aud"] in (client_id, [client_id])
    if claims.get("azp", client_id if is_for_us_alone else None) != client_id:
        raise LoginDenied("the ID token is not valid: it is for another client")
    return claims


def _known_keys(key: Any) -> list[Any]:
    """Return a key of the provider's set; [] for one that the library cannot read, because others may have signed."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        return list(KeySet.import_key_set({"keys": [key]}).keys)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _text(found: Mapping[str, Any], key: str, form: re.Pattern[str]) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ProviderFailed(f"the provider's answer has no usable {key}")
    return value


def _seconds(found: Mapping[str, Any], key: str, usual: float | None) -> float:
    value = found.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 86400:
        raise ProviderFailed(f"the provider's answer has no usable {key}")
    return float(value)


def _error(status: int, found: Mapping[str, Any]) -> str:
    return f"status {status}, error {quoted(str(found.get('error')))}"
