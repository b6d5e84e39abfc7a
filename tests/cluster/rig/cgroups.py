"""Where a node's jobs are confined: a cgroup (v1) of its own, which it sees under the name that Slurm looks for.

Slurm names a node's cgroup by the node alone, slurm_<node>, so two clusters on one machine would find each other's
jobs. The directory of that name is therefore a mount point and stays empty: every node mounts its own over it.
What /proc/<pid>/cgroup says is the host's name for it, and such paths lead to the same place on a node.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from .host import CGROUP_ROOT, CGROUP_V1


def own_name(cluster_id: str, node: str) -> str:
    """The node's cgroup, in every hierarchy that Slurm uses."""
    return f"ffdl-{cluster_id}-{node}"


def slurm_name(node: str) -> str:
    """What Slurm calls the cgroup of a node."""
    return f"slurm_{node}"


def mounts(cluster_id: str, node: str) -> list[str]:
    """Shell lines that lay the node's cgroup over Slurm's name; the new root file system is where they run."""
    own, slurm = own_name(cluster_id, node), slurm_name(node)
    lay = f"cd sys/fs/cgroup/$c; mkdir -p {own} {slurm}; mount --bind {own} {slurm}"
    return [f"for c in {' '.join(CGROUP_V1)}; do ({lay}); done"]


def remove(cluster_id: str, node: str) -> None:
    """Remove what a dead node's slurmd left; a real reboot would have cleared it."""
    for top in CGROUP_ROOT.glob(f"*/{own_name(cluster_id, node)}"):
        directories = sorted((Path(path) for path, _, _ in os.walk(top)), key=lambda p: len(p.parts), reverse=True)
        for directory in directories:
            _remove(directory)


def remove_mount_point(node: str) -> None:
    """Remove the directory of Slurm's name. Only where no cluster is left: this takes the mounts upon it along."""
    for directory in CGROUP_ROOT.glob(f"*/{slurm_name(node)}"):
        _remove(directory)


def _remove(directory: Path) -> None:
    for _ in range(100):  # a killed task leaves its cgroup a moment later
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
