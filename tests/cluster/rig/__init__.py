"""A real multi-node Slurm cluster on one machine, for tests. Standard library only; needs root on Debian."""

from .cluster import Cluster, ClusterOptions
from .errors import RigError
from .running import CommandError
from .services import Service

__all__ = ["Cluster", "ClusterOptions", "CommandError", "RigError", "Service"]
