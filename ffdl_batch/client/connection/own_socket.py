"""Connect to the socket of a daemon on this machine."""

from __future__ import annotations

import os
import socket

from ffdl_batch.client.connection.http_client import DirectChannel
from ffdl_batch.client.connection.http_reply import Reply, send_request
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import SocketPlace
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.resource_exhaustion import explain_lack
from ffdl_batch.host.users import read_credentials

_CONNECT_S = 10.0
_LEAST_S = 0.02


def connect(place: SocketPlace) -> DirectChannel | None:
    """Connect to the socket; return None if no process listens. Raises :class:`DaemonUnreachable` if it belongs to
    another user."""
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise DaemonUnreachable(f"no socket can be created: {error.strerror}", explain_lack(error)) from error
    connection.settimeout(_CONNECT_S)
    try:
        connection.connect(os.fspath(place.path))
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        code = ExitCode.NOT_ALLOWED if isinstance(error, PermissionError) else ExitCode.TRY_AGAIN
        raise DaemonUnreachable(f"{place.path}: {error.strerror or error}", "", code) from error
    peer = read_credentials(connection).uid
    if not place.named and peer != os.getuid():
        connection.close()
        raise DaemonUnreachable(
            f"the process at {place.path} belongs to user {peer}, not to you; nothing was sent to it",
            "remove the socket, or name the right one with FFDL_SOCKET",
            ExitCode.NOT_ALLOWED,
        )
    return DirectChannel(connection)


def is_ready(connected: DirectChannel, left_s: float) -> bool:
    """Return whether the daemon answers on a connection. Close it if not.

    A daemon listens before it has loaded its code. It may end while it loads, for example for lack of memory.
    """
    connected.connection.settimeout(max(left_s, _LEAST_S))
    try:
        send_request(connected.connection, "GET", "/api/v1/whoami", {"Host": "ffdl"})
        Reply(connected.connection).read()
    except OSError:
        connected.close()
        return False
    return True
