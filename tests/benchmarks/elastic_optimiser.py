"""Measure the optimiser of elastic jobs: its time on one core, its value compared with greedy, and its gap with types.

Two kinds of values: throughput that falls at the boundaries of nodes, and the worst case, in which all jobs are alike
and linear. Then every size is in some best allocation, and the dynamic programme has to add up all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ffdl_batch.elastic.gpu_types import allocate_types
from ffdl_batch.elastic.job_values import Floats
from ffdl_batch.elastic.optimiser import Allocation, allocate, allocate_greedily
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs

NAME = "elastic-optimiser"
SIZES = ((400, 400, ""), (1000, 4000, "<= 1"), (10_000, 10_000, "<= 20"))
"""Jobs, GPUs, and the limit in seconds."""
MOST = 64
"""GPUs of one job."""
NODE = 4
TYPES, TYPE_GPUS = ("a", "b", "c"), (1000, 1000, 2000)
SEED = 1


def node_boundaries(jobs: int, chance: np.random.Generator) -> list[Floats]:
    """Throughput that grows like a power of the GPUs, and is lower on more than one node."""
    sizes = np.arange(MOST + 1)
    speed, growth, network = chance.uniform((1.0, 0.4, 0.5), (10.0, 1.0, 1.0), (jobs, 3)).T[:, :, None]
    return list(speed * sizes**growth * np.where(sizes > NODE, network, 1.0))


def alike_and_linear(jobs: int, _: np.random.Generator) -> list[Floats]:
    """The same throughput per GPU for all jobs and sizes."""
    return [np.arange(MOST + 1.0)] * jobs


def measure_elastic_optimiser(knobs: Knobs) -> list[Figure]:
    """Return the seconds of each size and kind, the value of greedy, and the gap with several types."""
    figures = []
    with _one_core():
        for kind, make in (("node boundaries", node_boundaries), ("alike and linear", alike_and_linear)):
            for jobs, gpus, limit in SIZES:
                what = f"{jobs:,} jobs on {gpus:,} GPUs, {kind}"
                values = make(jobs, np.random.default_rng(SEED))
                best, seconds, processor = _timed(allocate, values, gpus, knobs.rounds)
                greedy, greedy_seconds, _ = _timed(allocate_greedily, values, gpus, knobs.rounds)
                figures += [
                    Figure(NAME, what, "ffdl", "s", seconds, limit),
                    Figure(NAME, what, "ffdl, processor", "s", processor),
                    Figure(NAME, what, "greedy", "s", greedy_seconds),
                    Figure(NAME, f"{what}, value", "greedy / ffdl", "", [greedy.value / best.value]),
                ]
        return figures + _with_types(knobs)


def _with_types(knobs: Knobs) -> list[Figure]:
    chance = np.random.default_rng(SEED)
    values = {name: node_boundaries(SIZES[1][0], chance) for name in TYPES}
    what = f"{SIZES[1][0]:,} jobs on {sum(TYPE_GPUS):,} GPUs of {len(TYPES)} types"
    seconds = []
    for _ in range(knobs.rounds):
        began = time.perf_counter()
        found = allocate_types(values, dict(zip(TYPES, TYPE_GPUS, strict=True)))
        seconds.append(time.perf_counter() - began)
    return [
        Figure(NAME, what, "ffdl", "s", seconds),
        Figure(NAME, f"{what}, gap to the upper bound", "ffdl", "%", [100 * found.gap / found.value]),
    ]


def _timed(
    allocator: Callable[[Sequence[Floats], int], Allocation], values: Sequence[Floats], gpus: int, rounds: int
) -> tuple[Allocation, list[float], list[float]]:
    """Return what was allocated, and the seconds and processor seconds of each round."""
    seconds, processor = [], []
    for _ in range(rounds):
        began, used = time.perf_counter(), time.process_time()
        allocation = allocator(values, gpus)
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    return allocation, seconds, processor


@contextmanager
def _one_core() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
