"""Recompute the decisions of a scaler from their recorded inputs and the rules in docs/elastic.md.

This module must not import ffdl_batch, so that it finds a policy that deviates from its documentation.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HORIZON_S = 600.0
"""Maximum time over which the gain of a change is compared with the cost of a restart."""
ROUNDING = 1e-6
"""Precision of the value of a job, and of remaining times in comparisons."""
Plain = Mapping[str, Any]


def wrong_decisions(recorded: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence for each decision that does not have the largest value. `recorded` has inputs and targets."""
    for number, (inputs, targets) in enumerate(recorded, 1):
        given, chosen = json.loads(inputs), json.loads(targets)
        jobs, gpus = given["jobs"], given["gpus"]
        if (total := sum(size for size, _ in chosen)) > gpus:
            yield f"decision {number} allocated {total} GPUs, but the pool has {gpus}"
        weights = _weights(jobs)
        got = sum(
            _value(job, weight, size, batch) for job, weight, (size, batch) in zip(jobs, weights, chosen, strict=True)
        )
        best = _best([_values(job, weight) for job, weight in zip(jobs, weights, strict=True)], gpus)
        if got < best - ROUNDING * (1 + len(jobs)):
            sizes = ", ".join(f"{job['gpus']} to {size}" for job, (size, _) in zip(jobs, chosen, strict=True))
            yield f"decision {number} has the value {got:.3f} instead of {best:.3f}: {sizes}"


def _weights(jobs: Sequence[Plain]) -> list[float]:
    """Return the weights of jobs, by tenant and rank: sqrt(rank + 1), where rank 1 has the longest remaining time at
    its fastest size."""
    sums: defaultdict[str, float] = defaultdict(float)
    for job in jobs:
        sums[job["tenant"]] += job["weight"]
    share = sum(job["weight"] for job in jobs) / max(1, len(sums))
    fastest = [_fastest(job) for job in jobs]
    ranks = [sum(own <= other * (1 + ROUNDING) for other in fastest) for own in fastest]
    return [
        job["weight"] / sums[job["tenant"]] * share * math.sqrt(rank + 1) for job, rank in zip(jobs, ranks, strict=True)
    ]


def _fastest(job: Plain) -> float:
    return float(min(seconds for _, seconds, _ in job["sizes"]))


def _value(job: Plain, weight: float, gpus: int, batch: int) -> float:
    """Return the value of a size: the speed as a fraction of the fastest, reduced by the fraction of the time that a
    restart takes, times the weight."""
    if not gpus:
        return -math.inf if job["held"] and job["gpus"] else 0.0
    if (gpus, batch) == (job["gpus"], job["batch"]):
        present_s = job["remaining_s"]
        return weight * _fastest(job) / present_s * _useful(job, present_s, job["restarting_s"]) if present_s else 0.0
    if job["held"] and job["gpus"]:
        return -math.inf
    seconds = next((one for size, one, known in job["sizes"] if (size, known) == (gpus, batch)), None)
    return -math.inf if seconds is None else weight * _fastest(job) / seconds * _useful(job, seconds, job["restart_s"])


def _useful(job: Plain, remaining_s: float, restarting_s: float) -> float:
    restart_s = job["restart_s"]
    until_s = max(min(HORIZON_S, remaining_s + restart_s), restart_s)
    return 1 - restarting_s / until_s if restart_s else 1.0


def _values(job: Plain, weight: float) -> dict[int, float]:
    """Return the best value of each number of GPUs."""
    sizes = [(0, 0), (job["gpus"], job["batch"]), *((size, batch) for size, _, batch in job["sizes"])]
    found: dict[int, float] = {}
    for gpus, batch in sizes:
        found[gpus] = max(found.get(gpus, -math.inf), _value(job, weight, gpus, batch))
    return found


def _best(values: Sequence[Mapping[int, float]], gpus: int) -> float:
    """Return the largest sum of values. Tries all sums of GPUs."""
    best = {0: 0.0}
    for of_job in values:
        longer: dict[int, float] = {}
        for used, sum_before in best.items():
            for size, value in of_job.items():
                if used + size <= gpus and value > -math.inf:
                    longer[used + size] = max(longer.get(used + size, -math.inf), sum_before + value)
        best = longer
    return max(best.values(), default=-math.inf)
