"""Define the policies that a simulation compares. Imports numpy only to create a scheduler, so that --help is fast."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffdl_batch.elastic.schedulers import Pool
    from ffdl_batch.elastic.simulator import Model, Scheduler


MOST_POOL_GPUS = 10_000


class Policy(StrEnum):
    """How the GPUs of a pool are divided."""

    FIFO = "fifo"
    """Jobs as submitted, in the order of submission."""
    BASELINE_MIN = "baseline-min"
    """The strong baseline of arXiv 2006.13878: largest sum of T, running jobs are not stopped, smallest batch."""
    BASELINE_MAX = "baseline-max"
    """The same with the largest batch."""
    BASELINE_RANDOM = "baseline-random"
    """The same with a random batch for each job."""
    GREEDY = "greedy"
    """The sum of T, each GPU to the job that gains most from it; submitted batches, changes are treated as free."""
    THROUGHPUT = "throughput"
    """The largest sum of T; submitted batches, changes are treated as free."""
    FAIR = "fair"
    """The largest sum of log T, with restart cost and any batch."""
    COMPLETION = "completion"
    """Short completion times, with restart cost and any batch."""


def scheduler_of(policy: Policy, models: Mapping[str, Model], pool: Pool, interval_s: float) -> Scheduler:
    """Return a new scheduler for the policy."""
    from ffdl_batch.elastic import schedulers
    from ffdl_batch.elastic.policy import HORIZON_S, Objective, Rules

    if policy is Policy.FIFO:
        return schedulers.Fifo(pool.gpus)
    throughput = Rules(Objective.THROUGHPUT, horizon_s=None)
    horizon_s = max(HORIZON_S, interval_s)
    baseline = Rules(Objective.THROUGHPUT, horizon_s=None, stop_running=False)
    rules, batches = {
        Policy.BASELINE_MIN: (baseline, schedulers.smallest_batch),
        Policy.BASELINE_MAX: (baseline, schedulers.largest_batch),
        Policy.BASELINE_RANDOM: (baseline, schedulers.random_batch),
        Policy.GREEDY: (Rules(Objective.THROUGHPUT, None, greedy=True), schedulers.submitted_batch),
        Policy.THROUGHPUT: (throughput, schedulers.submitted_batch),
        Policy.FAIR: (Rules(Objective.FAIR, horizon_s), schedulers.free_batches),
        Policy.COMPLETION: (Rules(Objective.COMPLETION, horizon_s), schedulers.free_batches),
    }[policy]
    return schedulers.Elastic(models, pool, rules, batches)
