"""Writes the input of ip, bridge and nft that connects the nodes of a job by VXLAN. Pure.

Each node has one MAC address. Nodes send no discovery packets: each node knows the addresses of the others (a route and
a permanent neighbour) and their locations (a static entry of the forwarding table). There is no entry for broadcast or
for unknown addresses, so such frames are dropped.
"""

from __future__ import annotations

from typing import Sequence

from . import layout
from .layout import DEVICE, Job, Underlay
from .settings import Settings

# IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14 bytes (RFC 7348).
OVERHEAD_BYTES = 50


def vni(job: Job) -> int:
    """Return the number of the job's network.

    Job ids have more than 24 bits. If two jobs with the same number are on a node, the kernel refuses the second.
    """
    return job.job_id % (2**24 - 1) + 1


def mac(job: Job, rank: int) -> str:
    """Return the MAC address of a node: locally administered, with the numbers of the network and the node."""
    number = vni(job) << 16 | rank
    return "02:" + ":".join(f"{number >> shift & 255:02x}" for shift in (32, 24, 16, 8, 0))


def guard_rules(job: Job, settings: Settings, underlay: Underlay) -> str:
    """Return the input of nft that accepts packets of this job's network only from its nodes and from ports of root.

    VXLAN has no authentication. Without these rules, any user of any machine could send frames into the job.
    """
    ours = f"udp dport {settings.udp_port} @th,96,24 {vni(job):#x}"
    first, last = settings.source_ports
    rules = [f"meta nfproto ipv6 {ours} drop", f"{ours} udp sport != {first}-{last} drop"]
    return layout.guard_table(job, underlay, [*rules, f"{ours} ip saddr != @peers drop"])


def device_argv(job: Job, settings: Settings, underlay: Underlay, namespace: str) -> Sequence[str]:
    """Return the command that makes the device in the job's namespace. Outer packets stay in the caller's namespace."""
    first, last = settings.source_ports
    mtu = underlay.inner_mtu(OVERHEAD_BYTES)
    argv = ["ip", "link", "add", DEVICE, "netns", namespace, "address", mac(job, job.rank), "mtu", str(mtu)]
    argv += ["type", "vxlan", "id", str(vni(job)), "dstport", str(settings.udp_port)]
    argv += ["srcport", str(first), str(last + 1)]
    if len(job.nodes) == 1:
        return [*argv, "nolearning"]
    # With "learning", the device drops packets that have the MAC address of a permanent entry but come from another
    # node. It has space only for these entries, and inner_rules drops packets with any other MAC address.
    return [*argv, "learning", "maxaddress", str(len(job.nodes) - 1), "local", underlay.addresses[job.rank]]


def inner_rules(job: Job, _settings: Settings, more_chains: str = "") -> str:
    """Return the input of nft in the job's namespace, which accepts only frames of peers."""
    peers = layout.elements_of([mac(job, rank) for rank in job.peers])
    rule = f'iifname "{DEVICE}" ether saddr != @peers drop'
    return layout.inner_table(f"type ether_addr\n        {peers}", rule, more_chains)


def address_lines(job: Job, settings: Settings) -> str:
    """Return the input of ``ip -batch``: own addresses, and one route and one neighbour for each other node."""
    lines = ["link set lo up", f"link set {DEVICE} arp off", f"link set {DEVICE} up"]
    lines += layout.own_address_lines(job, settings)
    own = f"{settings.prefix}.{job.rank}"
    for rank in job.peers:
        peer = f"{settings.prefix}.{rank}"
        lines.append(f"neigh replace {peer}.1 lladdr {mac(job, rank)} dev {DEVICE} nud permanent")
        lines.append(f"route replace {peer}.0/24 via {peer}.1 dev {DEVICE} onlink src {own}.1")
    return "\n".join(lines) + "\n"


def forwarding_lines(job: Job, underlay: Underlay) -> str:
    """Return the input of ``bridge -batch``: the node of each MAC address."""
    return "".join(
        f"fdb replace {mac(job, rank)} dev {DEVICE} dst {underlay.addresses[rank]} self permanent\n"
        for rank in job.peers
    )
