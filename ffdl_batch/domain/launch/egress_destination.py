"""Checks the destinations of network level `egress`, for every backend. Pure."""

from __future__ import annotations

import ipaddress
import re

DESTINATIONS_MOST = 16
"""Maximum of one job; ``slurm-configs/libexec/ffdl_network/mark.py`` accepts no more."""
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)


def why_no_destination(host: str, port: int) -> tuple[str, str]:
    """Return what is wrong with a destination, and what would be right; two empty texts if nothing is."""
    message = f"{host[:60]!r}, port {port}, cannot be a destination"
    if not 0 < port < 65536:
        return message, "write a port from 1 to 65535"
    if ":" in host:
        return f"{message}: networks of jobs have IPv4 alone", "name a host, or its IPv4 address"
    if not _NAME.fullmatch(host):
        return message, "name a host (letters, digits, - and dots) or an IPv4 address"
    if not is_host(host):
        return f"{message}: it is not an IPv4 address", "write four numbers up to 255, as 192.0.2.7"
    return "", ""


def is_host(host: str) -> bool:
    """Return whether this may be the name of a host, or is an IP address.

    Resolvers take a name that ends in a number for an IPv4 address.
    """
    is_number = bool(_NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]))
    if is_number or ":" in host:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True
    return bool(_NAME.fullmatch(host))
