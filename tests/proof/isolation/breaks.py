"""Ways to break what is proved, so that it can be seen that the proof fails then."""

from __future__ import annotations

from collections.abc import Callable

from tests.proof.isolation.facts import namespace_of, place_of_wireguard, prefix_of, tunnel_of
from tests.proof.isolation.stage import Job, Stage
from tests.proof.isolation.values import ADDRESS, FIRST, SECOND

_WAY_OUT = """\
ip link add broken0 type veth peer name broken1 netns "$1"
ip address add 10.99.0.1/30 dev broken0; ip link set broken0 up
nsenter --net="$1" sh -euc 'ip address add 10.99.0.2/30 dev broken1; ip link set broken1 up
ip route add default via 10.99.0.1'
"""

# Neither namespace answers ARP.
_BRIDGE = """\
ip link add broken2 netns {own} address 02:aa:00:00:00:01 type veth \\
    peer name broken3 netns {theirs} address 02:aa:00:00:00:02
nsenter --net={own} sh -euc 'ip address add 10.98.0.1/30 dev broken2; ip link set broken2 up
ip neighbour replace 10.98.0.2 lladdr 02:aa:00:00:00:02 dev broken2
ip route replace {goal} via 10.98.0.2; echo 1 >/proc/sys/net/ipv4/ip_forward'
nsenter --net={theirs} sh -euc 'ip address add 10.98.0.2/30 dev broken3; ip link set broken3 up
ip neighbour replace 10.98.0.1 lladdr 02:aa:00:00:00:01 dev broken3
ip route replace {source} via 10.98.0.1 src {goal}'
"""
_TOWARDS = "ip route replace {goal} via {hop} dev eth0 onlink src {source}\n"
_OTHER_VNI = """\
ip link set eth0 address {their_first}
bridge fdb del {own_second} dev eth0 self
bridge fdb add {their_second} dev eth0 dst {node} vni {vni} self permanent
ip neighbour replace {hop} lladdr {their_second} dev eth0 nud permanent
"""


def drop_guard(stage: Stage, _attacker: Job, other: Job) -> None:
    """The packet filter of the other job's network is gone, and so is the text from which it would be put back."""
    for node in (FIRST, SECOND):
        stage.cluster.run(node, ["rm", "-f", f"/run/ffdl/job-{other.native}/rules"])
        stage.cluster.run(node, ["nft", "delete", "table", "inet", f"ffdl_{other.native}"])


def make_way_out(stage: Stage, attacker: Job, _other: Job) -> None:
    """The attacker's network has a device that leads to the node, and a default route."""
    stage.cluster.run(FIRST, ["sh", "-euc", _WAY_OUT, "sh", namespace_of(stage.cluster, attacker)])


def bridge_networks(stage: Stage, attacker: Job, other: Job) -> None:
    """On the second node a pair of devices joins both networks, and the attacker's learner on the first has a route."""
    prefix = prefix_of(stage.cluster, other)
    goal, hop, source = f"{prefix}.1.2", f"{prefix}.1.1", f"{prefix}.0.77"
    own, theirs = (namespace_of(stage.cluster, job, SECOND) for job in (attacker, other))
    script = _BRIDGE.format(own=own, theirs=theirs, goal=goal, source=source)
    stage.cluster.run(SECOND, ["sh", "-euc", script])
    script = f"ip address replace {source}/32 dev eth0\n" + _TOWARDS.format(goal=goal, hop=hop, source=source)
    _run_inside(stage, attacker, script)


def take_vni(stage: Stage, attacker: Job, other: Job) -> None:
    """The attacker's device sends to the second node as the other job's does, under its number. What is answered goes
    to the other job."""
    prefix = prefix_of(stage.cluster, other)
    own, theirs = tunnel_of(stage.cluster, attacker), tunnel_of(stage.cluster, other)
    script = _OTHER_VNI.format(
        their_first=theirs.macs[0],
        their_second=theirs.macs[1],
        vni=theirs.vni,
        own_second=own.macs[1],
        node=ADDRESS[SECOND],
        hop=f"{prefix}.1.1",
    )
    script += _TOWARDS.format(goal=f"{prefix}.1.2", hop=f"{prefix}.1.1", source=f"{prefix}.0.1")
    _run_inside(stage, attacker, script)


def _run_inside(stage: Stage, job: Job, script: str) -> None:
    net = f"--net={namespace_of(stage.cluster, job)}"
    stage.cluster.run(FIRST, ["nsenter", net, "sh", "-euc", script])


def open_slot(stage: Stage, _attacker: Job, other: Job) -> None:
    """Everybody may enter the directory of the other job's slot."""
    stage.cluster.run(FIRST, ["chmod", "755", namespace_of(stage.cluster, other).rpartition("/")[0]])


def silence(stage: Stage, _attacker: Job, _other: Job) -> None:
    """A listener is gone, so nothing that is refused there proves anything."""
    stage.cluster.kill(stage.listeners[SECOND])


def change_key(stage: Stage, attacker: Job, _other: Job) -> None:
    """The first node has another key than the attacker's job needs: its learners do not reach each other."""
    enter, name = place_of_wireguard(stage.cluster, attacker)
    script = 'wg genkey | wg set "$1" private-key /proc/self/fd/0'
    stage.cluster.run(FIRST, [*enter, "sh", "-euc", script, "sh", name])


BREAKS: dict[str, Callable[[Stage, Job, Job], None]] = {
    "bridge": bridge_networks,
    "vni": take_vni,
    "guard": drop_guard,
    "route": make_way_out,
    "slot": open_slot,
    "control": silence,
}
BREAKS_OF_WIREGUARD: dict[str, Callable[[Stage, Job, Job], None]] = {"key": change_key}
"""Where the nodes are joined by it."""
LEVEL = "level"
"""The attacker runs at level host, and is judged by another level's table."""
