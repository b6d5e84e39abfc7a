"""Predict the step times of one kind of job: a formula, corrected near the measured sizes.

The formula of :mod:`ffdl_batch.elastic.throughput_model` is smooth. It misses peculiarities of single sizes, such as a
batch that suits a GPU badly. A Gaussian process interpolates the differences between measurements and formula, so
predictions are accurate at measured sizes, and improve at similar ones.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from ffdl_batch.elastic.throughput_model import (
    MISFIT,
    NOISE,
    FloatArray,
    Measurement,
    Prediction,
    ThroughputModel,
    fit,
)

GUESS = Measurement(nodes=1, gpus=1, local_batch=1, step_s=0.1)
"""Used for a job without measurements."""
ALIKE = 0.7
"""Length scale of similarity for GPUs and batches, in powers of two."""
NODE_DISTANCE = 2.0
"""Distance between one node and several nodes, in length scales."""

_Key = tuple[int, int, int, int]


class StepTimes:
    """Measured step times of one kind of job on one GPU type."""

    def __init__(self) -> None:
        self._sums: dict[_Key, tuple[int, float]] = {}
        self._model: ThroughputModel | None = None
        self._keys: FloatArray = np.zeros((0, 4))
        self._corrections: FloatArray = np.zeros(0)

    @property
    def most_gpus(self) -> int:
        """The largest measured number of GPUs, 0 if nothing was measured."""
        return max((gpus for _, gpus, _, _ in self._sums), default=0)

    @property
    def changed(self) -> bool:
        """Whether the next prediction will differ from the last one."""
        return self._model is None

    def add(self, measurement: Measurement) -> None:
        """Add a measurement.

        The model is fitted again only if the size is new, or if its number of measurements has doubled: further
        measurements of the same size change little.
        """
        key = (measurement.nodes, measurement.gpus, measurement.local_batch, measurement.passes)
        count, total = self._sums.get(key, (0, 0.0))
        self._sums[key] = (count + 1, total + math.log(measurement.step_s))
        if count & (count + 1) == 0:
            self._model = None

    def predict(self, nodes: ArrayLike, gpus: ArrayLike, local_batch: ArrayLike, passes: ArrayLike = 1) -> Prediction:
        """Return the seconds of steps. Arguments may be arrays. Without a measurement, only ratios are meaningful."""
        model = self._model or self._fit()
        prediction = model.predict(nodes, gpus, local_batch, passes)
        if not self._sums:
            return prediction
        asked = np.stack(np.broadcast_arrays(nodes, gpus, local_batch, passes), axis=-1).astype(np.float64)
        correction = np.exp(_likeness(asked, self._keys) @ self._corrections)
        return replace(prediction, step_s=prediction.step_s * correction)

    def _fit(self) -> ThroughputModel:
        merged = [
            Measurement(nodes, gpus, batch, math.exp(total / count), passes=passes)
            for (nodes, gpus, batch, passes), (count, total) in self._sums.items()
        ]
        self._model = model = fit(merged) if merged else _guess()
        if merged:
            self._keys = np.array(list(self._sums), dtype=np.float64)
            formula = model.predict(*self._keys.T).step_s
            differences = np.log([one.step_s for one in merged]) - np.log(formula)
            noise = [NOISE**2 / count for count, _ in self._sums.values()]
            self._corrections = np.linalg.solve(_likeness(self._keys, self._keys) + np.diag(noise), differences)
        return model


@cache
def _guess() -> ThroughputModel:
    """Return the model of jobs without measurements. It is cached, because there are many such jobs."""
    return fit([GUESS])


def _likeness(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the covariance of the differences between truth and formula, for each pair of sizes."""
    distance = _features(first)[..., None, :] - _features(second)
    likeness: FloatArray = MISFIT**2 * np.exp(-(distance**2).sum(axis=-1) / 2)
    return likeness


def _features(sizes: FloatArray) -> FloatArray:
    nodes, gpus, local_batch, passes = np.moveaxis(sizes, -1, 0)
    return np.stack(
        [np.log2(gpus) / ALIKE, np.log2(local_batch * passes) / ALIKE, NODE_DISTANCE * np.minimum(nodes, 2)], axis=-1
    )
