"""The probes that put packets into the other job's network from outside of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tests.proof.isolation.values import (
    ADDRESS,
    ATTACKER,
    BEHIND,
    FIRST,
    LEARNER,
    OTHER,
    SECOND,
    THIRD,
    VICTIM_3,
    Facts,
    Probe,
    Shot,
    Tunnel,
    learner_port,
)

FORGED = "who is root on a machine that can send with the address of a node can forge packets of a job"
PROBER = ("python3", "-m", "prober", "try")
HARMLESS = {"id": "", "kind": "command", "argv": ["true"]}
_STRANGE_DEVICE = """\
port=$1 key=$2 node=$3 own=$4 goal=$5; shift 5
ip link add strange type wireguard 2>/dev/null || wireguard-go strange >/dev/null 2>&1
trap 'ip link del strange' EXIT
wg genkey | wg set strange private-key /proc/self/fd/0 listen-port "$port" \\
    peer "$key" allowed-ips "$goal/32" endpoint "$node:$port"
ip address add "$own/32" dev strange; ip link set strange up; ip route add "$goal/32" dev strange
"$@"
"""
"""A device as the job's nodes have it, but for its key; what is tried comes after its five values."""


def from_outside(facts: Facts, tunnel: Tunnel) -> Iterator[Probe]:
    """Those that fit what the nodes are joined by."""
    return (_wireguard if tunnel.mechanism == "wireguard" else _vxlan)(facts, tunnel)


def _vxlan(facts: Facts, tunnel: Tunnel) -> Iterator[Probe]:
    frame = Shot(
        LEARNER,
        "vxlan",
        {
            "host": ADDRESS[FIRST],
            "port": tunnel.port,
            "vni": tunnel.vni,
            "macs": tunnel.macs,
            "inner": [facts.addresses[1], facts.addresses[0], learner_port(OTHER, BEHIND[0])],
            "source_port": 0,
        },
    )
    control = frame.at(f"root@{SECOND}", source_port=tunnel.source_port)
    yield Probe("VXLAN frame", frame, control=control)
    for node in (FIRST, SECOND, THIRD, "ctl"):
        yield Probe(f"VXLAN frame from a user of {node}", frame.at(f"{ATTACKER}@{node}"), control=control)
    strange = frame.at(f"root@{THIRD}", source_port=tunnel.source_port)
    yield Probe("VXLAN frame from root of a node that is not the job's", strange, control=control)
    yield Probe(
        "VXLAN frame from root of a machine, with the address of the job's node",
        strange.at(strange.place, forged=ADDRESS[SECOND]), refuse=False, note=FORGED, one_way=True,
    )  # fmt: skip


def _wireguard(facts: Facts, tunnel: Tunnel) -> Iterator[Probe]:
    """Nobody outside has a key, so the controls go through the network itself."""
    source, goal, port = facts.addresses[1], facts.addresses[0], learner_port(OTHER, BEHIND[0])
    datagram = Shot(VICTIM_3, "udp", {"hosts": [goal], "port": port, "expect": f"{facts.label}-{BEHIND[0]}"})
    script = ["sh", "-euc", _STRANGE_DEVICE, "sh", str(tunnel.port), tunnel.public_key, ADDRESS[FIRST], source, goal]
    device = Shot(f"root@{THIRD}", "inside", {"argv": [*script, *PROBER], "shot": datagram.bare})
    way = device.at(device.place, shot=HARMLESS)
    yield Probe("WireGuard device of root of a machine, with a key of its own", device, control=datagram, way=way)
    unsealed = Shot(
        "", "unsealed", {"host": ADDRESS[FIRST], "port": tunnel.port, "inner": [source, goal, port], "forged": ""}
    )
    for place, forged, whose in (
        (f"{ATTACKER}@{FIRST}", "", f"a user of {FIRST}"),
        (f"root@{THIRD}", ADDRESS[SECOND], "root of a machine, with the address of the job's node"),
    ):
        sent = Shot(place, "inside", {"argv": [*PROBER], "shot": unsealed.at("", forged=forged).bare})
        name = f"WireGuard packet without a key, from {whose}"
        yield Probe(name, sent, control=datagram, way=sent.at(place, shot=HARMLESS))
