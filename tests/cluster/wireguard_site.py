"""The cluster as a site whose nodes join networks of jobs by WireGuard, for as long as somebody wants that."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import LIBEXEC
from tests.cluster.rig.topology import COMPUTE_NODES

SECRET = "/etc/ffdl/network.secret"
VALUES = {"NETWORK_MECHANISM": "wireguard", "NETWORK_WIREGUARD_PROGRAM": "/usr/bin/wireguard-go"}
"""The program is for machines whose kernel has none."""


@contextmanager
def wireguard(cluster: Cluster) -> Iterator[None]:
    """Prologs read these values at once; running jobs keep the networks that they have."""
    secret = secrets.token_hex(32)
    for spec in COMPUTE_NODES:
        write_secret(cluster, spec.name, secret)
    plan = cluster.blueprint
    replace(cluster, blueprint=replace(plan, values={**plan.values, **VALUES})).write_slurm()
    try:
        _check(cluster)
        yield
    finally:
        cluster.write_slurm()
        _check(cluster)
        for spec in COMPUTE_NODES:
            cluster.run(spec.name, ["rm", SECRET])


def write_secret(cluster: Cluster, node: str, secret: str) -> None:
    """As the documentation tells it."""
    script = f"install -d -m 755 /etc/ffdl; install -m 600 /dev/null {SECRET}; cat >{SECRET}"
    cluster.run(node, ["sh", "-euc", script], input=secret)


def _check(cluster: Cluster) -> None:
    for spec in COMPUTE_NODES:
        cluster.run(spec.name, [f"{LIBEXEC}/check"])
