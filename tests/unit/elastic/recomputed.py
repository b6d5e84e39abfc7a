"""Recompute when jobs end from a timeline and the measured tables alone, by the rules of tests/data/elastic/README.md.

Nothing of ffdl_batch is imported: the simulator is checked against this.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "data" / "elastic"
RESTART_S, NODE_GPUS = 30.0, 4
Row = Mapping[str, str]


def rows_of(path: Path) -> list[Row]:
    """Return the lines of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def iterations() -> dict[tuple[str, int], int]:
    """Return the iterations of each model with each batch."""
    return {(row["model"], int(row["batch"])): int(row["iterations"]) for row in rows_of(DATA / "convergence.csv")}


@cache
def measured() -> dict[str, dict[int, dict[int, tuple[float, float]]]]:
    """Return the step and the exchange by model, GPUs and local batch, of the fastest placement on the fewest nodes."""
    placements: defaultdict[tuple[str, int, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows_of(DATA / "throughput.csv"):
        if int(row["nodes"]) == math.ceil(int(row["gpus"]) / NODE_GPUS):
            key = (row["model"], int(row["gpus"]), int(row["local_batch"]), row["gpus_per_node"])
            placements[key].append((float(row["step_s"]), float(row["sync_s"])))
    table: dict[str, dict[int, dict[int, tuple[float, float]]]] = {}
    for (model, gpus, local, _), times in placements.items():
        step_s, sync_s = (sum(column) / len(times) for column in zip(*times, strict=True))
        sizes = table.setdefault(model, {}).setdefault(gpus, {})
        sizes[local] = min(sizes.get(local, (math.inf, 0.0)), (step_s, sync_s))
    return table


@cache
def speed(model: str, gpus: int, batch: int) -> float:
    """Return the part of a job that is done in a second. GPUs may stay idle."""
    return max(_speed_with_all(model, used, batch) for used in range(1, gpus + 1))


def _speed_with_all(model: str, gpus: int, batch: int) -> float:
    table = measured()[model]
    local = math.ceil(batch / gpus)
    if local < min(min(sizes) for sizes in table.values()):
        return 0.0
    largest = max(max(sizes) for sizes in table.values())
    passes = math.ceil(local / largest)
    sizes = table[min(table, key=lambda known: (abs(known - gpus), known))]
    step_s, sync_s = _between(sizes, math.ceil(local / passes))
    return 1 / (iterations()[model, batch] * ((passes - 1) * (step_s - sync_s) + step_s))


def _between(sizes: Mapping[int, tuple[float, float]], local: int) -> tuple[float, float]:
    known = sorted(sizes)
    if local <= known[0] or local >= known[-1]:
        return sizes[known[0] if local <= known[0] else known[-1]]
    above = next(one for one in known if one >= local)
    below = known[known.index(above) - 1]
    part = (local - below) / (above - below)
    (step, sync), (next_step, next_sync) = sizes[below], sizes[above]
    return step + part * (next_step - step), sync + part * (next_sync - sync)


def completion_times(timeline: Iterable[Row], arrivals: Iterable[Row]) -> dict[str, float]:
    """Return the seconds from submission to end of each job that reaches progress 1.

    Raises AssertionError for a change that is not at a multiple of 60 s, for GPUs that the pool does not have, and for
    a job that has GPUs before its submission or after its end.
    """
    jobs = {row["job"]: row for row in arrivals}
    changes: defaultdict[str, list[tuple[float, int, int]]] = defaultdict(list)
    for row in timeline:
        changes[row["job"]].append((float(row["time_s"]), int(row["gpus"]), int(row["batch"])))
    ends: dict[str, float] = {}
    for job, own in changes.items():
        done = 0.0
        assert own[0][0] >= float(jobs[job]["submitted_s"])
        for (began, gpus, batch), (until, _, _) in pairwise([*own, (math.inf, 0, 0)]):
            assert began % 60 == 0 and until > began and not (gpus and job in ends)
            if not gpus:
                continue
            pace = speed(jobs[job]["model"], gpus, batch)
            left_s = (1 - done) / pace
            if began + RESTART_S + left_s <= until:
                ends[job] = began + RESTART_S + left_s
            done += pace * max(0.0, until - began - RESTART_S)
    _check_pool(changes, ends)
    return {job: end - float(jobs[job]["submitted_s"]) for job, end in ends.items()}


def _check_pool(changes: Mapping[str, list[tuple[float, int, int]]], ends: Mapping[str, float], pool: int = 64) -> None:
    steps: list[tuple[float, int]] = []
    for job, own in changes.items():
        last = (ends.get(job, math.inf), 0, 0)
        counted = [(0.0, 0, 0), *(one for one in own if one[0] < last[0]), last]
        steps += [(later, after - before) for (_, before, _), (later, after, _) in pairwise(counted)]
    used = 0
    for _, difference in sorted(steps):  # at equal times, GPUs are returned first
        used += difference
        assert 0 <= used <= pool
