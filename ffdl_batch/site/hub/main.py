"""The command ``ffdl-hub``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import ssl
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ffdl_batch import __version__
from ffdl_batch.daemon.connections import Peer, PeerProtocol
from ffdl_batch.daemon.log_file import log_to
from ffdl_batch.daemon.quiet_server import QuietServer, uvicorn_config
from ffdl_batch.daemon.socket_file import report_readiness
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.core_dumps import hide_memory
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.ports.capabilities import HasAccounting
from ffdl_batch.site.hub.accepting import HubLimits, HubServer, Shares
from ffdl_batch.site.hub.app import Hub
from ffdl_batch.site.hub.audit import Audit
from ffdl_batch.site.hub.backup import BackupRefused, back_up
from ffdl_batch.site.hub.callers import TrustedProxies
from ffdl_batch.site.hub.listing import open_source
from ffdl_batch.site.hub.settings import SITE_FILE, HubSettings, SettingsRefused, load
from ffdl_batch.site.hub.store import open_hub_store
from ffdl_batch.store import StoreError
from ffdl_batch.store.database import connect

BACKLOG = 512
CORS_METHODS = ("GET", "POST", "PATCH", "DELETE")
CORS_HEADERS = ("Authorization", "Content-Type", "X-Watson-Authorization-Token", "X-Watson-Userinfo")
FIRST_PASSED = 3
"""Descriptor of the first socket that systemd passes."""

Address = str | tuple[str, int]
"""The path of a Unix socket, or host and port."""


class RemoteProtocol(PeerProtocol):
    """HTTP over TCP, where the kernel knows only the peer's address."""

    def identify(self, transport: asyncio.Transport) -> Peer:
        """Return the peer by its address."""
        return Peer(0, -1, transport.abort, address=str(transport.get_extra_info("peername")[0]))

    def eof_received(self) -> bool:  # type: ignore[override]  # as in the base class
        """Close the connection: TLS has no half-closed connections."""
        return False


def make_servers(hub: Hub, settings: HubSettings, shares: Shares) -> tuple[HubServer, HubServer]:
    """Return the servers of the Unix socket and of the TCP port."""
    proxies = TrustedProxies(settings.trusted_proxies)

    class Local(PeerProtocol):
        limits = HubLimits(shares.local, proxies)

    class Remote(RemoteProtocol):
        limits = HubLimits(shares.remote, proxies)

    tls: dict[str, Any] = (
        {"ssl_certfile": settings.certificate, "ssl_keyfile": settings.key} if settings.certificate else {}
    )
    local = HubServer(uvicorn_config(hub, Local), shares.opening, TrustedProxies(()))
    return local, HubServer(uvicorn_config(_with_cors(hub, settings), Remote, **tls), shares.opening, proxies)


