"""Convert the inputs and the result of a decision to JSON and back, to explain and recompute the decision."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ffdl_batch.elastic.policy import Objective, PoolJob, Rules, Target, decide
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.elastic.pool_jobs import Described
from ffdl_batch.store import StoredDecision


@dataclass(frozen=True, slots=True)
class Decision:
    """The arguments of the policy, and its result."""

    pool: str
    at: float
    gpus: int
    """GPUs that the decision divides: those of the pool, without `fixed`."""
    fixed: Mapping[str, int]
    """GPUs of jobs that cannot change now."""
    rules: Rules
    jobs: tuple[Described, ...]
    targets: tuple[Target, ...]

    def repeated(self) -> tuple[Target, ...]:
        """Call the policy again."""
        return tuple(decide([one.job for one in self.jobs], self.gpus, self.rules))


def encode(decision: Decision) -> StoredDecision:
    """Return the decision in the format of the database."""
    inputs = {
        "gpus": decision.gpus,
        "fixed": decision.fixed,
        "objective": decision.rules.objective.value,
        "horizon_s": decision.rules.horizon_s,
        "stop_running": decision.rules.stop_running,
        "jobs": [_plain(one) for one in decision.jobs],
    }
    targets = [[target.gpus, target.batch] for target in decision.targets]
    text = [json.dumps(part, separators=(",", ":"), allow_nan=False) for part in (inputs, targets)]
    return StoredDecision(decision.pool, decision.at, *text)


def decode(stored: StoredDecision) -> Decision:
    """Return a stored decision. Raises ValueError if it is damaged."""
    try:
        inputs, targets = json.loads(stored.inputs), json.loads(stored.targets)
        rules = Rules(Objective(inputs["objective"]), inputs["horizon_s"], stop_running=inputs["stop_running"])
        jobs = tuple(_described(plain) for plain in inputs["jobs"])
        decided = tuple(Target(gpus, batch) for gpus, batch in targets)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"the decision of {stored.at:.0f} about pool {stored.pool} is damaged: {error!r}") from error
    if len(jobs) != len(decided):
        raise ValueError(f"the decision of {stored.at:.0f} about pool {stored.pool} does not have a size for each job")
    return Decision(stored.pool, stored.at, inputs["gpus"], inputs["fixed"], rules, jobs, decided)


def _plain(described: Described) -> dict[str, Any]:
    job = described.job
    return {
        "name": job.name,
        "gpus": job.gpus,
        "batch": job.present_batch,
        "remaining_s": _finite(job.present_remaining_s),
        "restart_s": job.restart_s,
        "restarting_s": job.restarting_s,
        "weight": job.weight,
        "tenant": job.tenant,
        "held": job.held,
        "hold": described.hold,
        "limit": described.limit,
        "sizes": [
            [int(gpus), float(job.remaining_s[gpus]), int(job.batch[gpus])]
            for gpus in np.flatnonzero(np.isfinite(job.remaining_s))
        ],
    }


def _described(plain: Mapping[str, Any]) -> Described:
    sizes: Sequence[Sequence[Any]] = plain["sizes"]
    width = max([*(size[0] for size in sizes), plain["gpus"]]) + 1
    remaining, batch = np.full(width, math.inf), np.zeros(width, dtype=np.int64)
    for gpus, seconds, one in sizes:
        remaining[gpus], batch[gpus] = seconds, one
    present = plain["remaining_s"]
    job = PoolJob(
        plain["name"],
        remaining,
        batch,
        plain["restart_s"],
        gpus=plain["gpus"],
        present_batch=plain["batch"],
        present_remaining_s=math.inf if present is None else present,
        restarting_s=plain["restarting_s"],
        weight=plain["weight"],
        tenant=plain["tenant"],
        held=plain["held"],
    )
    return Described(job, plain["hold"], plain.get("limit", ""))


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
