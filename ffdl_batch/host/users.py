"""Read who this user is, and who is at the other end of a Unix socket or of a TCP connection from this machine.

A container may run with a user id that is in no password database.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import sys
from typing import Any, Mapping, NamedTuple, Optional, Sequence

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


_TABLE_BYTES = 16 << 20
"""How much of a table is read: about 100,000 sockets."""
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
"""Columns of /proc/net/tcp (Linux, Documentation/networking/proc_net_tcp.rst)."""
_MAPPED = bytes(10) + b"\xff\xff"
"""Before an IPv4 address in an IPv6 one."""


def read_loopback_uid(connection: socket.socket, tables: str = "/proc/net") -> Optional[int]:
    """Return the user who opened the other end of a TCP connection over the loopback interface.

    Return None if that is not known: the other end is elsewhere or has been closed, or the kernel lists too many
    sockets. Callers must then refuse the connection. The kernel lists the sockets of this process's network namespace,
    and writes users as this process's user namespace has them.
    """
    try:
        peer, own = connection.getpeername(), connection.getsockname()
        ends = (_packed(peer[0]), peer[1]), (_packed(own[0]), own[1])
    except (OSError, IndexError, TypeError):  # closed, or no connection of TCP
        return None
    if not all(_is_loopback(address) for address, _ in ends):
        return None
    is_narrow = all(len(address) == 4 for address, _ in ends)
    for name in ("tcp", "tcp6") if is_narrow else ("tcp6",):  # a program may use IPv6 sockets for IPv4
        found = _find_owner(os.path.join(tables, name), [_in_table(*end, is_wide=name == "tcp6") for end in ends])
        if found is not None:
            return found
    return None


def _packed(address: str) -> bytes:
    """Return an address in 4 bytes if it is one of IPv4, also within IPv6, else in 16. Raises OSError."""
    if ":" not in address:
        return socket.inet_pton(socket.AF_INET, address)
    packed = socket.inet_pton(socket.AF_INET6, address)
    return packed[len(_MAPPED) :] if packed.startswith(_MAPPED) else packed


def _is_loopback(address: bytes) -> bool:
    return address[0] == 127 if len(address) == 4 else address == bytes(15) + b"\x01"


def _in_table(address: bytes, port: int, *, is_wide: bool) -> str:
    """Return an end of a connection as the kernel writes it: words of the address in the byte order of this machine."""
    whole = _MAPPED + address if is_wide and len(address) == 4 else address
    words = (whole[at : at + 4] for at in range(0, len(whole), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


def _find_owner(path: str, ends: Sequence[str]) -> Optional[int]:
    """Return the user of the socket with these ends. A socket that its process has closed may be listed for a while as
    root's, without an inode."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            left = _TABLE_BYTES
            while left > 0 and (line := file.readline(_TABLE_BYTES)):
                left -= len(line)
                fields = line.split()
                if len(fields) > _INODE and [fields[_LOCAL], fields[_REMOTE]] == ends:
                    return int(fields[_UID]) if fields[_INODE] != "0" else None
    except (OSError, ValueError):
        return None
    return None
