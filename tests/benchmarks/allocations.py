"""When Slurm allocated jobs, to the millisecond: its commands know whole seconds, the log of slurmctld knows more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from tests.cluster.rig import Cluster

_LOG = "/var/log/slurm/slurmctld.log"
# Its main scheduler tells of each job, the backfill scheduler not always; the credential for the prolog on the nodes is
# made in the same step, and the log has that at level debug.
_ALLOCATED = re.compile(r"^\[(\S+)\] .*\b(?:Allocate|Started|creating credential for) JobId=(\d+)\b", re.MULTILINE)


@contextmanager
def told(cluster: Cluster) -> Iterator[None]:
    """For as long as the block, slurmctld's log has every allocation."""
    cluster.run("ctl", ["scontrol", "setdebug", "debug"])
    try:
        yield
    finally:
        cluster.run("ctl", ["scontrol", "setdebug", "info"])


def allocations(cluster: Cluster) -> Mapping[str, float]:
    """Seconds since the epoch of each job's allocation that slurmctld has told of."""
    zone = cluster.run("ctl", ["date", "+%z"]).stdout.strip()
    return read_allocations(cluster.path("ctl", _LOG).read_text(encoding="utf-8", errors="replace"), zone)


def read_allocations(log: str, zone: str) -> Mapping[str, float]:
    """The same, of the log's text: the first word of each job. `zone` is that of the log's clock, as ``+0200``."""
    found = reversed(_ALLOCATED.findall(log))
    return {job: datetime.fromisoformat(moment + zone).timestamp() for moment, job in found}
