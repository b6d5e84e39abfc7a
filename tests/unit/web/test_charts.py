"""Curves with few points that still show the extremes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.metrics.series import Curves, Name, Series
from ffdl_batch.web.charts import MOST_CURVES, charts_of, thinned


def test_thinned_keeps_short_curves() -> None:
    points = [(float(x), float(x % 7)) for x in range(100)]
    assert thinned(points, 100) == points


def test_thinned_keeps_spike() -> None:
    points = [(float(x), 1.0) for x in range(5000)]
    points[1234] = (1234.0, 99.0)
    points[4000] = (4000.0, -99.0)
    few = thinned(points, 100)
    assert len(few) <= 100
    assert {points[0], points[1234], points[4000], points[-1]} <= set(few)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400), st.integers(4, 60))
def test_thinned_returns_points_in_order_with_both_extremes(ys: list[float], most: int) -> None:
    points = [(float(x), y) for x, y in enumerate(ys)]
    few = thinned(points, most)
    assert len(few) <= max(most, 2)
    assert few == sorted(set(few))
    assert set(few) <= set(points)
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert {min(ys), max(ys)} == {min(y for _, y in few), max(y for _, y in few)}


def made(count: int) -> list[Series]:
    curves = []
    for number in range(count):
        one = Series(Name(f"training-{number:09d}", 1, "train", "loss", "iteration"))
        one.add(0.0, 1.0)
        one.add(1.0, 0.5)
        curves.append(one)
    return curves


def test_charts_name_curves_by_their_jobs() -> None:
    found = charts_of(made(2), {"training-000000000": "lr=1", "training-000000001": "lr=2"})
    charts: Any = found["charts"]
    (chart,) = charts
    assert (chart["title"], chart["axis"]) == ("train/loss by iteration", "iteration")
    assert [(curve["label"], curve["xs"], curve["ys"]) for curve in chart["curves"]] == [
        ("lr=1", [0.0, 1.0], [1.0, 0.5]),
        ("lr=2", [0.0, 1.0], [1.0, 0.5]),
    ]
    assert found["left_out"] == 0


def test_charts_report_curves_that_are_left_out() -> None:
    found = charts_of(made(MOST_CURVES + 3))
    assert found["left_out"] == 3


def test_charts_of_no_curves_are_empty() -> None:
    assert charts_of(list(Curves())) == {"charts": [], "left_out": 0}
