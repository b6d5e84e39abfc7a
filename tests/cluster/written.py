"""Where planted values are in what a cluster wrote: the directories of all nodes, and a user's home."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.rig import Cluster
from tests.cluster.rig.topology import NODES
from tests.secret_search import Search

WRITTEN = ("/var/lib", "/var/spool", "/var/log", "/etc/slurm", "/run", "/tmp", "/var/tmp")


def written(cluster: Cluster, search: Search, home: str) -> dict[str, set[str]]:
    """What holds a value, by its path there: ``~/`` is the home, ``<node>:`` a node's own."""
    found: dict[str, set[str]] = {}
    top = cluster.path("ctl", home)
    for path, names in search.below(top).items():
        found[f"~/{Path(path).relative_to(top)}"] = names
    for node in (spec.name for spec in NODES):
        for place in WRITTEN:
            top = cluster.path(node, place)
            if top.is_dir():
                for path, names in search.below(top).items():
                    found[f"{node}:{place}/{Path(path).relative_to(top)}"] = names
    return found
