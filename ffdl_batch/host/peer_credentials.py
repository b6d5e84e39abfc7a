"""Reads from the kernel which process is at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

_UCRED = struct.Struct("=iII")
"""struct ucred (unix(7)). uid and gid are unsigned, because directory services of sites use ids of 2^31 and above."""


class Credentials(NamedTuple):
    """The process at the other end, as it was when it connected or listened."""

    pid: int
    uid: int
    gid: int


def read_credentials(connection: Any) -> Credentials:
    """Return the peer of a connected Unix socket, or of an object with its `getsockopt`. Raises OSError."""
    return Credentials(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))
