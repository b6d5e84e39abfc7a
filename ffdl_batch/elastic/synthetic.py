"""Generate models, step times and arrivals of synthetic jobs with the formula of the throughput model.

They model the settings of arXiv 2006.13878: compute-bound, communication-bound, balanced and mixed jobs. As in the
paper, every batch in the range reaches the same accuracy with the same number of samples. Pure.
"""

from __future__ import annotations

import math
import random
from enum import StrEnum

import numpy as np

from ffdl_batch.elastic.simulator import Arrival, Model
from ffdl_batch.elastic.throughput_model import Parameter, ThroughputModel
from ffdl_batch.host.fast_dataclass import dataclass

REFERENCE_LOCAL = 32
"""Samples per GPU for which the parameters hold."""
BATCHES = (32, 64, 128, 256, 512, 1024, 2048)
SMALLEST_LOCAL, LARGEST_LOCAL = 4, 64
SAMPLES = 576_000
"""Number of samples of a job with work 1: about an hour on one GPU."""
STEP_S = 0.2
"""Step time of one GPU with the reference batch."""
GROWING_SHARE = 0.75
"""Fraction of STEP_S that grows with the batch."""


class Scaling(StrEnum):
    """What limits the speed of a job on several GPUs."""

    COMPUTE = "compute-bound"
    BALANCED = "balanced"
    COMMUNICATION = "communication-bound"


_EXCHANGE = {Scaling.COMPUTE: (0.03, 2.0), Scaling.BALANCED: (0.2, 4.0), Scaling.COMMUNICATION: (0.6, 5.0)}
"""Gradient exchange of two GPUs as a fraction of the step, and how many times slower it is between nodes."""


class SyntheticTimes:
    """Step times of each kind of scaling. A job may leave GPUs unused."""

    def __init__(self, gpus: int, node_gpus: int) -> None:
        self._step_s = {scaling.value: _table(scaling, gpus, node_gpus) for scaling in Scaling}

    def step_s(self, model: str, gpus: int, batch: int) -> float:
        """Return the seconds of a step."""
        return self._step_s[model][batch][gpus]


def synthetic_models() -> dict[str, Model]:
    """Return the models, one for each kind of scaling."""
    steps = {batch: math.ceil(SAMPLES / batch) for batch in BATCHES}
    return {scaling.value: Model(steps, SMALLEST_LOCAL, LARGEST_LOCAL) for scaling in Scaling}


def usual_batch(gpus: int) -> int:
    """Return the batch nearest to the reference on each GPU."""
    return min(BATCHES, key=lambda batch: abs(math.log(batch / (gpus * REFERENCE_LOCAL))))


def work_of(duration_s: float, times: SyntheticTimes, model: str, gpus: int, batch: int) -> float:
    """Return the work of a job that takes `duration_s` at this size."""
    return duration_s / (times.step_s(model, gpus, batch) * math.ceil(SAMPLES / batch))


class Pattern(StrEnum):
    """When jobs arrive."""

    HIGH = "high"
    LOW = "low"
    BURSTY = "bursty"


@dataclass(frozen=True, slots=True)
class Workload:
    """Which jobs to generate."""

    pattern: Pattern
    scaling: Scaling | None
    """None = a mixture."""
    gpus: int
    """GPUs of the pool, which determine the number of jobs."""
    hours: float
    seed: int


_LOAD = {Pattern.HIGH: 1.5, Pattern.LOW: 0.4, Pattern.BURSTY: 0.8}
"""GPU-hours of the jobs as submitted, as a fraction of those of the pool."""
_GPUS = (1, 2, 4, 8, 16)
_WEIGHTS = (8, 3, 3, 2, 1)
_DURATIONS_S = (900, 14_400)
_BURST_S, _BURST_EVERY_S = 600, 7200


def synthetic_arrivals(workload: Workload, times: SyntheticTimes) -> list[Arrival]:
    """Return jobs in the order of submission, with random sizes and durations, and submission times by the pattern."""
    chance = random.Random(workload.seed)  # noqa: S311 - no secret
    sizes = [gpus for gpus in _GPUS if gpus <= workload.gpus]
    wanted_s = _LOAD[workload.pattern] * workload.gpus * workload.hours * 3600
    jobs, length_s = [], workload.hours * 3600
    while wanted_s > 0:
        gpus = chance.choices(sizes, _WEIGHTS[: len(sizes)])[0]
        duration_s = math.exp(chance.uniform(*map(math.log, _DURATIONS_S)))
        model = (workload.scaling or chance.choice(list(Scaling))).value
        batch = chance.choice([one for one in BATCHES if SMALLEST_LOCAL <= one / gpus <= LARGEST_LOCAL])
        submitted_s = chance.uniform(0, length_s)
        if workload.pattern is Pattern.BURSTY:
            submitted_s -= submitted_s % _BURST_EVERY_S * (1 - _BURST_S / _BURST_EVERY_S)
        work = work_of(duration_s, times, model, gpus, batch)
        jobs.append((submitted_s, model, gpus, batch, work))
        wanted_s -= gpus * duration_s
    return [
        Arrival(f"{model}-{number}", round(submitted_s, 3), model, gpus, batch, work=work)
        for number, (submitted_s, model, gpus, batch, work) in enumerate(sorted(jobs))
    ]


def _table(scaling: Scaling, most: int, node_gpus: int) -> dict[int, list[float]]:
    """Return the seconds of a step by batch and number of GPUs; inf if a GPU would get too few samples."""
    gpus = np.arange(1, most + 1)
    table = {}
    for batch in BATCHES:
        share = np.ceil(batch / gpus)
        passes = np.ceil(share / LARGEST_LOCAL)
        step_s = _formula(scaling).predict(np.ceil(gpus / node_gpus), gpus, np.ceil(share / passes), passes).step_s
        best = np.minimum.accumulate(np.where(share >= SMALLEST_LOCAL, step_s, math.inf))
        table[batch] = [math.inf, *best.tolist()]
    return table


def _formula(scaling: Scaling) -> ThroughputModel:
    exchange, boundary = _EXCHANGE[scaling]
    parameters = np.zeros(len(Parameter))
    parameters[Parameter.COMPUTE] = math.log(STEP_S)
    parameters[Parameter.SHARE] = math.log(GROWING_SHARE / (1 - GROWING_SHARE))
    parameters[Parameter.FIRST_PAIR] = math.log(exchange)
    parameters[Parameter.IN_NODE] = 0.5
    parameters[Parameter.BOUNDARY] = math.log(boundary)
    parameters[[Parameter.NODES, Parameter.GPUS_PER_NODE]] = 0.25
    return ThroughputModel(
        parameters, np.zeros((len(Parameter),) * 2), REFERENCE_LOCAL, lowest=np.zeros(3), highest=np.full(3, np.inf)
    )
