"""Level `egress`: the way out of a job's network to the destinations that it named, as text for ip and nft. Pure.

A pair of devices joins the job's namespace (<egress prefix>.<slot>.2) and the node (.1). The namespace has one route
for each destination and no other; a filter in the namespace and one on the node let the named pairs of address and
port through, and what answers them. The node sends under its own address.
"""

from __future__ import annotations

from typing import NamedTuple

from .layout import table_of
from .settings import Settings

INSIDE = "eth1"
OUTSIDE = "ffdl-out"
"""The beginning of the names of the nodes' ends; the slot's number follows."""
NODE_TABLE = "ffdl_node"


class Targets(NamedTuple):
    """Where a job may go: names with an address each, and pairs of address and port."""

    names: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[str, int], ...]


def device(slot: int) -> str:
    """The node's end of a slot's pair."""
    return f"{OUTSIDE}{slot}"


def node_rules(job_id: int, slot: int, settings: Settings, targets: Targets) -> str:
    """Input of nft on the node. What comes from the job passes to its targets; what goes to it is an answer."""
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
    """Return the same for the namespace, which a reload of the node's rules does not reach."""
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
    """Return the input of nft for a node that forwarded nothing before: it forwards only for jobs."""
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
    """Input of ``ip -batch`` on the node: the pair, and the node's end."""
    name, net = device(slot), f"{settings.egress_prefix}.{slot}"
    return f"""\
link add {name} address {_mac(slot, 1)} type veth peer name {INSIDE} address {_mac(slot, 2)} netns {namespace}
link set {name} arp off
link set {name} up
addr add {net}.1 peer {net}.2/32 dev {name}
neigh replace {net}.2 lladdr {_mac(slot, 2)} dev {name} nud permanent
"""


def node_sysctls(slot: int) -> tuple[tuple[str, str], ...]:
    """What the node's end is not to inherit, below /proc/sys/net."""
    name = device(slot)
    ipv4 = (("forwarding", "1"), ("rp_filter", "1"), ("accept_redirects", "0"), ("send_redirects", "0"))
    return (*((f"ipv4/conf/{name}/{key}", value) for key, value in ipv4), (f"ipv6/conf/{name}/disable_ipv6", "1"))


def inside_lines(slot: int, settings: Settings, targets: Targets) -> str:
    """Input of ``ip -batch`` in the namespace: its end, and a route for each destination."""
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
