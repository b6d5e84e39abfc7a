"""A hub that listens at a Unix socket and at a TCP port, with daemons and a spawner that a test scripts."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.daemon.quiet_server import QuietServer
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.ports.capabilities import HasAccounting, SharesListing
from ffdl_batch.site.hub.accepting import Shares
from ffdl_batch.site.hub.app import Hub
from ffdl_batch.site.hub.audit import Audit
from ffdl_batch.site.hub.main import make_servers
from ffdl_batch.site.hub.settings import HubSettings
from ffdl_batch.site.hub.store import HubStore, open_hub_store
from ffdl_batch.site.hub.tokens.token_index import TokenIndex
from ffdl_batch.store.database import connect

OWN = os.getuid()
ID = "abc123def456"
TOKEN = f"ffdl_{ID}_{'s' * 43}"


@dataclass
class Reply:
    """What a client receives."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def message(self) -> str:
        return str(json.loads(self.body)["problem"]["message"])


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, place: Path) -> None:
        super().__init__("hub", timeout=60)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(str(self._place))


class _Daemon(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Callable[[BaseHTTPRequestHandler], None]

    def address_string(self) -> str:
        return "hub"

    def log_message(self, *_: object) -> None:
        pass

    def _do(self) -> None:
        type(self).script(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._do
        raise AttributeError(name)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass


def answer(handler: BaseHTTPRequestHandler, body: bytes = b"{}", status: int = 200) -> None:
    """Answer with a body of known length."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@dataclass
class Site:
    """The running hub and what it needs."""

    place: Path
    settings: HubSettings
    store: HubStore
    port: int = 0
    end: Callable[[], object] = lambda: None
    """Ends the hub in order."""
    _servers: list[_Server] = field(default_factory=list)

    @property
    def tokens(self) -> TokenIndex:
        return self.store.tokens

    def serve_daemon(self, script: Callable[[Any], None], uid: int = OWN) -> None:
        """Let a daemon of this user run `script` for each request."""
        place = self.place / "users" / str(uid) / "daemon.sock"
        place.parent.mkdir(parents=True)
        server = _Server(str(place), type("Daemon", (_Daemon,), {"script": staticmethod(script)}))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self._servers.append(server)

    def remote(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self,
        path: str,
        method: str = "GET",
        *,
        local: bool = False,
        token: str = TOKEN,
        body: Any = None,
        **headers: str,
    ) -> Reply:
        """Send a request over TCP with a token, or over the hub's socket."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given |= {"Authorization": f"Bearer {token}"} if token else {}
        connection = UnixConnection(self.place / "hub.sock") if local else self.remote()
        try:
            connection.request(method, path, body, given)
            found = connection.getresponse()
            return Reply(found.status, found.read(), dict(found.getheaders()))
        finally:
            connection.close()

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


@contextmanager
def serving_hub(
    directory: Path,
    source: SharesListing | None = None,
    *,
    tls: bool = False,
    descriptors: int = 16384,
    accounting: HasAccounting | None = None,
    **changes: Any,
) -> Iterator[Site]:
    """A hub with these settings and one registered token of this user. Its port speaks TLS if `tls` is set. `source`
    lists the jobs of all users, and `accounting` what they used."""
    usual = {
        "run_dir": f"{directory}", "socket": f"{directory}/hub.sock", "audit_file": f"{directory}/audit",
        "database_url": f"sqlite:///{directory}/hub.db",
    }  # fmt: skip
    settings = HubSettings(**(usual | changes))
    database = connect(settings.database_url, False, SystemClock())
    names = {uid: name for name, uid in settings.tenants.items()}
    account = lambda uid: names.get(uid) or (f"user{uid}" if uid < 60000 else "")  # noqa: E731
    store = open_hub_store(database, account, accounting, settings.tenants)
    store.tokens.put(ID, OWN, time.time() + 1000)
    site = Site(directory, settings, store)
    loop, ready = asyncio.new_event_loop(), threading.Event()
    servers: list[QuietServer] = []

    async def serve() -> None:
        hub = Hub(settings, store, Audit(settings.audit_file), source)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.bind(settings.socket)
        remote = socket.create_server(("127.0.0.1", 0))
        site.port = remote.getsockname()[1]
        servers.extend(
            make_servers(hub, settings if tls else replace(settings, certificate="", key=""), Shares.of(descriptors))
        )
        for listening in (local, remote):
            listening.listen(64)
        ready.set()
        await asyncio.gather(*(one.serve(sockets=[s]) for one, s in zip(servers, (local, remote), strict=True)))

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)

    def end() -> None:
        for server in servers:
            loop.call_soon_threadsafe(server.end)

    site.end = end
    try:
        yield site
    finally:
        end()
        thread.join(60)
        assert not thread.is_alive()
        loop.close()
        site.close()
        database.close()


@pytest.fixture
def start_hub(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Start a hub with the given settings, and perhaps a source of all users' jobs."""
    with ExitStack() as stack:
        yield lambda *source, **changes: stack.enter_context(serving_hub(tmp_path, *source, **changes))
