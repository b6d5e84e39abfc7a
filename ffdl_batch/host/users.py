"""Read who this user is, and who is at the other end of a Unix socket.

A container may run with a user id that is in no password database.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import sys
from typing import Any, Mapping, NamedTuple, Optional

TENANT = "FFDL_TENANT"
"""Variable of the daemon of a tenant without an account: the tenant's name. The site's spawner sets it."""
_UCRED = struct.Struct("=iII")
"""struct ucred (unix(7)). uid and gid are unsigned, because directory services of sites use ids of 2^31 and above."""


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one that the password database does not have."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def home_of_caller(environ: Mapping[str, str]) -> str:
    """Return the home directory of the caller: HOME, else from the password database (cron sets no HOME for some
    shells). A relative HOME does not count. Raises FileNotFoundError, with a cure in its text, if neither has one."""
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        why = "is not an absolute path" if home else "is not set"
        raise FileNotFoundError(
            f"HOME {why}, and user {os.getuid()} is not in the password database; set HOME"
        ) from None


def base_directory(environ: Mapping[str, str], variable: str, below_home: str) -> str:
    """Return the directory that a variable of the XDG Base Directory Specification names, else `below_home`. According
    to the specification, a relative path does not count. Raises FileNotFoundError as :func:`home_of_caller`."""
    named = environ.get(variable, "")
    return named if os.path.isabs(named) else os.path.join(home_of_caller(environ), below_home)


class Credentials(NamedTuple):
    """The process at the other end, as it was when it connected or listened."""

    pid: int
    uid: int
    gid: int


def read_credentials(connection: Any) -> Credentials:
    """Return the peer of a connected Unix socket, or of an object with its `getsockopt`. Raises OSError."""
    return Credentials(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}


def read_loopback_uid(connection: Any) -> Optional[int]:
    """Return the user of the process at the other end of a TCP connection within this machine; None if the kernel
    lists none. proc(5): /proc/net/tcp has a line for each end of such a connection, with the uid of its socket."""

    def word(address: Any) -> str:
        raw = socket.inet_pton(connection.family, address[0])
        parts = [
            raw[at : at + 4][:: -1 if sys.byteorder == "little" else 1].hex().upper() for at in range(0, len(raw), 4)
        ]
        return f"{''.join(parts)}:{address[1]:04X}"

    wanted = [word(connection.getpeername()), word(connection.getsockname())]
    with open(_TABLES[connection.family], encoding="ascii") as table:
        for line in table:
            columns = line.split()
            if columns[1:3] == wanted:
                return int(columns[7])
    return None
