"""Predict the speed of a job at other sizes, for advice on its resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ffdl_batch.elastic.step_times import StepTimes
from ffdl_batch.elastic.throughput_model import Measurement, Size


class Speed(NamedTuple):
    """The predicted speed of a size."""

    samples_per_s: float
    relative_std: float
    extrapolates: bool
    exchange: float
    """Fraction of a step that one GPU with the same batch would not need."""


def predict_speeds(measured: Iterable[Measurement], sizes: Sequence[Size]) -> list[Speed]:
    """Return the speed of each size, from one or more measurements."""
    times = StepTimes()
    for one in measured:
        times.add(one)
    nodes, gpus, batches = np.array(sizes, dtype=np.float64).reshape(-1, 3).T
    found = times.predict(nodes, gpus, batches)
    alone = times.predict(1, 1, batches).step_s
    return [
        Speed(*values)
        for values in zip(
            (gpus * batches / found.step_s).tolist(),
            found.relative_std.tolist(),
            found.extrapolates.tolist(),
            np.maximum(0.0, 1 - alone / found.step_s).tolist(),
            strict=True,
        )
    ]
