"""How many GPUs a job of squeue's has or asks for, by whichever of Slurm's options it says so. Pure.

``tres-alloc`` is what a running job has, and what slurmctld counted for one that waits, of all its nodes together; a
site that does not account GPUs (AccountingStorageTRES) has none in it. Then the request counts: ``--gpus`` is of the
whole job, ``--gpus-per-node`` and ``--gres``, ``--gpus-per-task`` and ``--gpus-per-socket`` are of one of these each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ffdl_slurm.observing.accounted_runs import parse_tres
from ffdl_slurm.observing.parsers import parse_gpus

_ALL = "gres/gpu"
_NONE = frozenset({"", "N/A", "(null)", "None", "n/a"})


def gpus_of(row: Mapping[str, str], nodes: int) -> tuple[int, tuple[str, ...]]:
    """All GPUs of a row of squeue's on so many nodes, and their types, "" = any. Where it says several, the first of
    these counts: what Slurm counted, what the job asks for as a whole, per node, per task, per socket."""
    per_job, per_node, per_task, per_socket = (
        _asked(row[f"tres-per-{what}"]) for what in ("job", "node", "task", "socket")
    )
    counted = _counted(row["tres-alloc"])
    types = sorted({*per_job, *per_node, *per_task, *per_socket} or {name for name in counted if name})
    sums = (
        _total(counted),
        sum(per_job.values()),
        nodes * sum(per_node.values()),
        _number(row["NumTasks"], nodes) * sum(per_task.values()),
        nodes * _number(row["Sockets"], 1) * sum(per_socket.values()),
    )
    return next((count for count in sums if count), 0), tuple(types)


def _asked(text: str) -> dict[str, int]:
    """Of ``gpu:a100:2``, ``gres:gpu:2`` and ``cpu=1,gres/gpu=2``, as releases write it, by types."""
    return {} if text in _NONE else parse_gpus(re.sub(r"gres[/:]", "", text).replace("=", ":"))


def _counted(text: str) -> dict[str, int]:
    """Of ``cpu=8,gres/gpu=4,gres/gpu:a100=4``: under "" stands the number of all, where the site has it."""
    amounts = parse_tres(text)
    return {name.partition(":")[2]: int(count) for name, count in amounts.items() if name.split(":")[0] == _ALL}


def _total(counted: Mapping[str, int]) -> int:
    return counted.get("", sum(counted.values()))


def _number(text: str, otherwise: int) -> int:
    """Sockets that were not asked for are ``*``."""
    return int(text) if text.isascii() and text.isdigit() and int(text) else otherwise
