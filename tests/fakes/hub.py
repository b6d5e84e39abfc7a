"""A hub on loopback: TLS, tokens, and requests that are passed on to a fake daemon at a Unix socket."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fakes.certificates import certificate_for

TOKEN = "ffdl_abcdefghijkl_" + "s" * 43
NONCE = "a-nonce_" * 4
WHOAMI = {"uid": 7001, "account": "ada", "role": "token", "scopes": ["read", "write"], "expires_at": 1_900_000_000.0}
ADDRESS = "127.0.0.1"
_DROPPED = ("connection", "transfer-encoding", "content-length", "server", "date")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that does not accept the certificate."""
        if not isinstance(sys.exc_info()[1], ssl.SSLError):
            super().handle_error(request, client_address)


@dataclass
class FakeHub:
    """State and faults. `daemon` is the socket that requests are passed on to."""

    directory: Path
    daemon: Path
    valid: set[str] = field(default_factory=lambda: {TOKEN})
    whoami: dict[str, Any] = field(default_factory=lambda: dict(WHOAMI))
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Status and body of the answer, by the beginning of the path."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Method and path, with the headers."""
    logins: list[dict[str, str]] = field(default_factory=list)
    """The credentials of logins by munge, and the tokens of those by browser."""
    device_login: dict[str, Any] = field(default_factory=dict)
    """What the hub answers at the beginning of a login by browser; empty if it offers none."""
    pending: int = 1
    """How often a login by browser is not complete."""
    on_login: Callable[[], object] = lambda: None
    server: ThreadingHTTPServer | None = None

    def start(self) -> FakeHub:
        """Listen on a free port."""
        self.ca, key = certificate_for(ADDRESS, self.directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, key)
        self.server = _Server((ADDRESS, 0), _handler(self))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    @property
    def port(self) -> int:
        """The port."""
        assert self.server is not None
        return int(self.server.server_address[1])

    @property
    def url(self) -> str:
        """The address."""
        return f"https://{ADDRESS}:{self.port}"

    def stop(self) -> None:
        """Stop listening."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

        def dispatch(self) -> None:
            hub.requests.append((f"{self.command} {self.path}", {k.lower(): v for k, v in self.headers.items()}))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/api/site/v1/health":
                self.reply(b'{"device_logins": %b}' % (b"true" if hub.device_login else b"false"))
                return
            if self.path.startswith("/api/site/v1/device-logins"):
                self.answer_device_login(body)
                return
            if self.path.startswith("/api/site/v1/logins"):
                self.answer_login(body)
                return
            if self.headers.get("Authorization", "").removeprefix("Bearer ") not in hub.valid and "*" not in hub.valid:
                self.reply(b"", 401)
                return
            for prefix, (status, refusal) in hub.refusals.items():
                if self.path.startswith(prefix):
                    self.reply(refusal, status)
                    return
            if self.path == "/api/v1/whoami":
                self.reply(json.dumps(hub.whoami).encode())
            elif self.path.startswith("/api/v1/tokens"):
                self.answer_tokens(body)
            else:
                self.pass_on(body)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = dispatch  # noqa: N815

        def answer_login(self, body: bytes) -> None:
            if self.path.endswith("/logins"):
                self.reply(b'{"nonce": "%b", "hub_uid": 7000, "seconds": 60}' % NONCE.encode())
                return
            hub.logins.append(json.loads(body))
            hub.on_login()
            self.reply(b'{"token": {}}')

        def answer_device_login(self, body: bytes) -> None:
            if not hub.device_login:
                problem = {"code": "C101", "message": "this hub offers no login by OpenID Connect", "exit_code": 69}
                self.reply(json.dumps({"problem": problem}).encode(), 409)
            elif self.path.endswith("/device-logins"):
                hub.logins.append(json.loads(body))
                self.reply(json.dumps(hub.device_login).encode())
            elif hub.pending:
                hub.pending -= 1
                self.reply(b'{"interval_s": 0}', 202)
            else:
                hub.on_login()
                self.reply(b'{"account": "ada"}')

        def answer_tokens(self, body: bytes) -> None:
            if self.command == "POST":
                asked = json.loads(body)
                made = {"id": f"id{len(hub.tokens)}", "created_at": 1.0, "expires_at": 1.0 + asked.pop("lifetime_s")}
                made |= asked
                hub.tokens[made["id"]] = made
                self.reply(json.dumps({"token": made, "secret": TOKEN}).encode(), 201)
            elif self.command == "GET":
                self.reply(json.dumps({"tokens": list(hub.tokens.values())}).encode())
            elif hub.tokens.pop(self.path.rpartition("/")[2], None) is None:
                problem = {"code": "C101", "message": "there is no such token", "exit_code": 1}
                self.reply(json.dumps({"problem": problem}).encode(), 404)
            else:
                self.reply(b'{"token": {}, "hub_informed": false}')

        def pass_on(self, body: bytes) -> None:
            asked = HTTPConnection("daemon")
            asked.sock = socket.socket(socket.AF_UNIX)
            asked.sock.connect(str(hub.daemon))
            path = self.path[self.path.index("/api/") :] if self.path.startswith("/users/") else self.path
            asked.request(self.command, path, body or None)
            answer = asked.getresponse()
            self.reply(answer.read(), answer.status, [h for h in answer.getheaders() if h[0].lower() not in _DROPPED])
            asked.close()

        def reply(self, body: bytes, status: int = 200, headers: list[tuple[str, str]] | None = None) -> None:
            self.send_response(status)
            for name, value in headers or ():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
