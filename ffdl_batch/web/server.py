"""Listens on a Unix socket, or on a port of this machine's loopback, and serves the page until it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from ffdl_batch.config.daemon_location import PlaceRefused, SocketPlace, socket_place
from ffdl_batch.daemon.connections import Peer, PeerProtocol
from ffdl_batch.daemon.socket_file import make_directory
from ffdl_batch.host.users import read_loopback_uid

BACKLOG = 64
_NOBODY = -1


class PageProtocol(PeerProtocol):
    """HTTP for browsers, over a Unix socket or over TCP from this machine."""

    def identify(self, transport: asyncio.Transport) -> Peer:
        """Return the peer, as the kernel knows it."""
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            return super().identify(transport)
        uid = read_loopback_uid(connection)
        return Peer(0, _NOBODY if uid is None else uid, transport.abort)


def listen_unix(environ: dict[str, str]) -> tuple[socket.socket, Path]:
    """Return a socket beside that of a personal daemon, which only this user can open. Raises PlaceRefused."""
    beside = socket_place({name: value for name, value in environ.items() if name != "FFDL_SOCKET"})
    place = SocketPlace(beside.path.with_name(f"web-{beside.path.name}"), beside.named)
    make_directory(place)
    if _is_served(place.path):
        raise PlaceRefused(f"another ffdl web serves the page at {place.path}", "use that one, or end it first")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        place.path.unlink(missing_ok=True)
        listening.bind(os.fspath(place.path))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise PlaceRefused(f"the socket {place.path} cannot be created: {error.strerror or error}") from error
    finally:
        os.umask(previous)
    listening.setblocking(False)
    return listening, place.path


def listen_tcp(port: int) -> socket.socket:
    """Return a socket on 127.0.0.1; port 0 is a free one. Raises PlaceRefused."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise PlaceRefused(
            f"cannot listen on port {port}: {error.strerror or error}", "use --tcp 0 for a free port"
        ) from error
    listening.setblocking(False)
    return listening


def _is_served(path: Path) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True
