"""Writes the input of ip and nft for level `egress`, which lets a job reach the destinations that it named. Pure.

A pair of devices connects the job's namespace (<egress prefix>.<slot>.2) with the node (.1). The namespace has only one
route for each destination. A filter in the namespace and one on the node accept the named pairs of address and port,
and the answers to them. The node sends the packets from its own address.
"""

from __future__ import annotations

from typing import NamedTuple

from .layout import table_of
from .settings import Settings

INSIDE = "eth1"
OUTSIDE = "ffdl-out"
"""The beginning of the device names on the node. The number of the slot follows."""
NODE_TABLE = "ffdl_node"


class Targets(NamedTuple):
    """The destinations of a job: names with one address each, and pairs of address and port."""

    names: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[str, int], ...]


def device(slot: int) -> str:
    """Return the name of a slot's device on the node."""
    return f"{OUTSIDE}{slot}"


def node_rules(job_id: int, slot: int, settings: Settings, targets: Targets) -> str:
    """Return the input of nft on the node. The job may send only to its targets, and gets only answers."""
    name, own, table = device(slot), f"{settings.egress_prefix}.{slot}.2", table_of(job_id)
    return f"""\
add table ip {table}
delete table ip {table}
table ip {table} {{
    {_target_set(targets)}
    chain from_job {{
        ip saddr {own} meta l4proto {{ tcp, udp }} ip daddr . th dport @targets accept
        drop
    }}
    chain to_job {{
        {_answers()}
        drop
    }}
    chain input {{
        type filter hook input priority -10; policy accept;
        iifname "{name}" goto from_job
    }}
    chain forward {{
        type filter hook forward priority -10; policy accept;
        iifname "{name}" goto from_job
        oifname "{name}" goto to_job
    }}
    chain output {{
        type filter hook output priority -10; policy accept;
        oifname "{name}" goto to_job
    }}
    chain postrouting {{
        type nat hook postrouting priority 100; policy accept;
        ip saddr {own} oifname != "{name}" masquerade
    }}
}}
"""


def inner_chains(targets: Targets) -> str:
    """Return the same rules for the namespace, where a reload of the node's rules does not remove them."""
    return f"""\
    {_target_set(targets)}
    chain egress_input {{
        type filter hook input priority 0; policy accept;
        iifname != "{INSIDE}" accept
        {_answers()}
        drop
    }}
    chain egress_output {{
        type filter hook output priority 0; policy accept;
        oifname != "{INSIDE}" accept
        meta l4proto {{ tcp, udp }} ip daddr . th dport @targets accept
        drop
    }}
"""


def forward_rules() -> str:
    """Return the input of nft for a node that did not forward before, so that it forwards only for jobs."""
    return f"""\
add table ip {NODE_TABLE}
delete table ip {NODE_TABLE}
table ip {NODE_TABLE} {{
    chain forward {{
        type filter hook forward priority -20; policy accept;
        iifname "{OUTSIDE}*" accept
        oifname "{OUTSIDE}*" accept
        drop
    }}
}}
"""


def node_lines(slot: int, settings: Settings, namespace: str) -> str:
    """Return the input of ``ip -batch`` on the node, which makes the pair and configures the device on the node."""
    name, net = device(slot), f"{settings.egress_prefix}.{slot}"
    return f"""\
link add {name} address {_mac(slot, 1)} type veth peer name {INSIDE} address {_mac(slot, 2)} netns {namespace}
link set {name} arp off
link set {name} up
addr add {net}.1 peer {net}.2/32 dev {name}
neigh replace {net}.2 lladdr {_mac(slot, 2)} dev {name} nud permanent
"""


def node_sysctls(slot: int) -> tuple[tuple[str, str], ...]:
    """Return settings below /proc/sys/net that the device on the node must not inherit."""
    name = device(slot)
    ipv4 = (("forwarding", "1"), ("rp_filter", "1"), ("accept_redirects", "0"), ("send_redirects", "0"))
    return (*((f"ipv4/conf/{name}/{key}", value) for key, value in ipv4), (f"ipv6/conf/{name}/disable_ipv6", "1"))


def inside_lines(slot: int, settings: Settings, targets: Targets) -> str:
    """Return the input of ``ip -batch`` in the namespace: its device, and a route for each destination."""
    net = f"{settings.egress_prefix}.{slot}"
    lines = [f"link set {INSIDE} arp off", f"link set {INSIDE} up", f"addr add {net}.2/32 dev {INSIDE}"]
    lines.append(f"neigh replace {net}.1 lladdr {_mac(slot, 1)} dev {INSIDE} nud permanent")
    addresses = dict.fromkeys(address for address, _ in targets.pairs)
    lines += [f"route replace {address}/32 via {net}.1 dev {INSIDE} onlink src {net}.2" for address in addresses]
    return "\n".join(lines) + "\n"


def _target_set(targets: Targets) -> str:
    elements = ", ".join(f"{address} . {port}" for address, port in dict.fromkeys(targets.pairs))
    return f"set targets {{ type ipv4_addr . inet_service; elements = {{ {elements} }}; }}"


def _answers() -> str:
    return "ct state established accept\n        ct state related meta l4proto icmp accept"


def _mac(slot: int, end: int) -> str:
    return f"06:00:00:00:{slot:02x}:{end:02x}"
