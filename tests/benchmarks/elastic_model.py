"""Measure how well the throughput model of elastic jobs predicts step times, fitted on eight rows and on all rows.

The eight rows are chosen by nodes, GPUs and local batch alone. All other rows are predicted, those of uneven placements
too. The same model fitted on all rows stands beside it.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ffdl_batch.elastic.throughput_model import Measurement, Size, choose_profile, fit
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs

TABLE = Path(__file__).resolve().parents[1] / "data" / "elastic" / "throughput.csv"
AIM_PERCENT = 15.0
AIM_MS = 20.0


def read_measurements() -> dict[str, list[Measurement]]:
    """Return the rows of the table by the name of the model."""
    rows: dict[str, list[Measurement]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            nodes, gpus, local_batch = (int(row[name]) for name in ("nodes", "gpus", "local_batch"))
            times = float(row["step_s"]), float(row["sync_s"])
            rows.setdefault(row["model"], []).append(Measurement(nodes, gpus, local_batch, *times))
    return rows


def divide(rows: Sequence[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Return the profile, which is the first row of each chosen size, and all other rows."""
    first: dict[Size, int] = {}
    for number, row in enumerate(rows):
        first.setdefault(Size(row.nodes, row.gpus, row.local_batch), number)
    chosen = [first[size] for size in choose_profile(list(first))]
    return [rows[number] for number in chosen], [row for number, row in enumerate(rows) if number not in chosen]


def mean_error_percent(known: Sequence[Measurement], predicted: Sequence[Measurement]) -> float:
    """Return the mean absolute error of the step times predicted by a model that is fitted on the known rows."""
    nodes, gpus, batch, measured = np.array([(row.nodes, row.gpus, row.local_batch, row.step_s) for row in predicted]).T
    return float(100 * np.mean(np.abs(fit(known).predict(nodes, gpus, batch).step_s / measured - 1)))


def measure_elastic_model(knobs: Knobs) -> list[Figure]:
    """Return the errors of both fits for each model, and how long it takes to fit 30 rows."""
    figures, times_ms = [], []
    for name, rows in read_measurements().items():
        profile, rest = divide(rows)
        for known, who, aim in ((profile, f"{len(profile)} rows", f"<= {AIM_PERCENT:g}"), (rows, "all rows", "")):
            measure = f"{name}: mean error of the step time, {len(rest)} rows"
            figures.append(Figure("elastic-model", measure, who, "%", [mean_error_percent(known, rest)], aim))
        for _ in range(knobs.repeat):
            began = time.perf_counter()
            fit(rows[:: len(rows) // 30][:30])
            times_ms.append(1e3 * (time.perf_counter() - began))
    return [*figures, Figure("elastic-model", "fit of 30 rows", "ffdl", "ms", times_ms, f"<= {AIM_MS:g}")]
