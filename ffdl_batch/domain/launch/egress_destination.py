"""Checks the destinations of network level `egress`, for every backend. Pure."""

from __future__ import annotations

from ffdl_batch.domain.network_address import is_host, is_host_name

DESTINATIONS_MOST = 16
"""Maximum of one job; ``slurm-configs/libexec/ffdl_network/mark.py`` accepts no more."""


def why_no_destination(host: str, port: int) -> tuple[str, str]:
    """Return what is wrong with a destination, and what would be right; two empty texts if nothing is."""
    message = f"{host[:60]!r}, port {port}, cannot be a destination"
    if not 0 < port < 65536:
        return message, "write a port from 1 to 65535"
    if ":" in host:
        return f"{message}: networks of jobs have IPv4 alone", "name a host, or its IPv4 address"
    if not is_host_name(host):
        return message, "name a host (letters, digits, - and dots) or an IPv4 address"
    if not is_host(host):
        return f"{message}: it is not an IPv4 address", "write four numbers up to 255, as 192.0.2.7"
    return "", ""
