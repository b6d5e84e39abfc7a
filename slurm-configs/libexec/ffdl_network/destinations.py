"""Looks up the addresses of a job's destinations, and checks whether the site allows them."""

from __future__ import annotations

import ipaddress
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Sequence

from . import values
from .commands import Trouble, run
from .egress import Targets
from .mark import Destination
from .settings import Settings

_ADDRESSES_MOST = 8
"""The maximum number of addresses of a name. Further ones are ignored."""
_LOOK_UP = """
import socket, sys
try:
    print(*dict.fromkeys(found[4][0] for found in socket.getaddrinfo(sys.argv[1], None, socket.AF_INET)))
except (socket.gaierror, UnicodeError) as error:
    print("no", error.args[-1])
"""
"""Prints the addresses of a name, or ``no`` and the resolver's reason (getaddrinfo(3))."""
_NEVER = (
    ("0.0.0.0/8", "not a host address"),
    ("127.0.0.0/8", "a loopback address"),
    ("169.254.0.0/16", "a link-local address"),
    ("224.0.0.0/4", "a multicast address"),
    ("240.0.0.0/4", "not a host address"),
)


def find(destinations: Sequence[Destination], settings: Settings) -> Targets:
    """Return addresses and ports. Raises Trouble if a name has no address, or an address must not be a destination."""
    allowed = values.networks_of(settings.egress_to)
    if not allowed:
        raise Trouble(
            "this site offers no network level egress: NETWORK_EGRESS_TO of values.env is empty; it takes the networks "
            "that jobs may name, e.g. 192.0.2.0/24,198.51.100.7/32"
        )
    hosts = list(dict.fromkeys(destination.host for destination in destinations))
    with ThreadPoolExecutor(len(hosts)) as pool:
        asked = {host: pool.submit(_look_up, host, settings) for host in hosts}
    found = {host: answer.result() for host, answer in asked.items()}
    for host, addresses in found.items():
        for address in addresses:
            wrong = _why_not(ipaddress.IPv4Address(address), allowed, settings)
            if wrong:
                named = host if host == address else f"{host} ({address})"
                # The controller matches these words: another node would give the same result.
                raise Trouble(f"{named} cannot be a destination: {wrong}")
    names = ((host, address) for host in hosts for address in found[host] if host != address)
    pairs = ((address, to.port) for to in destinations for address in found[to.host])
    return Targets(tuple(names), tuple(dict.fromkeys(pairs)))


def _look_up(host: str, settings: Settings) -> list[str]:
    """Look up a name in a child process, which can be killed if the servers of the resolver do not answer."""
    try:
        found = run([sys.executable, "-I", "-S", "-c", _LOOK_UP, host], settings.command_timeout_s).split()
    except Trouble as error:
        raise Trouble(f"the destination {host} cannot be looked up: {' '.join(str(error).split()[-80:])}") from error
    if not found or found[0] == "no":
        # The controller matches these words: another node would give the same result.
        why = f" ({' '.join(found[1:])})" if found[1:] else ""
        raise Trouble(f"no IPv4 address for the destination {host}{why}: correct batch.network.allow in the manifest")
    return found[:_ADDRESSES_MOST]


def _why_not(address: ipaddress.IPv4Address, allowed: Sequence[ipaddress.IPv4Network], settings: Settings) -> str:
    for text, wrong in _NEVER:
        if address in ipaddress.IPv4Network(text):
            return f"it is {wrong}"
    for name, prefix in (("NETWORK_PREFIX", settings.prefix), ("NETWORK_EGRESS_PREFIX", settings.egress_prefix)):
        if address in ipaddress.IPv4Network(f"{prefix}.0.0/16"):
            return f"jobs' own networks have such addresses ({name} of values.env)"
    if not any(address in network for network in allowed):
        return f"it is outside NETWORK_EGRESS_TO of values.env, {settings.egress_to}"
    return ""
