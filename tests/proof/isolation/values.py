"""What the other modules agree on: shots, probes, facts, and the numbers of the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.rig.topology import NODES

ATTACKER, OTHER = "alice", "bob"
FIRST, SECOND = "n1", "n2"
"""The nodes on which both jobs have their learners: the attacker's one on each, the other's two."""
THIRD = "n3"
HOST_PORT, SPARE_PORT = 7201, 7202
_LEARNER_PORT, _PORTS_OF_ONE = 7101, 10
GATEWAY, OUTSIDE = "10.77.0.254", "192.0.2.1"
NAMED = ("login2", HOST_PORT)
"""What the attacker's job names at level egress."""
SOURCE = "/opt/ffdl/src/tests/proof/isolation"
IMAGE = "/shared/images/custom.sif"
ADDRESS = {node.name: node.address for node in NODES}

# Places from which shots are fired: learners, and USER[:GROUP]@NODE[/srun|/step].
LEARNER, LEARNER_2 = "learner 1", "learner 2"
VICTIM, VICTIM_3 = "other's learner 1", "other's learner 3"
"""The first on each node. Those behind them, 2 and 4, are what is aimed at: no learner of the attacker's has their
addresses."""
BEHIND = (2, 4)
PLAIN, OWNER, ROOT = f"{ATTACKER}@{FIRST}", f"{OTHER}@{FIRST}", f"root@{FIRST}"
SAME_GROUP = f"{ATTACKER}:{OTHER}@{FIRST}"
"""The attacker as somebody whose primary group is the other user's."""
SRUN, STEP, OWNER_STEP = f"{PLAIN}/srun", f"{PLAIN}/step", f"{OWNER}/step"


def learner_port(user: str, number: int) -> int:
    """Where a learner listens. Those of a node may share its addresses, and so may both jobs."""
    return _LEARNER_PORT + _PORTS_OF_ONE * (number - 1) + (user == ATTACKER)


@dataclass(frozen=True, slots=True)
class Shot:
    """One try: where it is fired, its kind, and the arguments of the prober's function of that kind."""

    place: str
    kind: str
    args: Mapping[str, Any] = field(default_factory=dict)

    def at(self, place: str, **changes: Any) -> Shot:
        """The same from elsewhere."""
        return Shot(place, self.kind, {**self.args, **changes})

    @property
    def bare(self) -> dict[str, Any]:
        """What a prober is told that another program starts."""
        return {"id": "", "kind": self.kind, **self.args}


@dataclass(frozen=True, slots=True)
class Hit:
    """What came of a shot: whether its own end saw success, and whether a datagram of it came to a listener."""

    succeeded: bool
    arrived: bool = False
    said: str = ""

    @property
    def through(self) -> bool:
        """Whether anything came through: a datagram that is not answered has done so, too."""
        return self.succeeded or self.arrived

    def __str__(self) -> str:
        return f"{self.said}; it came to a listener" if self.arrived and not self.succeeded else self.said


@dataclass(frozen=True, slots=True)
class Probe:
    """A try, whether it must be refused, and the same from where it must succeed. One that must come through needs no
    control; `note` says why it may. `one_way`: nobody can answer it. `way`: something harmless by the same way and from
    the same place, where the control had no need of that way; it must succeed, too."""

    name: str
    attempt: Shot
    refuse: bool = True
    control: Shot | None = None
    note: str = ""
    one_way: bool = False
    way: Shot | None = None

    @property
    def controls(self) -> tuple[Shot, ...]:
        """All that must succeed."""
        return tuple(one for one in (self.control, self.way) if one)


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The other job's network on the first node: what root sees of it there."""

    namespace: str
    port: int
    source_port: int
    vni: int = 0
    macs: tuple[str, str] = ("", "")
    """Those of the two nodes. These two are VXLAN's."""
    public_key: str = ""
    """Of the first node; WireGuard's."""
    more: tuple[str, ...] = ()
    """Addresses in it beside those of learners: the inner end of level egress."""

    @property
    def mechanism(self) -> str:
        """By what the nodes are joined."""
        return "wireguard" if self.public_key else "vxlan"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the probes aim at. `level` is the attacker's, `other` that of the other job."""

    level: str
    other: str
    label: str
    """The other job's listeners answer with it and the learner's number. Its secret is in its environment and files."""
    secret: str
    node_secret: str
    native: str
    addresses: tuple[str, str]
    """Of its learners 2 and 4, the second ones on each node."""
    target: str
    pid: int
    scratch: tuple[str, ...]
    secret_file: str
    devices: tuple[str, ...]
    links: Mapping[str, str]
    sockets: Mapping[str, str]
    own_label: str
    own_names: tuple[str, ...]
    bound: str
    """A socket in a directory of the attacker's, as a learner finds it."""
    tunnel: Tunnel | None = None
    own_ends: tuple[str, ...] = ()
    """The node's own ends of what leaves the attacker's namespace: level egress."""

    @property
    def confined(self) -> bool:
        """Whether the attacker's network is not the node's."""
        return self.level != "host"

    @property
    def apart(self) -> bool:
        """Whether the two jobs must not reach each other: one of them is not on the nodes' network."""
        return self.confined or self.other != "host"
