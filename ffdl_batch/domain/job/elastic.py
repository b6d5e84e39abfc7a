"""Define the sizes that an elastic job may have, and the variables from which its learners read the size. Pure."""

from __future__ import annotations

import math
from enum import StrEnum

from ffdl_batch.host.fast_dataclass import dataclass

DEFAULT_POOL = "default"
BATCH_SIZE, GLOBAL_BATCH_SIZE, LEARNING_RATE_SCALE = "BATCH_SIZE", "GLOBAL_BATCH_SIZE", "LEARNING_RATE_SCALE"
VARIABLES = (BATCH_SIZE, GLOBAL_BATCH_SIZE, LEARNING_RATE_SCALE)
"""Variables of the learners of an elastic job, in addition to those of every job, such as WORLD_SIZE."""


def halted_for_size(pool: str) -> str:
    """Return what users read about a job that a scaler has halted and will continue."""
    return f"the scaler of pool {pool} halted it to change its size; it continues by itself"


class LearningRate(StrEnum):
    """How the learning rate scales with the global batch."""

    LINEAR = "linear"
    SQRT = "sqrt"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Elastic:
    """`batch.elastic` of the manifest, and the batch of the attempt. Batches are samples per step."""

    min_learners: int
    max_learners: int
    batch_min: int
    """Of all GPUs together; so are `batch_max`, `start` and `global_batch`."""
    batch_max: int
    per_gpu_max: int
    """The largest batch that fits into the memory of one GPU."""
    start: int
    """Of the first attempt. The learning rate in the program is the one for this batch."""
    weight: float = 1.0
    """Weight of the throughput of this job in decisions about its pool."""
    pool: str = DEFAULT_POOL
    learning_rate: LearningRate = LearningRate.LINEAR
    global_batch: int | None = None
    """Requested batch of the next attempts; None = `start`."""
    in_place: bool = False
    """Whether the other learners continue when those with the highest numbers leave. Each GPU then keeps its batch."""

    def batches_per_gpu(self, gpus: int) -> range:
        """Return the permitted batches of one GPU if the job has `gpus` GPUs; empty if it cannot run on that many."""
        return range(-(-self.batch_min // gpus), min(self.per_gpu_max, self.batch_max // gpus) + 1)

    def batch_on(self, gpus: int) -> int | None:
        """Return the global batch of an attempt on `gpus` GPUs; None if there is none.

        It is the requested batch, rounded down to a permitted one that the GPUs can share evenly, or up to the minimum.
        """
        permitted = self.batches_per_gpu(gpus)
        if not permitted:
            return None
        requested = self.start if self.global_batch is None else self.global_batch
        return min(max(requested // gpus, permitted[0]), permitted[-1]) * gpus

    def batch_without_restart(self, present: int, before: int, after: int) -> int | None:
        """Return the global batch after a change in place from `before` to `after` GPUs; None if it is not permitted.
        Each GPU keeps its part of the `present` batch."""
        per_gpu = present // before
        return per_gpu * after if per_gpu in self.batches_per_gpu(after) else None

    def learning_rate_scale(self, global_batch: int) -> float:
        """Return the factor for the learning rate at this batch."""
        ratio = global_batch / self.start
        return {LearningRate.LINEAR: ratio, LearningRate.SQRT: math.sqrt(ratio), LearningRate.NONE: 1.0}[
            self.learning_rate
        ]


def workers_of(learners: int, gpus: float) -> int:
    """Return the number of GPUs that share a batch. A learner without GPUs, or with a share of one, counts as one."""
    return learners * max(1, math.ceil(gpus))


def elastic_environment(elastic: Elastic, learners: int, gpus: float) -> dict[str, str]:
    """Return the variables of each learner of an attempt with this many learners and `gpus` GPUs per learner.

    Raises ValueError if the job cannot run at this size.
    """
    workers = workers_of(learners, gpus)
    batch = elastic.batch_on(workers)
    if batch is None:
        raise ValueError(
            f"no batch from {elastic.batch_min} to {elastic.batch_max} can be divided among {workers} GPUs"
        )
    return {
        BATCH_SIZE: str(batch // workers),
        GLOBAL_BATCH_SIZE: str(batch),
        LEARNING_RATE_SCALE: repr(elastic.learning_rate_scale(batch)),
    }
