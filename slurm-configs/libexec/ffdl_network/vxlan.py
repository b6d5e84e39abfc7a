"""Nodes of a job joined by VXLAN, as the input of ip, bridge and nft. Pure.

Each node has one MAC address. Nothing is asked on the wire: each node knows the others' addresses (a route and a
permanent neighbour) and places (a static entry of the forwarding table). There is no entry for broadcast or for unknown
addresses, so such frames go nowhere.
"""

from __future__ import annotations

from typing import Sequence

from . import layout
from .layout import DEVICE, Job, Underlay
from .settings import Settings

# IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14 bytes (RFC 7348).
OVERHEAD_BYTES = 50


def vni(job: Job) -> int:
    """The number of the job's network. Job ids have more than 24 bits; if two jobs with
    the same number meet on a node, the kernel refuses the second."""
    return job.job_id % (2**24 - 1) + 1


def mac(job: Job, rank: int) -> str:
    """The MAC address of a node: locally administered, the job's number, the node's."""
    number = vni(job) << 16 | rank
    return "02:" + ":".join(f"{number >> shift & 255:02x}" for shift in (32, 24, 16, 8, 0))


def guard_rules(job: Job, settings: Settings, underlay: Underlay) -> str:
    """Input of nft: packets of this job's network are taken from its nodes alone, and from ports that only root opens.

    VXLAN has no authentication: without this any user of any machine could send frames into the job.
    """
    ours = f"udp dport {settings.udp_port} @th,96,24 {vni(job):#x}"
    first, last = settings.source_ports
    rules = [f"meta nfproto ipv6 {ours} drop", f"{ours} udp sport != {first}-{last} drop"]
    return layout.guard_table(job, underlay, [*rules, f"{ours} ip saddr != @peers drop"])


def device_argv(job: Job, settings: Settings, underlay: Underlay, namespace: str) -> Sequence[str]:
    """Makes the device in the job's namespace; its outer packets stay in the namespace where this is run."""
    first, last = settings.source_ports
    mtu = underlay.inner_mtu(OVERHEAD_BYTES)
    argv = ["ip", "link", "add", DEVICE, "netns", namespace, "address", mac(job, job.rank), "mtu", str(mtu)]
    argv += ["type", "vxlan", "id", str(vni(job)), "dstport", str(settings.udp_port)]
    argv += ["srcport", str(first), str(last + 1)]
    if len(job.nodes) == 1:
        return [*argv, "nolearning"]
    # A device that learns drops what has the MAC address of a permanent entry and comes from another node. It is given
    # room for no more than these entries, and inner_rules drops what has any other MAC address.
    return [*argv, "learning", "maxaddress", str(len(job.nodes) - 1), "local", underlay.addresses[job.rank]]


def inner_rules(job: Job, _settings: Settings, more_chains: str = "") -> str:
    """Input of nft in the job's namespace: frames of peers alone."""
    peers = layout.elements_of([mac(job, rank) for rank in job.peers])
    rule = f'iifname "{DEVICE}" ether saddr != @peers drop'
    return layout.inner_table(f"type ether_addr\n        {peers}", rule, more_chains)


def address_lines(job: Job, settings: Settings) -> str:
    """Input of ``ip -batch``: own addresses, and one route and one neighbour for each other node."""
    lines = ["link set lo up", f"link set {DEVICE} arp off", f"link set {DEVICE} up"]
    lines += layout.own_address_lines(job, settings)
    own = f"{settings.prefix}.{job.rank}"
    for rank in job.peers:
        peer = f"{settings.prefix}.{rank}"
        lines.append(f"neigh replace {peer}.1 lladdr {mac(job, rank)} dev {DEVICE} nud permanent")
        lines.append(f"route replace {peer}.0/24 via {peer}.1 dev {DEVICE} onlink src {own}.1")
    return "\n".join(lines) + "\n"


def forwarding_lines(job: Job, underlay: Underlay) -> str:
    """Input of ``bridge -batch``: at which node each MAC address is."""
    return "".join(
        f"fdb replace {mac(job, rank)} dev {DEVICE} dst {underlay.addresses[rank]} self permanent\n"
        for rank in job.peers
    )
