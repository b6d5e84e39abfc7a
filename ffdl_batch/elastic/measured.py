"""Read measured step times, numbers of steps and arrivals from CSV files, and simulate with them.

`throughput.csv` has the columns model, nodes, gpus, gpus_per_node, local_batch, step_s and sync_s; `convergence.csv`
has model, batch and iterations; arrivals have job, submitted_s, model, gpus and batch.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from ffdl_batch.elastic.job_values import Floats
from ffdl_batch.elastic.simulator import Arrival, Model
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """Steps on one number of GPUs, by the local batch."""

    local_batch: Floats
    step_s: Floats
    sync_s: Floats


class MeasuredTimes:
    """Step times as they were measured, with the fastest placement on as few nodes as possible.

    Between measured local batches, times are interpolated. Beyond the largest one, gradients are accumulated. A number
    of GPUs that was not measured has the times of the nearest one that was. A job may leave GPUs unused.
    """

    def __init__(self, curves: Mapping[str, Mapping[int, _Curve]]) -> None:
        self._curves = curves
        self.step_s = cache(self._step_s)

    def local_batches(self, model: str) -> tuple[int, int]:
        """Return the smallest and the largest measured batch of one GPU."""
        curves = self._curves[model].values()
        return min(int(one.local_batch[0]) for one in curves), max(int(one.local_batch[-1]) for one in curves)

    def _step_s(self, model: str, gpus: int, batch: int) -> float:
        """Return the seconds of a step on at most so many GPUs, inf if the local batch is too small for any number."""
        return min((self._exact_step_s(model, used, batch) for used in range(1, gpus + 1)), default=math.inf)

    @cache  # noqa: B019 - there are few of these objects, and they live as long as the program
    def _exact_step_s(self, model: str, gpus: int, batch: int) -> float:
        curves = self._curves[model]
        curve = curves[min(curves, key=lambda measured: (abs(measured - gpus), measured))]
        smallest, largest = self.local_batches(model)
        share = math.ceil(batch / gpus)
        if share < smallest:
            return math.inf
        passes = math.ceil(share / largest)
        local = math.ceil(share / passes)
        step_s, sync_s = (float(np.interp(local, curve.local_batch, times)) for times in (curve.step_s, curve.sync_s))
        return (passes - 1) * (step_s - sync_s) + step_s


def read_times(path: Path) -> MeasuredTimes:
    """Read step times. Repeated measurements are averaged."""
    rows: defaultdict[tuple[str, int, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in _rows(path):
        nodes, gpus = int(row["nodes"]), int(row["gpus"])
        node_gpus = 4
        if nodes == math.ceil(gpus / node_gpus):
            key = (row["model"], gpus, int(row["local_batch"]), row["gpus_per_node"])
            rows[key].append((float(row["step_s"]), float(row["sync_s"])))
    fastest: defaultdict[tuple[str, int], dict[int, tuple[float, float]]] = defaultdict(dict)
    for (model, gpus, local, _), times in rows.items():
        mean = (math.fsum(step for step, _ in times) / len(times), math.fsum(sync for _, sync in times) / len(times))
        known = fastest[model, gpus]
        known[local] = min(known.get(local, mean), mean)
    curves: defaultdict[str, dict[int, _Curve]] = defaultdict(dict)
    for (model, gpus), by_batch in fastest.items():
        batches = sorted(by_batch)
        steps, syncs = zip(*(by_batch[batch] for batch in batches), strict=True)
        curves[model][gpus] = _Curve(np.array(batches, dtype=np.float64), np.array(steps), np.array(syncs))
    return MeasuredTimes(curves)


def read_models(path: Path, times: MeasuredTimes) -> dict[str, Model]:
    """Read numbers of steps."""
    iterations: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for row in _rows(path):
        iterations[row["model"]][int(row["batch"])] = int(row["iterations"])
    return {name: Model(steps, *times.local_batches(name)) for name, steps in iterations.items()}


def read_arrivals(path: Path) -> list[Arrival]:
    """Read arrivals."""
    return [
        Arrival(row["job"], float(row["submitted_s"]), row["model"], int(row["gpus"]), int(row["batch"]))
        for row in _rows(path)
    ]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
