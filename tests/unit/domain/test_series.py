"""Curves: few points of many, what all of them came to, rates of counters."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from ffdl_batch.domain.metrics.records import Measure, MetricRecord
from ffdl_batch.domain.metrics.series import MOST_POINTS, Curves, Name, Series, sparkline
from ffdl_batch.domain.metrics.usage import GpuUse, UsageSample, Use


def record(time_ms: int = 0, group: str = "g", subid: str = "", **etimes: str) -> MetricRecord:
    axes = {name: Measure("INT", value) for name, value in etimes.items()}
    values = {"loss": Measure("FLOAT", "0.5"), "words": Measure("STRING", "7")}
    return MetricRecord("t", time_ms, 1, subid, group, axes, values)


def test_series_thins_points_evenly_and_keeps_exact_statistics() -> None:
    rng = random.Random(7)
    values = [rng.random() for _ in range(50_000)]
    series = Series(Name("j", 1, "g", "v"))
    for x, y in enumerate(values):
        series.add(x, y)
    assert (series.count, series.last, series.last_x) == (50_000, values[-1], 49_999)
    assert (series.least, series.most) == (min(values), max(values))
    points = list(series.points)
    assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS + 2
    assert [points[0], points[-1]] == [(0.0, values[0]), (49_999.0, values[-1])]
    assert all(values[int(x)] == y for x, y in points)
    assert len({b[0] - a[0] for a, b in pairwise(points[:-1])}) == 1


def test_series_counts_non_finite_values_without_plotting_them() -> None:
    series = Series(Name("j", 1, "g", "v"))
    for y in (math.nan, 1.0, math.inf, 2.0, -math.inf):
        series.add(series.count, y)
    assert (series.count, series.last, series.points) == (5, -math.inf, [(1, 1.0), (3, 2.0)])
    assert (series.least, series.most) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("axis", "etimes", "found"),
    [
        ("", {"epoch": "2", "iteration": "9"}, ("iteration", 9.0)),
        ("", {"epoch": "2"}, ("epoch", 2.0)),
        ("epoch", {"epoch": "2", "iteration": "9"}, ("epoch", 2.0)),
        ("time", {"iteration": "9"}, ("time", 0.0)),
        ("", {"iteration": "x"}, ("time", 0.0)),
        ("other", {"iteration": "9"}, ("time", 0.0)),
    ],
)
def test_curves_choose_requested_or_best_axis(axis: str, etimes: dict[str, str], found: tuple[str, float]) -> None:
    curves = Curves(axis)
    curves.add_record("j", 1, record(5000, **etimes))
    (series,) = curves
    assert (series.name.axis, series.last_x) == found


def test_curves_measure_time_from_first_record_of_job_and_separate_groups_and_sub_runs() -> None:
    curves = Curves()
    for at in (5000, 6500):
        curves.add_record("j", 1, record(at))
    curves.add_record("k", 1, record(9000))
    assert [series.points for series in curves] == [[(0.0, 0.5), (1.5, 0.5)], [(0.0, 0.5)]]
    grouped = Curves()
    for group, subid in (("a", ""), ("a", "1"), ("", "")):
        grouped.add_record("j", 1, record(group=group, subid=subid))
    assert [series.name.label for series in grouped] == ["a/loss", "1/a/loss", "loss"]


def usage(at: float, cpu_s: float, written: int) -> UsageSample:
    use = Use(cpu_s, 100, None, None, written)
    return UsageSample(at, "n", None, {"2": use}, (GpuUse("0", 2, 0.25, 5, 10), GpuUse("1", 2)), "job", int(at), 0)


def test_curves_convert_usage_counters_to_rates_across_counter_reset() -> None:
    curves = Curves()
    for at, cpu_s in ((100.0, 5.0), (110.0, 25.0), (120.0, 1.0), (130.0, 11.0)):
        curves.add_sample("j", 1, usage(at, cpu_s, 0))
    found = {series.name.value: series for series in curves}
    assert found["cpu"].points == [(10.0, 2.0), (30.0, 1.0)]
    assert found["memory"].count == 4 and found["network received"].last == 1.0
    assert found["gpu 0"].last == 25.0 and found["gpu 0 memory"].last == 5 and "gpu 1" not in found
    assert "storage read" not in found and {series.name.learner for series in curves} == {0, 2}


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 5, ""),
        ([1.0], 5, "▄"),
        ([2.0, 2.0], 5, "▄▄"),
        ([0.0, 1.0], 5, "▁█"),
        ([float(i) for i in range(8)], 8, "▁▂▃▄▅▆▇█"),
        ([0.0] * 50 + [1.0] * 50, 4, "▁▁██"),
    ],
)
def test_sparkline_scales_and_averages_values_to_width(values: list[float], width: int, line: str) -> None:
    assert sparkline(values, width) == line