def _with_cors(hub: Hub, settings: HubSettings) -> ASGIApp:
    """Return the application, for web pages of other origins if the site allows any."""
    if not settings.cors_origins:
        return hub
    return CORSMiddleware(
        hub, allow_origins=settings.cors_origins, allow_methods=CORS_METHODS, allow_headers=CORS_HEADERS
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="ffdl-hub", description="Connect users of other hosts to their daemons on this host."
    )
    parser.add_argument("--version", action="version", version=f"ffdl-hub {__version__}")
    parser.add_argument("--site-file", metavar="FILE", type=Path, default=SITE_FILE, help=f"default: {SITE_FILE}")
    parser.add_argument("--check", action="store_true", help="check that this account sees all jobs, and exit")
    parser.add_argument("--backup", metavar="FILE", type=Path, help="copy the SQLite database to FILE, and exit")
    options = parser.parse_args(arguments)
    os.umask(0o077)
    hide_memory()
    log_to(None)
    try:
        if os.geteuid() == 0:
            return _end("the hub must not run as root: run it under its own account", ExitCode.NOT_ALLOWED)
        settings = load(options.site_file)
        log_to(None, log_json=settings.log_json)
        if options.check:
            return _check(settings)
        if settings.certificate:
            _read_certificate(settings, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        if options.backup:
            back_up(settings.database_url, options.backup.absolute())
            return ExitCode.OK
        database = connect(settings.database_url, None, SystemClock())
        try:
            source = open_source() if settings.listing_interval_s else None
            accounting = source if isinstance(source, HasAccounting) else None
            store = open_hub_store(database, settings.account_of, accounting, settings.tenants)
            hub = Hub(settings, store, Audit(settings.audit_file), source)
            with asyncio.Runner() as runner:
                runner.run(_serve(hub, settings))
        finally:
            database.close()
    except BackupRefused as error:
        return _end(str(error), ExitCode.FAILED)
    except SettingsRefused as error:
        return _end(str(error), ExitCode.BAD_MANIFEST)
    except StoreError as error:
        return _end(str(error), ExitCode.UNAVAILABLE)
    except OSError as error:
        return _end(f"{error.filename or 'a socket'}: {error.strerror or error}", ExitCode.TRY_AGAIN)
    return ExitCode.OK


def _check(settings: HubSettings) -> int:
    """Print whether this account can list the jobs of all users; return the exit status."""
    if not settings.listing_interval_s:
        return _end("listing_interval_s is 0, so daemons ask the scheduler themselves", ExitCode.OK)
    try:
        source = open_source()
        if source is None:
            return _end("the backend slurm is not installed", ExitCode.UNAVAILABLE)
        if blind := source.explain_blindness():
            return _end(blind, ExitCode.FAILED)
        count = sum(map(len, source.list_all_users().values()))
    except (InvalidRequest, SchedulerUnreachable) as error:
        return _end(str(error), ExitCode.FAILED)
    return _end(f"this account sees the jobs of all users, {count} now", ExitCode.OK)


async def _serve(hub: Hub, settings: HubSettings) -> None:
    asyncio.get_running_loop().set_exception_handler(PeerProtocol.limits.on_exception)
    local, remote = make_servers(hub, settings, Shares.of_process())
    servers = [local, remote] if settings.listen else [local]
    _on_signals(servers, settings)  # before a client can connect
    passed = passed_sockets(os.environ)
    refuse_others(passed, settings)
    sockets = [passed.get(settings.socket) or _bind_socket(Path(settings.socket))]
    if settings.listen:
        address = settings.listen_address
        sockets.append(passed.get(address) or _bind_address(*address))
    for listening in sockets:
        if listening.family != socket.AF_UNIX:
            # Accepted connections inherit it. asyncio sets it only for sockets that were created with IPPROTO_TCP.
            # Without it, the second part of each answer waits 40 ms for an acknowledgement.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.listen(BACKLOG)  # also a passed one: SO_PEERCRED then shows its clients the hub's account
    report_readiness(os.environ)
    background = asyncio.create_task(hub.work())
    try:
        await asyncio.gather(
            *(server.serve(sockets=[listening]) for server, listening in zip(servers, sockets, strict=True))
        )
    finally:
        background.cancel()
        if settings.socket not in passed:
            Path(settings.socket).unlink(missing_ok=True)


def passed_sockets(environ: Mapping[str, str]) -> dict[Address, socket.socket]:
    """Return the listening sockets that systemd has passed, by path or address; see sd_listen_fds(3).

    They stay open while the hub restarts, so no connection is refused then.
    """
    passed: dict[Address, socket.socket] = {}
    count = int(environ["LISTEN_FDS"]) if environ.get("LISTEN_PID") == str(os.getpid()) else 0
    for number in range(FIRST_PASSED, FIRST_PASSED + count):
        listening = socket.socket(fileno=number)
        listening.set_inheritable(False)
        name = listening.getsockname()
        passed[name if listening.family == socket.AF_UNIX else name[:2]] = listening
    return passed


def refuse_others(passed: Collection[Address], settings: HubSettings) -> None:
    """Raise SettingsRefused for an address that is not in the site file."""
    own = {settings.socket, settings.listen_address} if settings.listen else {settings.socket}
    for name in set(passed) - own:
        place = name if isinstance(name, str) else f"{name[0]}:{name[1]}"
        raise SettingsRefused(f"ffdl-hub.socket listens at {place}, which is neither `socket` nor `listen` of [hub]")


def _on_signals(servers: Sequence[QuietServer], settings: HubSettings) -> None:
    def end() -> None:
        for server in servers:
            server.end()

    def read_certificate() -> None:
        """Use a renewed certificate for new connections; keep the old one if the new one cannot be read."""
        for server in servers:
            if isinstance(context := server.config.ssl, ssl.SSLContext):
                try:
                    _read_certificate(settings, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
                    _read_certificate(settings, context)
                except SettingsRefused as error:
                    _say(f"the certificate was not renewed: {error}")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, read_certificate)


def _read_certificate(settings: HubSettings, context: ssl.SSLContext) -> None:
    """Load the certificate and its key. Raises SettingsRefused."""
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:  # ssl.SSLError is one
        what = f"certificate {settings.certificate} with key {settings.key}"
        raise SettingsRefused(f"{what} cannot be used: {error.strerror or error}") from error


def _bind_socket(place: Path) -> socket.socket:
    """Bind a socket at a path, to which every user of this host may connect."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if listening.connect_ex(str(place)) == 0:
        raise OSError(0, "another hub is listening", str(place))
    place.unlink(missing_ok=True)
    listening.bind(str(place))
    place.chmod(0o666)
    return listening


def _bind_address(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _end(sentence: str, code: ExitCode) -> int:
    _say(sentence)
    return int(code)


def _say(sentence: str) -> None:
    print(f"ffdl-hub: {sentence}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
