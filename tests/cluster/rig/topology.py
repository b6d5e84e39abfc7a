"""Which nodes the cluster has, and what they are called on the wire. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CLUSTER_NAME = "rig"
NETWORK_PREFIX = 24
CPUS = 8
MEMORY_MIB = 4000
GPUS = 4
NPUS = 2
FEATURES = ("ffdl-network", "ffdl-egress")
"""What the root programs of slurm-configs/ make every node able to do."""


class Role(StrEnum):
    """What runs on a node."""

    CONTROL = "control"  # slurmctld, the accounting, and logins
    LOGIN = "login"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. The GPU type is "" for nodes without slurmd. `gres` is what it has beside GPUs."""

    name: str
    role: Role
    address: str
    gpu_type: str = ""
    gres: str = ""


# The same addresses in every cluster: each has its own network namespaces, so they cannot meet.
NODES = (
    NodeSpec("ctl", Role.CONTROL, "10.77.0.1"),
    NodeSpec("login2", Role.LOGIN, "10.77.0.2"),
    NodeSpec("n1", Role.COMPUTE, "10.77.0.11", "v100"),
    NodeSpec("n2", Role.COMPUTE, "10.77.0.12", "v100"),
    NodeSpec("n3", Role.COMPUTE, "10.77.0.13", "a100", f",shard:{2 * GPUS},npu:310:{NPUS}"),
)
LOGIN_NODES = tuple(node for node in NODES if node.role is not Role.COMPUTE)
COMPUTE_NODES = tuple(node for node in NODES if node.role is Role.COMPUTE)


def node_named(name: str) -> NodeSpec:
    """The node of that name; KeyError lists those that exist."""
    for node in NODES:
        if node.name == name:
            return node
    raise KeyError(f"no node {name!r}; there are {', '.join(n.name for n in NODES)}")
