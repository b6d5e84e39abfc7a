"""Values that `ffdl scaler` prints about pools of elastic jobs."""

from __future__ import annotations

from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PoolJobView:
    """A job of a pool."""

    id: str
    name: str
    state: str
    learners: int
    gpus: int
    """0 = it waits for GPUs of the pool."""
    global_batch: int
    wanted_gpus: int
    """GPUs that the last decision gives it."""
    reason: str
    """Why it keeps its size, changes, or waits; "" = unknown."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A configured pool."""

    name: str
    backend: str
    partition: str
    gpus: int
    used_gpus: int
    """GPUs of its running jobs, and of those in the scheduler's queue."""
    objective: str
    paused_at: float | None
    """None = it is not paused."""
    decided_at: float | None
    """When the last decision was made."""
    next_at: float | None
    """When the next decision is due, unless a job arrives or ends before; None = no decision will be made."""
    problem: str
    """Why no decision can be made; "" = decisions can be made."""
    jobs: tuple[PoolJobView, ...]


@dataclass(frozen=True, slots=True)
class SizeOption:
    """A size that the policy has compared."""

    gpus: int
    global_batch: int
    remaining_s: float
    """The predicted time until the job's end."""


@dataclass(frozen=True, slots=True)
class SizeExplanation:
    """Why a job has its size, according to the last decision about it."""

    id: str
    pool: str
    decided_at: float
    gpus: int
    """GPUs that it had then; 0 = it waited."""
    global_batch: int
    wanted_gpus: int
    wanted_batch: int
    remaining_s: float | None
    """The predicted time until its end at the size that it had; None = it waited."""
    restart_s: float
    """Cost of a change, in seconds without progress."""
    hold: str
    """Why it keeps its size; "" = it may change."""
    rank: int
    """1 = no other job of the pool takes longer. The weight of the job grows with its rank."""
    pool_jobs: int
    """Jobs that were compared."""
    pool_gpus: int
    """GPUs that the decision divided among them."""
    options: tuple[SizeOption, ...]
    is_newest: bool = True
    """Whether no newer decision about the pool exists, which did not compare sizes of this job."""
    limit: str = ""
    """Why it had fewer sizes than its manifest permits; "" = it had all of them."""


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """A recorded decision, recomputed from its inputs."""

    pool: str
    at: float
    differences: tuple[str, ...]
    """One sentence for each job whose size differs."""
