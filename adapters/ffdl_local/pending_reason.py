"""Why a job waits on this machine: who holds its slots, and who is before it. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffdl_batch.domain.pending.explanation import Ahead, Explanation, Reason, Room, WaitKind
from ffdl_local.records import is_held

_PLACE = "local"
_MOST = 4096
"""Maximum number of jobs and of GPUs of a machine."""


def explain(queue: Path, token: str, job: Mapping[str, Any], waits: bool) -> Explanation:
    """What `queue` says of an attempt (`token` "" = of a request that is not there yet). `job` has max_jobs, the
    machine_gpus and the gpus that it asks for; `waits`: it has no slots yet. Raises OSError."""
    most, machine, wanted = (min(int(job[name]), _MOST) for name in ("max_jobs", "machine_gpus", "gpus"))
    busy = sum(is_held(queue / f"job-{number}") for number in range(most))
    gpus_busy = sum(is_held(queue / f"gpu-{number}") for number in range(machine))
    tickets = [path.name.partition("-")[2] for path in sorted((queue / "queue").glob("[0-9]*")) if is_held(path)]
    before = tickets.index(token) if token in tickets else len(tickets)
    free = most - busy
    room = Room(_PLACE, "", machine, machine - gpus_busy, 1, int(free > 0 and machine - gpus_busy >= wanted), 1, wanted)
    reason = None
    if waits:
        reason = Reason(WaitKind.TURN if before else WaitKind.RESOURCES)
    return Explanation(
        known_at=time.time(),
        reason=reason,
        partitions=(_PLACE,),
        position=before + 1 if waits else None,
        rooms=(room,),
        ahead=(Ahead(_PLACE, before, before, 0, len(tickets), busy),),
        figures={"jobs at once on this machine": f"{busy} of {most} run"},
    )
