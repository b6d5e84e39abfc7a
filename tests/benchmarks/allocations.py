"""When Slurm allocated jobs, to the millisecond: its commands know whole seconds, the log of slurmctld knows more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from tests.cluster.rig import Cluster

_LOG = "/var/log/slurm/slurmctld.log"
_ALLOCATED = re.compile(r"^\[(\S+)\] .*\b(?:Allocate|Started) JobId=(\d+)\b", re.MULTILINE)


def allocations(cluster: Cluster) -> Mapping[str, float]:
    """Seconds since the epoch of each job's latest allocation that slurmctld has told of."""
    zone = cluster.run("ctl", ["date", "+%z"]).stdout.strip()
    return read_allocations(cluster.path("ctl", _LOG).read_text(encoding="utf-8", errors="replace"), zone)


def read_allocations(log: str, zone: str) -> Mapping[str, float]:
    """The same, of the log's text; `zone` is that of its clock, as ``+0200``."""
    return {job: datetime.fromisoformat(moment + zone).timestamp() for moment, job in _ALLOCATED.findall(log)}
