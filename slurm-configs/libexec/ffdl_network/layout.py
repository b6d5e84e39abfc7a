"""What a job's network is made of, as values and as the input of ip, bridge and nft. Pure.

Node r of a job has the addresses <prefix>.r.1 and up, one a learner, and one MAC address. Nothing is asked on the wire:
each node knows the others' addresses (a route and a permanent neighbour) and places (a static entry of the forwarding
table). There is no route elsewhere and no entry for broadcast or for unknown addresses, so such frames go nowhere.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from .settings import Settings

DEVICE = "eth0"
# IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14 bytes (RFC 7348).
VXLAN_OVERHEAD_BYTES = 50
MTU_LEAST_BYTES = 1280
_SYSCTLS = (
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv6/conf/lo/disable_ipv6", "1"),
    ("ipv4/ip_forward", "0"),
    # Nobody asks for an address, nobody is answered.
    ("ipv4/conf/all/arp_ignore", "8"),
    ("ipv4/conf/default/arp_ignore", "8"),
    ("ipv4/conf/all/arp_announce", "2"),
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/default/rp_filter", "1"),
    ("ipv4/conf/all/drop_unicast_in_l2_multicast", "1"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/accept_source_route", "0"),
    ("ipv4/conf/default/accept_source_route", "0"),
    # ping without a raw socket, for whoever looks for a fault.
    ("ipv4/ping_group_range", "0 2147483647"),
)


class Job(NamedTuple):
    """What Slurm and the mark say. `rank` is this node's place in the list of nodes, as SLURM_NODEID."""

    job_id: int
    uid: int
    nodes: tuple[str, ...]
    rank: int
    learners: int

    @property
    def vni(self) -> int:
        """The number of the job's network. Job ids have more than 24 bits; two jobs that meet on a node in spite of
        that are told so by the kernel."""
        return self.job_id % (2**24 - 1) + 1

    def mac(self, rank: int) -> str:
        """The MAC address of a node: locally administered, the job's number, the node's."""
        number = self.vni << 16 | rank
        return "02:" + ":".join(f"{number >> shift & 255:02x}" for shift in (32, 24, 16, 8, 0))

    @property
    def table(self) -> str:
        """The name of the job's table of packet filter rules."""
        return table_of(self.job_id)


class Underlay(NamedTuple):
    """How the nodes reach each other: addresses by rank, and the least MTU on the way to a peer (0: no peer)."""

    addresses: tuple[str, ...]
    mtu: int


def table_of(job_id: int) -> str:
    """The name of a job's table of packet filter rules."""
    return f"ffdl_{job_id}"


def namespace_script() -> str:
    """Shell text that is run in the new namespace: what the kernel lacks (IPv6) needs no switching off."""
    lines = [f'[ ! -e /proc/sys/net/{name} ] || echo "{value}" >/proc/sys/net/{name}' for name, value in _SYSCTLS]
    return "\n".join(["set -e", *lines]) + "\n"


def guard_rules(job: Job, settings: Settings, underlay: Underlay) -> str:
    """Input of nft: packets of this job's network are taken from its nodes alone, and from ports that only root opens.

    VXLAN asks nobody for a name: without this any user of any machine could send frames into the job.
    """
    peers = [address for rank, address in enumerate(underlay.addresses) if rank != job.rank]
    elements = f"elements = {{ {', '.join(peers)} }}" if peers else ""
    ours = f"udp dport {settings.udp_port} @th,96,24 {job.vni:#x}"
    first, last = settings.source_ports
    return f"""\
add table inet {job.table}
delete table inet {job.table}
table inet {job.table} {{
    set peers {{
        type ipv4_addr
        {elements}
    }}
    chain input {{
        type filter hook input priority -300; policy accept;
        meta nfproto ipv6 {ours} drop
        {ours} udp sport != {first}-{last} drop
        {ours} ip saddr != @peers drop
    }}
}}
"""


def device_argv(job: Job, settings: Settings, underlay: Underlay, namespace: str) -> Sequence[str]:
    """Makes the device in the job's namespace; its outer packets stay in the namespace where this is run."""
    first, last = settings.source_ports
    mtu = mtu_of(underlay)
    argv = ["ip", "link", "add", DEVICE, "netns", namespace, "address", job.mac(job.rank), "mtu", str(mtu)]
    argv += ["type", "vxlan", "id", str(job.vni), "dstport", str(settings.udp_port)]
    argv += ["srcport", str(first), str(last + 1)]
    if len(job.nodes) == 1:
        return [*argv, "nolearning"]
    # A device that learns drops what has the MAC address of a permanent entry and comes from another node. It is given
    # room for no more than these entries, and inner_rules drops what has any other MAC address.
    return [*argv, "learning", "maxaddress", str(len(job.nodes) - 1), "local", underlay.addresses[job.rank]]


def inner_rules(job: Job, more_chains: str = "") -> str:
    """Input of nft in the job's namespace, where no reload of the node's rules reaches it: frames of peers alone."""
    peers = [job.mac(rank) for rank in _peers(job)]
    elements = f"elements = {{ {', '.join(peers)} }}" if peers else ""
    return f"""\
table inet ffdl {{
    set peers {{
        type ether_addr
        {elements}
    }}
    chain input {{
        type filter hook input priority -300; policy accept;
        iifname "{DEVICE}" ether saddr != @peers drop
    }}
{more_chains}}}
"""


def mtu_of(underlay: Underlay) -> int:
    """The MTU of the job's network."""
    return (underlay.mtu or 1500) - VXLAN_OVERHEAD_BYTES


def address_lines(job: Job, settings: Settings) -> str:
    """Input of ``ip -batch``: own addresses, and one route and one neighbour for each other node."""
    lines = ["link set lo up", f"link set {DEVICE} arp off", f"link set {DEVICE} up"]
    own = f"{settings.prefix}.{job.rank}"
    lines += [f"addr add {own}.{i}/16 dev {DEVICE} noprefixroute" for i in range(1, job.learners + 1)]
    for rank in _peers(job):
        peer = f"{settings.prefix}.{rank}"
        lines.append(f"neigh replace {peer}.1 lladdr {job.mac(rank)} dev {DEVICE} nud permanent")
        lines.append(f"route replace {peer}.0/24 via {peer}.1 dev {DEVICE} onlink src {own}.1")
    return "\n".join(lines) + "\n"


def forwarding_lines(job: Job, underlay: Underlay) -> str:
    """Input of ``bridge -batch``: at which node each MAC address is."""
    return "".join(
        f"fdb replace {job.mac(rank)} dev {DEVICE} dst {underlay.addresses[rank]} self permanent\n"
        for rank in _peers(job)
    )


def facts(
    job: Job, settings: Settings, underlay: Underlay, namespace: str, names: Sequence[tuple[str, str]] | None
) -> str:
    """What the job's controller reads. `names`: those of the destinations at level `egress`, with their addresses."""
    pairs = {
        "job": job.job_id,
        "netns": namespace,
        "rank": job.rank,
        "nodes": len(job.nodes),
        "learners": job.learners,
        "prefix": f"{settings.prefix}.{job.rank}.",
        "mechanism": "vxlan" if names is None else "vxlan+nat",
        "mtu": mtu_of(underlay),
        "level": "job" if names is None else "egress",
    }
    if names:
        pairs["names"] = ",".join(f"{name}={address}" for name, address in names)
    return "".join(f"{name}={value}\n" for name, value in pairs.items())


def _peers(job: Job) -> list[int]:
    return [rank for rank in range(len(job.nodes)) if rank != job.rank]
