"""Predict how long a training step takes on any number of nodes and GPUs, from a few measured steps.

A job has one model for each GPU type. A step consists of two times:

    compute  = fixed + per_sample * local_batch
    exchange = 0                                                              on one GPU
               first_pair * (gpus - 1) ** a                                   on one node
               first_pair * boundary * (nodes / 2) ** b * (gpus / nodes) ** c on two or more nodes
               the same * pair_of_nodes                                       on two nodes
    step     = (compute ** p + exchange ** p) ** (1 / p)

The exchange of gradients overlaps with computing: not at all if p = 1, completely if p is large (as in Pollux, OSDI
2021). On two nodes, both directions of a ring use the same pair of network links.

The parameters have priors with typical values for GPUs, so that one measurement is enough for a first estimate. The
priors are the same for all jobs and clusters, and wide: for times, their standard deviations are factors of 3 to 20.
`fit` takes milliseconds. To correct a model, fit it again with all measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares
from scipy.special import entr, expit

from ffdl_batch.host.fast_dataclass import dataclass

FloatArray = NDArray[np.float64]

MISFIT = 0.07
"""Error of the formula for the true mean of a size, as a relative standard deviation."""
NOISE = 0.05
"""Error of one measurement for the mean of its size, as a relative standard deviation."""
SPLIT_NOISE = 0.15
"""The same for step_s - sync_s: learners count waiting for others as exchange."""
MOST_ROUNDS = 60
"""Maximum rounds of the search. The hardest measured cases need 33; only times that the formula cannot fit need
more."""


class Size(NamedTuple):
    """A size of a job."""

    nodes: int
    gpus: int
    """GPUs on all nodes together."""
    local_batch: int
    """Samples per GPU and pass."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The mean time of some steps at one size. Raises ValueError if the times contradict each other."""

    nodes: int
    gpus: int
    local_batch: int
    step_s: float
    sync_s: float | None = None
    """The part of the step in which the GPUs exchange gradients and do not compute, if the learner reports it."""
    passes: int = 1
    """Passes of a step that accumulates gradients. `step_s` contains all of them."""

    def __post_init__(self) -> None:
        if not (self.sync_s or 0.0) < self.step_s < math.inf:
            raise ValueError(f"a step cannot take {self.step_s} s with a gradient exchange of {self.sync_s} s")


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Arrays of the shape to which the arguments of `predict` were broadcast."""

    step_s: FloatArray
    relative_std: FloatArray
    """The standard deviation of the true step time, as a fraction of `step_s`."""
    extrapolates: NDArray[np.bool_]
    """Whether nodes, GPUs or local batch are outside the measured range."""


class Parameter(IntEnum):
    """The parameters of the formula."""

    COMPUTE = 0  # logarithm of seconds at the reference batch
    SHARE = 1  # logit of the part of COMPUTE that grows with the batch
    FIRST_PAIR = 2  # logarithm of the exchange of two GPUs on a node, in units of COMPUTE
    IN_NODE = 3  # a
    BOUNDARY = 4  # logarithm
    NODES = 5  # b
    GPUS_PER_NODE = 6  # c
    PAIR_OF_NODES = 7  # logarithm
    OVERLAP = 8  # logarithm of p - 1


_PRIOR = {  # mean, standard deviation
    Parameter.COMPUTE: (0.0, 3.0),  # the mean is that of the measured steps
    Parameter.SHARE: (1.0, 2.0),  # three quarters: a batch that users choose keeps a GPU busy
    Parameter.FIRST_PAIR: (math.log(0.1), 1.5),
    Parameter.IN_NODE: (0.5, 0.5),  # between a switch (0) and a shared bus (1)
    Parameter.BOUNDARY: (math.log(5.0), 1.0),  # a network against NVLink or PCIe
    Parameter.NODES: (0.25, 0.25),  # between bandwidth (0) and latency (1) of a ring
    Parameter.GPUS_PER_NODE: (0.25, 0.25),  # between one ring through all GPUs (0) and one for each (1)
    Parameter.PAIR_OF_NODES: (0.0, 0.3),
    Parameter.OVERLAP: (0.0, 1.0),
}
_MEAN, _STD = np.array(list(_PRIOR.values())).T


@dataclass(frozen=True, slots=True, eq=False)
class ThroughputModel:
    """The step times of one job on one GPU type. Made by `fit`."""

    parameters: FloatArray
    covariance: FloatArray
    reference_batch: float
    lowest: FloatArray
    """The smallest measured nodes, GPUs and local batch."""
    highest: FloatArray

    def predict(self, nodes: ArrayLike, gpus: ArrayLike, local_batch: ArrayLike, passes: ArrayLike = 1) -> Prediction:
        """Return the seconds of steps of the given sizes, which may be numbers or arrays.

        A step of several passes accumulates gradients: only the last pass exchanges them.
        """
        sizes = np.stack(np.broadcast_arrays(nodes, gpus, local_batch), axis=-1).astype(np.float64)
        curve = _evaluate(self.parameters, sizes, np.asarray(passes), self.reference_batch)
        variance = ((curve.step_slopes @ self.covariance) * curve.step_slopes).sum(axis=-1)
        outside = ((sizes < self.lowest) | (sizes > self.highest)).any(axis=-1)
        return Prediction(
            np.exp(curve.log_step), np.sqrt(variance + MISFIT**2), np.broadcast_to(outside, curve.log_step.shape)
        )


def fit(measurements: Sequence[Measurement]) -> ThroughputModel:
    """Return the most probable model for one or more measurements. Measurements of the same size are averaged."""
    merged = _merge(measurements)
    reference = float(np.exp(np.log(merged.sizes[:, 2]).mean()))
    mean = _MEAN.copy()
    mean[Parameter.COMPUTE] = merged.log_step.mean()
    split = ~np.isnan(merged.log_compute)

    @lru_cache(maxsize=1)  # the search asks for residuals and slopes at the same place
    def curve_at(parameters: bytes) -> _Curve:
        return _evaluate(np.frombuffer(parameters), merged.sizes, merged.passes, reference)

    def residuals(parameters: FloatArray) -> FloatArray:
        curve = curve_at(parameters.tobytes())
        return np.concatenate(
            [
                (curve.log_step - merged.log_step) / merged.std,
                (curve.log_compute - merged.log_compute)[split] / SPLIT_NOISE,
                (parameters - mean) / _STD,
            ]
        )

    def slopes(parameters: FloatArray) -> FloatArray:
        curve = curve_at(parameters.tobytes())
        return np.concatenate(
            [curve.step_slopes / merged.std[:, None], curve.compute_slopes[split] / SPLIT_NOISE, np.diag(1 / _STD)]
        )

    best = least_squares(residuals, mean, slopes, method="lm", max_nfev=MOST_ROUNDS)
    return ThroughputModel(
        parameters=best.x,
        covariance=np.linalg.inv(best.jac.T @ best.jac),
        reference_batch=reference,
        lowest=merged.sizes.min(axis=0),
        highest=merged.sizes.max(axis=0),
    )


def choose_profile(sizes: Sequence[Size]) -> list[Size]:
    """Return at most eight of the sizes, which together determine all parameters of the formula.

    The smallest and the largest batch on one GPU separate the fixed time from the time per sample. A full node with the
    smallest batch shows the exchange within a node, because only large batches hide it. The next four sizes are a half
    fraction of a 2 x 2 x 2 design: two or most nodes, one GPU or all GPUs of each, smallest or middle batch. In this
    half, the effect of one factor cannot be mistaken for that of another. The last size is near the centre of the
    design.
    """
    most_nodes = max(size.nodes for size in sizes)
    per_node = max(size.gpus / size.nodes for size in sizes)
    smallest, largest = (choose(size.local_batch for size in sizes) for choose in (min, max))
    middle, middle_nodes = math.sqrt(smallest * largest), math.sqrt(2 * most_nodes)
    wanted = (
        (1, 1, smallest),
        (1, 1, largest),
        (1, per_node, smallest),
        (2, 2, middle),
        (2, 2 * per_node, smallest),
        (most_nodes, most_nodes, smallest),
        (most_nodes, most_nodes * per_node, middle),
        (middle_nodes, middle_nodes * math.sqrt(per_node), middle),
    )

    def nearest(aim: tuple[float, float, float]) -> Size:
        return min(sizes, key=lambda size: [abs(math.log(had / asked)) for had, asked in zip(size, aim, strict=True)])

    return list(dict.fromkeys(map(nearest, wanted)))


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """Measurements, one row for each size."""

    sizes: FloatArray
    passes: FloatArray
    log_step: FloatArray
    log_compute: FloatArray
    """Compute time of one pass. NaN if the exchange is unknown, or if there is none."""
    std: FloatArray
    """Of `log_step`."""


def _merge(measurements: Sequence[Measurement]) -> _Merged:
    by_size: dict[tuple[Size, int], list[Measurement]] = {}
    for one in measurements:
        by_size.setdefault((Size(one.nodes, one.gpus, one.local_batch), one.passes), []).append(one)
    log_compute = []
    for (size, passes), same in by_size.items():
        known = [
            math.log((one.step_s - one.sync_s) / passes) for one in same if size.gpus > 1 and one.sync_s is not None
        ]
        log_compute.append(sum(known) / len(known) if known else math.nan)
    return _Merged(
        np.array([size for size, _ in by_size], dtype=np.float64),
        np.array([passes for _, passes in by_size], dtype=np.float64),
        np.array([np.mean([math.log(one.step_s) for one in same]) for same in by_size.values()]),
        np.array(log_compute),
        np.array([math.hypot(MISFIT, NOISE / math.sqrt(len(same))) for same in by_size.values()]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """Logarithms of the times of some sizes, and their derivatives by the parameters (last axis)."""

    log_step: FloatArray
    """Of all passes."""
    step_slopes: FloatArray
    log_compute: FloatArray
    """Of one pass."""
    compute_slopes: FloatArray


def _evaluate(parameters: FloatArray, sizes: FloatArray, passes: FloatArray, reference_batch: float) -> _Curve:
    nodes, gpus, batch = np.moveaxis(sizes, -1, 0)
    batch = batch / reference_batch
    share = expit(parameters[Parameter.SHARE])
    growth = 1 - share + share * batch
    log_compute = parameters[Parameter.COMPUTE] + np.log(growth)
    compute_slopes = np.zeros((*nodes.shape, len(Parameter)))
    compute_slopes[..., Parameter.COMPUTE] = 1
    compute_slopes[..., Parameter.SHARE] = share * (1 - share) * (batch - 1) / growth

    exchange_slopes = _exchange_slopes(nodes, gpus)
    log_exchange = np.where(gpus > 1, exchange_slopes @ parameters, -np.inf)
    power = 1 + np.exp(parameters[Parameter.OVERLAP])
    total = np.logaddexp(power * log_compute, power * log_exchange)
    weight = np.exp(power * log_compute - total)
    step_slopes = weight[..., None] * compute_slopes + (1 - weight)[..., None] * exchange_slopes
    step_slopes[..., Parameter.OVERLAP] = -(entr(weight) + entr(1 - weight)) * (power - 1) / power**2

    earlier = (passes - 1) * np.exp(log_compute - total / power)  # passes without exchange, in units of the last pass
    log_step = total / power + np.log1p(earlier)
    last = 1 / (1 + earlier)[..., None]
    return _Curve(log_step, last * step_slopes + (1 - last) * compute_slopes, log_compute, compute_slopes)


def _exchange_slopes(nodes: FloatArray, gpus: FloatArray) -> FloatArray:
    """Return the coefficients of the parameters in the logarithm of the exchange time, which is linear in them."""
    slopes = np.zeros((*nodes.shape, len(Parameter)))
    between = nodes > 1
    slopes[..., Parameter.COMPUTE] = 1
    slopes[..., Parameter.FIRST_PAIR] = 1
    slopes[..., Parameter.IN_NODE] = np.where(between, 0, np.log(np.maximum(gpus - 1, 1)))
    slopes[..., Parameter.BOUNDARY] = between
    slopes[..., Parameter.NODES] = np.where(between, np.log(nodes / 2), 0)
    slopes[..., Parameter.GPUS_PER_NODE] = np.where(between, np.log(gpus / nodes), 0)
    slopes[..., Parameter.PAIR_OF_NODES] = nodes == 2
    return slopes
