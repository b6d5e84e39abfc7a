"""Ways to break what is proved, so that it can be seen that the proof fails then."""

from __future__ import annotations

from collections.abc import Callable

from tests.proof.isolation.facts import namespace_of
from tests.proof.isolation.stage import Job, Stage
from tests.proof.isolation.values import FIRST, SECOND

_WAY_OUT = """\
ip link add broken0 type veth peer name broken1 netns "$1"
ip address add 10.99.0.1/30 dev broken0; ip link set broken0 up
nsenter --net="$1" sh -euc 'ip address add 10.99.0.2/30 dev broken1; ip link set broken1 up
ip route add default via 10.99.0.1'
"""


def drop_guard(stage: Stage, _attacker: Job, other: Job) -> None:
    """The packet filter of the other job's network is gone, and so is the text from which it would be put back."""
    for node in (FIRST, SECOND):
        stage.cluster.run(node, ["rm", "-f", f"/run/ffdl/job-{other.native}/rules"])
        stage.cluster.run(node, ["nft", "delete", "table", "inet", f"ffdl_{other.native}"])


def make_way_out(stage: Stage, attacker: Job, _other: Job) -> None:
    """The attacker's network has a device that leads to the node, and a default route."""
    stage.cluster.run(FIRST, ["sh", "-euc", _WAY_OUT, "sh", namespace_of(stage.cluster, attacker)])


def open_slot(stage: Stage, _attacker: Job, other: Job) -> None:
    """Everybody may enter the directory of the other job's slot."""
    stage.cluster.run(FIRST, ["chmod", "755", namespace_of(stage.cluster, other).rpartition("/")[0]])


def silence(stage: Stage, _attacker: Job, _other: Job) -> None:
    """A listener is gone, so nothing that is refused there proves anything."""
    stage.cluster.kill(stage.listeners[SECOND])


BREAKS: dict[str, Callable[[Stage, Job, Job], None]] = {
    "guard": drop_guard,
    "route": make_way_out,
    "slot": open_slot,
    "control": silence,
}
LEVEL = "level"
"""The attacker runs at level host, and is judged by another level's table."""
