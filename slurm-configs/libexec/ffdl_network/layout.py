"""Describes a job's network, independently of the mechanism that connects its nodes. Pure.

Node r of a job has the addresses <prefix>.r.1 and up, one for each learner. Each node knows the addresses and locations
of the others beforehand, and has no route elsewhere. The mechanisms are in vxlan.py and wireguard.py. Both define
OVERHEAD_BYTES, guard_rules, inner_rules and address_lines.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from .settings import Settings

DEVICE = "eth0"
MTU_LEAST_BYTES = 1280
_MTU_USUAL_BYTES = 1500
_SYSCTLS = (
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv6/conf/lo/disable_ipv6", "1"),
    ("ipv4/ip_forward", "0"),
    # No ARP requests are sent or answered.
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
    # ping without a raw socket, for debugging.
    ("ipv4/ping_group_range", "0 2147483647"),
)


class Job(NamedTuple):
    """A job according to Slurm and the mark. `rank` is the index of this node in the list of nodes, as SLURM_NODEID."""

    job_id: int
    uid: int
    nodes: tuple[str, ...]
    rank: int
    learners: int

    @property
    def table(self) -> str:
        """The name of the job's table of packet filter rules."""
        return table_of(self.job_id)

    @property
    def peers(self) -> list[int]:
        """The ranks of the other nodes."""
        return [rank for rank in range(len(self.nodes)) if rank != self.rank]


class Underlay(NamedTuple):
    """The network between the nodes: addresses by rank, and the smallest MTU to a peer (0: no peer)."""

    addresses: tuple[str, ...]
    mtu: int

    def inner_mtu(self, overhead_bytes: int) -> int:
        """The MTU of the job's network."""
        return (self.mtu or _MTU_USUAL_BYTES) - overhead_bytes


def table_of(job_id: int) -> str:
    """Return the name of a job's table of packet filter rules."""
    return f"ffdl_{job_id}"


def namespace_script() -> str:
    """Return the shell script for the new namespace. It skips settings that the kernel does not have (IPv6)."""
    lines = [f'[ ! -e /proc/sys/net/{name} ] || echo "{value}" >/proc/sys/net/{name}' for name, value in _SYSCTLS]
    return "\n".join(["set -e", *lines]) + "\n"


def guard_table(job: Job, underlay: Underlay, rules: Sequence[str]) -> str:
    """Return the input of nft on the node: a table with these rules for incoming packets and the set `peers`."""
    peers = [underlay.addresses[rank] for rank in job.peers]
    return f"add table inet {job.table}\ndelete table inet {job.table}\n" + _table(
        job.table, f"type ipv4_addr\n        {elements_of(peers)}", rules
    )


def inner_table(peers: str, rule: str, more_chains: str) -> str:
    """Return the input of nft in the job's namespace, where a reload of the node's rules does not remove it."""
    return _table("ffdl", peers, [rule], more_chains)


def elements_of(words: Sequence[str]) -> str:
    """Return the elements of an nft set; "" if there are none."""
    return f"elements = {{ {', '.join(words)} }}" if words else ""


def _table(name: str, peers: str, rules: Sequence[str], more_chains: str = "") -> str:
    listed = "\n        ".join(rules)
    return f"""\
table inet {name} {{
    set peers {{
        {peers}
    }}
    chain input {{
        type filter hook input priority -300; policy accept;
        {listed}
    }}
{more_chains}}}
"""


def own_address_lines(job: Job, settings: Settings) -> list[str]:
    """Return lines for ``ip -batch`` with the addresses of the learners on this node."""
    own = f"{settings.prefix}.{job.rank}"
    return [f"addr add {own}.{i}/16 dev {DEVICE} noprefixroute" for i in range(1, job.learners + 1)]


def facts(job: Job, settings: Settings, mtu_bytes: int, namespace: str, names: Sequence[tuple[str, str]] | None) -> str:
    """Return the file for the job's controller. `names` are the destinations of level `egress` with their addresses."""
    pairs = {
        "job": job.job_id,
        "netns": namespace,
        "rank": job.rank,
        "nodes": len(job.nodes),
        "learners": job.learners,
        "prefix": f"{settings.prefix}.{job.rank}.",
        "mechanism": settings.mechanism if names is None else f"{settings.mechanism}+nat",
        "mtu": mtu_bytes,
        "level": "job" if names is None else "egress",
    }
    if names:
        pairs["names"] = ",".join(f"{name}={address}" for name, address in names)
    return "".join(f"{name}={value}\n" for name, value in pairs.items())
