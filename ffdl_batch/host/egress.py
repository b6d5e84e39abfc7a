"""Restricts the addresses that this process connects to for webhooks and data stores, because users choose them.

The users of a site's daemon may have no shell on its host. Without restrictions, an address in a manifest would reach
services that trust every process of the host (loopback), or all hosts of its network segment (link-local, such as the
metadata service of a cloud).

The check is an audit hook (PEP 578) on connect(2), so it holds for every library, and after names have been resolved.
Standard library only. Runs on Python 3.9.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Optional, Tuple, Union

VARIABLE = "FFDL_EGRESS_NETWORKS"
"""Passes the permitted networks to a staging program, separated by blanks. If it is not set, all are permitted."""
Networks = Tuple[str, ...]
"""Such as 192.0.2.0/24. () = all addresses except loopback, link-local, multicast and reserved ones."""
Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


class _Bounds(threading.local):
    """The permitted networks of a thread; None = all addresses."""

    networks: Optional[Networks] = None


_of_process: Optional[Networks] = None
_of_thread = _Bounds()
_installed = threading.Event()


def is_allowed(address: str, networks: Networks) -> bool:
    """Return whether `networks` permit an IP address. Anything else, such as a name, is not permitted."""
    try:
        ip: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if networks:
        return any(ip in ipaddress.ip_network(one) for one in networks)
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast or ip.is_reserved)


@contextmanager
def bounded(networks: Optional[Networks]) -> Iterator[None]:
    """Restrict the connections that this thread makes in the block. Others raise PermissionError."""
    _install(networks)
    before, _of_thread.networks = _of_thread.networks, networks
    try:
        yield
    finally:
        _of_thread.networks = before


def bound_process(variable: Optional[str]) -> None:
    """Restrict all connections of this process. `variable` is the value of VARIABLE."""
    global _of_process  # noqa: PLW0603 - an audit hook cannot be removed, so it reads what is in force
    _of_process = None if variable is None else tuple(variable.split())
    _install(_of_process)


def child_environment(networks: Optional[Networks]) -> "dict[str, str]":
    """Return the environment for a child process that calls :func:`bound_process`."""
    return dict(os.environ) if networks is None else {**os.environ, VARIABLE: " ".join(networks)}


def _install(networks: Optional[Networks]) -> None:
    if networks is not None and not _installed.is_set():
        _installed.set()
        sys.addaudithook(_check)


def _check(event: str, arguments: "tuple[object, ...]") -> None:
    if event != "socket.connect":
        return
    address = arguments[1]
    if not isinstance(address, tuple):  # a Unix socket
        return
    for networks in (_of_process, _of_thread.networks):
        if networks is not None and not is_allowed(str(address[0]), networks):
            why = f"the site does not permit connections to {address[0]} (egress in /etc/ffdl/site.toml)"
            raise PermissionError(errno.EACCES, why)


def first_invalid(networks: Sequence[str]) -> str:
    """Return the first text that is not a network; "" if all are."""
    for one in networks:
        try:
            ipaddress.ip_network(one)
        except ValueError:
            return one
    return ""
