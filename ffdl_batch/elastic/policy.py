"""Decide how many GPUs and which batch each job of a pool gets. Pure: equal inputs give equal decisions.

The default objective makes the mean completion time short. The value of a job is its speed as a fraction of its fastest
possible speed, times the square root of (rank + 1). The rank is the number of jobs that will take at least as long as
this one, itself included; the 1 stands for the next job that arrives. Short jobs therefore come first, but a long job
that uses GPUs well is not stopped just to speed up a short one a little.

A change costs the time of a restart. The value of a changed size is therefore reduced by the fraction of time that the
restart takes. The fraction refers to the time until the job ends, but to at most the horizon. A job is therefore
changed only if it gains more than the change costs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from ffdl_batch.elastic.job_values import STEP, Floats, objective_values, permitted_values, pinned_size, round_values
from ffdl_batch.elastic.optimiser import allocate, allocate_greedily
from ffdl_batch.host.fast_dataclass import dataclass

RANK_EXPONENT = 0.5
"""Exponent of the rank in the value of a job. 0 = remaining times do not matter. The larger it is, the later long jobs
get GPUs."""
HORIZON_S = 600.0
"""Expected time until the next change of a job."""
LEAST_SPEED = 1e-6
"""Speed assigned to a waiting job by objectives that are not defined for 0."""


class Objective(StrEnum):
    """The quantity whose sum over the jobs is maximised."""

    COMPLETION = "completion"
    """Speeds relative to the fastest, weighted by rank: short completion times."""
    THROUGHPUT = "throughput"
    """Speeds relative to the smallest size (the sum of T in arXiv 2006.13878)."""
    FAIR = "fair"
    """The logarithms of these speeds: proportional fairness."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How to decide."""

    objective: Objective = Objective.COMPLETION
    horizon_s: float | None = HORIZON_S
    """Expected time until the next change. None = changes are treated as free."""
    greedy: bool = False
    """Allocate GPUs greedily instead of optimally."""
    stop_running: bool = True
    """Whether a running job may be stopped. If not, jobs are admitted in order while the smallest sizes of all fit."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolJob:
    """A job that may run now. Arrays are indexed by the number of GPUs, from 0."""

    name: str
    remaining_s: Floats
    """Expected seconds until its end with the best batch. inf = this number of GPUs is not permitted."""
    batch: npt.NDArray[np.int64]
    """The best batch, of all GPUs together."""
    restart_s: float
    """Cost of a change, including the first start, in seconds."""
    gpus: int = 0
    """0 = it waits."""
    present_batch: int = 0
    present_remaining_s: float = math.inf
    """Expected seconds until its end with its present GPUs and batch."""
    restarting_s: float = 0.0
    """Seconds left of a restart in progress."""
    weight: float = 1.0
    tenant: str = ""
    held: bool = False
    """Whether it must keep its size, for example because it requested this or has just changed."""


@dataclass(frozen=True, slots=True)
class Target:
    """The size that a job gets. 0 GPUs = it waits."""

    gpus: int
    batch: int


def decide(jobs: Sequence[PoolJob], gpus: int, rules: Rules) -> list[Target]:
    """Return the size of each job in the order of `jobs`, which is also the order of admission."""
    admitted = list(jobs) if rules.stop_running else _admit(jobs, gpus)
    if not admitted:
        return [Target(0, 0) for _ in jobs]
    weights = _weights(admitted, rules)
    values = [_values(job, weight, rules) for job, weight in zip(admitted, weights, strict=True)]
    chosen = (allocate_greedily if rules.greedy else allocate)([round_values(value.by_gpus) for value in values], gpus)
    targets = {
        job.name: _target(job, size, value) for job, size, value in zip(admitted, chosen.gpus, values, strict=True)
    }
    return [targets.get(job.name, Target(0, 0)) for job in jobs]


def fair_weights(tenants: Sequence[str], weights: Sequence[float]) -> list[float]:
    """Return weights with the same sum for each tenant, and the same mean as before."""
    sums: defaultdict[str, float] = defaultdict(float)
    for tenant, weight in zip(tenants, weights, strict=True):
        sums[tenant] += weight
    share = sum(weights) / len(sums)
    return [weight / sums[tenant] * share for tenant, weight in zip(tenants, weights, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    by_gpus: Floats
    stays: bool
    """Whether the job continues unchanged if it gets its present number of GPUs."""


def _admit(jobs: Sequence[PoolJob], gpus: int) -> list[PoolJob]:
    """Return the running jobs, and the waiting ones in order while the smallest sizes of all fit."""
    free = gpus - sum(_smallest(job) for job in jobs if job.gpus)
    admitted: list[PoolJob] = []
    full = False
    for job in jobs:
        if not job.gpus:
            full = full or free < _smallest(job)
            free -= _smallest(job)
        if job.gpus or not full:
            admitted.append(job)
    return admitted


def _smallest(job: PoolJob) -> int:
    return job.gpus if _keeps_size(job) else int(np.isfinite(job.remaining_s).argmax())


def _keeps_size(job: PoolJob) -> bool:
    return job.held and job.gpus > 0


def _weights(jobs: Sequence[PoolJob], rules: Rules) -> list[float]:
    weights = fair_weights([job.tenant for job in jobs], [job.weight for job in jobs])
    if rules.objective is not Objective.COMPLETION:
        return weights
    fastest = np.array([job.remaining_s.min() for job in jobs])
    ranks = 1 + (fastest[:, None] <= fastest * (1 + STEP)).sum(axis=1)
    return list(weights * ranks**RANK_EXPONENT)


def _values(job: PoolJob, weight: float, rules: Rules) -> _Values:
    """Return the value of each number of GPUs, including the cost of a restart if the job would change."""
    reference = job.remaining_s.min() if rules.objective is Objective.COMPLETION else _first(job.remaining_s)
    with np.errstate(divide="ignore"):
        speed = reference / job.remaining_s
    stays = False
    if rules.horizon_s is not None:
        speed = speed * _useful(job.remaining_s, job.restart_s, job.restart_s, rules.horizon_s)
        if job.gpus:
            useful = _useful(job.present_remaining_s, job.restart_s, job.restarting_s, rules.horizon_s)
            present = float(reference / job.present_remaining_s * useful)
            stays = bool(present >= speed[job.gpus])
            speed[job.gpus] = max(present, float(speed[job.gpus]))
    if _keeps_size(job):
        speed[job.gpus] = np.fmax(speed[job.gpus], LEAST_SPEED)  # it can keep its size, whatever it reports
    permitted = speed > 0
    if _keeps_size(job):
        permitted &= pinned_size(job.gpus, most=len(speed) - 1)
    fair = rules.objective is Objective.FAIR
    values = objective_values(speed, weight, alpha=1 if fair else 0)
    may_wait = rules.stop_running or not job.gpus
    if not may_wait or _keeps_size(job):
        return _Values(permitted_values(values, permitted), stays)
    return _Values(permitted_values(values, permitted, weight * math.log(LEAST_SPEED) if fair else 0.0), stays)


def _useful(remaining_s: float | Floats, restart_s: float, restarting_s: float, horizon_s: float) -> Floats:
    """Return the fraction of the time until the next change that is left after a restart."""
    until = np.maximum(np.minimum(horizon_s, remaining_s + restart_s), restart_s)
    return np.asarray(1 - restarting_s / until) if restart_s else np.ones_like(np.asarray(remaining_s))


def _first(remaining_s: Floats) -> float:
    return float(remaining_s[np.isfinite(remaining_s).argmax()])


def _target(job: PoolJob, size: int, values: _Values) -> Target:
    if size == job.gpus and (values.stays or not size):
        return Target(size, job.present_batch if size else 0)
    return Target(size, int(job.batch[size]))
