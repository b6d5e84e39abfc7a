"""Finds the addresses of a job's nodes with this node's resolver, Slurm and routes."""

from __future__ import annotations

import re
import socket
from typing import Sequence

from .commands import Trouble, run
from .layout import MTU_LEAST_BYTES, Job, Underlay
from .settings import Settings

_IP_MTU = 14  # <linux/in.h>: getsockopt of a connected socket; Python has no name for it
_NODE_ADDRESS = re.compile(r"NodeName=(\S+) .*?NodeAddr=(\S+)")


def find(job: Job, settings: Settings, overhead_bytes: int) -> Underlay:
    """Return the addresses of all nodes, and the largest MTU of packets to all of them.

    Raises Trouble if an address is wrong, or if the MTU is too small for the job's network, which needs
    `overhead_bytes` of each packet.
    """
    if len(job.nodes) == 1:
        return Underlay(("",), 0)
    addresses = _resolve(job.nodes, settings)
    own = addresses[job.rank]
    if own.startswith("127."):  # Debian gives a host's own name such an address
        own = _source_to(addresses[0 if job.rank else 1])
        addresses = [*addresses[: job.rank], own, *addresses[job.rank + 1 :]]
    for rank, address in enumerate(addresses):
        name = job.nodes[rank]
        if address.startswith("127.") or addresses.count(address) > 1:
            raise Trouble(
                f"node {name} has the address {address}, a loopback address or the address of another node: correct "
                "the resolver (/etc/hosts)"
            )
    mtu = min(_mtu_to(own, address, settings) for address in addresses if address != own)
    if mtu - overhead_bytes < MTU_LEAST_BYTES:
        raise Trouble(f"the network between the nodes has an MTU of {mtu}, too small for one network in another")
    return Underlay(tuple(addresses), mtu)


def _resolve(names: Sequence[str], settings: Settings) -> list[str]:
    found = {name: _look_up(name) for name in names}
    unknown = [name for name, address in found.items() if not address]
    if unknown:
        shown = run(["scontrol", "-o", "show", "node", ",".join(unknown)], settings.command_timeout_s)
        found.update((name, _look_up(address)) for name, address in _NODE_ADDRESS.findall(shown) if name in unknown)
    for name in names:
        if not found[name]:
            raise Trouble(
                f"no IPv4 address for node {name}: neither the resolver (/etc/hosts, DNS) nor NodeAddr has one"
            )
    return [found[name] for name in names]


def _look_up(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
    except OSError:
        return ""


def _source_to(address: str) -> str:
    """Return the address that this node sends from. Sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def _mtu_to(own: str, address: str, settings: Settings) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((own, 0))
        except OSError as error:
            raise Trouble(
                f"the name of this node has the address {own}, which the node does not have: correct the resolver "
                "(/etc/hosts)"
            ) from error
        try:
            probe.connect((address, settings.udp_port))
        except OSError as error:
            raise Trouble(f"no way from {own} to {address}, the address of another node: {error.strerror}") from error
        return probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
