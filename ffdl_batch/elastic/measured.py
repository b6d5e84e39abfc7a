"""Read measured step times and numbers of steps from CSV files, and simulate with them.

The table of step times has the columns TIMES, and that of the numbers of steps has STEPS. Other columns are ignored.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.elastic.csv_tables import read_rows
from ffdl_batch.elastic.job_values import Floats
from ffdl_batch.elastic.simulator import Model
from ffdl_batch.host.fast_dataclass import dataclass

TIMES = ("model", "nodes", "gpus", "gpus_per_node", "local_batch", "step_s", "sync_s")
STEPS = ("model", "batch", "iterations")
MOST_GPUS = 100_000
MOST_BATCH = 10**9
MOST_ITERATIONS = 10**12
LONGEST_STEP_S = 1e5
SHORTEST_STEP_S = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """Step times on one number of GPUs, by local batch."""

    local_batch: Floats
    step_s: Floats
    sync_s: Floats


class MeasuredTimes:
    """Measured step times of the fastest placement on as few nodes as possible.

    Between measured local batches, times are interpolated. Beyond the largest one, gradients are accumulated. A number
    of GPUs without measurements has the times of the nearest measured number. A job may leave GPUs unused.
    """

    def __init__(self, curves: Mapping[str, Mapping[int, _Curve]]) -> None:
        self._curves = curves
        self.step_s = cache(self._step_s)

    @property
    def models(self) -> frozenset[str]:
        """Return the names of the measured models."""
        return frozenset(self._curves)

    def local_batches(self, model: str) -> tuple[int, int]:
        """Return the smallest and the largest measured batch of one GPU."""
        curves = self._curves[model].values()
        return min(int(one.local_batch[0]) for one in curves), max(int(one.local_batch[-1]) for one in curves)

    def _step_s(self, model: str, gpus: int, batch: int) -> float:
        """Return the seconds of a step on at most `gpus` GPUs; inf if the local batch is too small for any number."""
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


def read_times(path: Path, node_gpus: int = 4) -> MeasuredTimes:
    """Read step times. Repeated measurements are averaged. Raises DamagedTable and OSError."""
    rows: defaultdict[tuple[str, int, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in read_rows(path, TIMES):
        nodes, gpus = row.whole("nodes", 1, MOST_GPUS), row.whole("gpus", 1, MOST_GPUS)
        if nodes > gpus:
            raise row.error(f"{counted(gpus, 'GPU')} cannot be on {nodes} nodes", "correct one of them")
        step_s, sync_s = row.number("step_s", SHORTEST_STEP_S, LONGEST_STEP_S), row.number("sync_s", 0, LONGEST_STEP_S)
        if sync_s >= step_s:
            raise row.error(f"sync_s is {sync_s:g}, but the whole step takes only {step_s:g} s", "correct one of them")
        key = (row.text("model"), gpus, row.whole("local_batch", 1, MOST_BATCH), row.cells["gpus_per_node"])
        if nodes == math.ceil(gpus / node_gpus):
            rows[key].append((step_s, sync_s))
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
    """Read numbers of steps. Raises DamagedTable and OSError."""
    iterations: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for row in read_rows(path, STEPS):
        name, batch = row.text("model"), row.whole("batch", 1, MOST_BATCH)
        if name not in times.models:
            raise row.error(f"model {quoted(name)} has no step times", "measure it, or remove the line")
        if batch < (least := times.local_batches(name)[0]):
            cause = f"batch {batch} is smaller than {least}, the smallest measured local_batch of {quoted(name)}"
            raise row.error(cause, "measure it, or remove the line")
        if batch in iterations[name]:
            raise row.error(f"batch {batch} of model {quoted(name)} occurs twice", "remove one of the lines")
        iterations[name][batch] = row.whole("iterations", 1, MOST_ITERATIONS)
    return {name: Model(steps, *times.local_batches(name)) for name, steps in iterations.items()}
