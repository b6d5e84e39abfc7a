"""An OpenID provider on loopback: TLS, discovery, device authorization (RFC 8628), keys, and ID tokens that joserfc
signs. It is a small one of the tests, because oidc-provider-mock has no device authorization."""

from __future__ import annotations

import json
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from tests.fakes.certificates import certificate_for

ADDRESS = "127.0.0.1"
CLIENT = "ffdl-hub"
USER_CODE = "WDJB-MJHT"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
"""Made once, because that takes long."""
OTHER_KEY = ECKey.generate_key("P-256", {"kid": "two"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that does not accept the certificate, or that breaks off."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@dataclass
class OidcProvider:
    """State and faults."""

    directory: Path
    claims: dict[str, Any] = field(default_factory=dict)
    """Of the user who confirms; beside the usual ones, or instead of them."""
    confirmed: bool = True
    error: str = "authorization_pending"
    """The answer of the token endpoint until a user has confirmed."""
    key: Any = field(default_factory=lambda: KEY)
    """Signs ID tokens."""
    published: list[Any] = field(default_factory=lambda: [KEY])
    """The keys that `jwks_uri` has."""
    sign: Callable[[dict[str, Any]], str] | None = None
    """Makes an ID token in another way."""
    configuration: dict[str, Any] = field(default_factory=dict)
    """Changes of the discovery document."""
    device: dict[str, Any] = field(default_factory=dict)
    """Changes of the answer that begins a login."""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Status and body of the answer, by path."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Method and path, with the fields of the form."""
    codes: set[str] = field(default_factory=set)

    def start(self) -> OidcProvider:
        """Listen on a free port."""
        self.directory.mkdir(exist_ok=True)
        self.ca, key = certificate_for(ADDRESS, self.directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, key)
        self.server = _Server((ADDRESS, 0), _handler(self))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening."""
        self.server.shutdown()
        self.server.server_close()

    @property
    def issuer(self) -> str:
        """The address."""
        return f"https://{ADDRESS}:{self.server.server_address[1]}"

    def settings(self) -> dict[str, Any]:
        """The settings of a hub that uses this provider."""
        return {
            "oidc_issuer": self.issuer,
            "oidc_client_id": CLIENT,
            "oidc_ca": str(self.ca),
            "trust_hub_sessions": True,
        }

    def id_token(self, **changes: Any) -> str:
        """An ID token for the user."""
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": CLIENT, "sub": "u-1", "iat": now, "exp": now + 300}
        claims = {key: value for key, value in {**usual, **self.claims, **changes}.items() if value is not None}
        if self.sign is not None:
            return self.sign(claims)
        alg = "RS256" if self.key.key_type == "RSA" else "ES256"
        return jwt.encode({"alg": alg, "kid": self.key.kid}, claims, self.key)

    def keys(self) -> dict[str, Any]:
        """What `jwks_uri` has."""
        return dict(KeySet(self.published).as_dict(private=False))

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, bytes]:
        """The answer to a request."""
        if path in self.answers:
            return self.answers[path]
        status, found = 200, dict[str, Any]()
        if path == "/.well-known/openid-configuration":
            names = {"device_authorization_endpoint": "device", "token_endpoint": "token", "jwks_uri": "keys"}
            found = {"issuer": self.issuer, **{key: f"{self.issuer}/{name}" for key, name in names.items()}}
            found |= self.configuration
        elif path == "/keys":
            found = self.keys()
        elif path == "/device" and form.get("client_id") == CLIENT:
            self.codes.add(code := secrets.token_hex(16))
            uri = f"{self.issuer}/activate"
            found = {"device_code": code, "user_code": USER_CODE, "verification_uri": uri, "expires_in": 600}
            found |= {"verification_uri_complete": f"{uri}?code={USER_CODE}", "interval": 0} | self.device
        elif path == "/token" and form.get("client_id") == CLIENT and form.get("device_code") in self.codes:
            if self.confirmed:
                self.codes.remove(form["device_code"])
                found = {"access_token": "secret", "token_type": "Bearer", "id_token": self.id_token()}
            else:
                status, found = 400, {"error": self.error}
        else:
            status, found = 400, {"error": "invalid_grant" if path == "/token" else "invalid_client"}
        return status, json.dumps({key: value for key, value in found.items() if value is not None}).encode()


def _handler(provider: OidcProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

        def dispatch(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            form = {key: values[0] for key, values in parse_qs(body).items()}
            provider.requests.append((f"{self.command} {self.path}", form))
            status, reply = provider.answer(self.path, form)
            self.send_response(status)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = dispatch  # noqa: N815

    return Handler
