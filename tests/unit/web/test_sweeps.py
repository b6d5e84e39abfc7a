"""The best value of a metric for each job, and the points of a sweep."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.metrics.series import Name, Series
from ffdl_batch.web.sweeps import Best, Choice, best_of, choose, ranked, scatter
from tests.unit.client.fake_daemon import make_job


def series(job: str, label: str, *ys: float, learner: int = 1) -> Series:
    made = Series(Name(job, learner, "", label, "step"))
    for x, y in enumerate(ys):
        made.add(float(x), y)
    return made


def jobs(**values: str) -> list[JobView]:
    return [make_job(job_id, array_values={"lr": value}) for job_id, value in values.items()]


@pytest.mark.parametrize(
    ("metric", "best", "chosen", "is_least"),
    [
        ("", "", "val_loss", True),
        ("accuracy", "", "accuracy", False),
        ("accuracy", "least", "accuracy", True),
        ("val_loss", "most", "val_loss", False),
        ("<b>", "<i>", "val_loss", True),
    ],
)
def test_metric_is_chosen_by_name(metric: str, best: str, chosen: str, is_least: bool) -> None:
    curves = [series("a", "val_loss", 1.0), series("a", "accuracy", 1.0), series("b", "val_loss", 1.0)]
    assert choose(curves, metric, best) == Choice(chosen, is_least, ("val_loss", "accuracy"))
    assert choose([], metric, best) == Choice()


def test_best_value_is_over_all_learners_and_finite() -> None:
    curves = [
        series("a", "loss", 3.0, 1.0, 2.0), series("a", "loss", 0.5, learner=2), series("b", "loss", math.nan),
        series("c", "loss", 2.0, -math.inf, 1.5), series("c", "other", 0.0),
    ]  # fmt: skip
    assert best_of(curves, Choice("loss", True)) == {"a": Best(0.5, 0.0, "step"), "c": Best(1.5, 2.0, "step")}
    assert best_of(curves, Choice("loss", False))["a"] == Best(3.0, 0.0, "step")
    assert best_of([], Choice()) == {}


def test_best_job_is_first_and_jobs_without_metric_are_last() -> None:
    found = jobs(a="1", b="2", c="3")
    best = {"a": Best(5.0, 0.0, "step"), "c": Best(1.0, 0.0, "step")}
    assert [job.id for job in ranked(found, best, Choice("loss", True))] == ["c", "a", "b"]
    assert [job.id for job in ranked(found, best, Choice("loss", False))] == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("values", "xs", "is_log", "names"),
    [
        (("1", "2"), [1.0, 2.0], False, []),
        (("1e-4", "0.1"), [0.0001, 0.1], True, []),
        (("0", "1000"), [0.0, 1000.0], False, []),
        (("adam", "0.1"), [0.0, 1.0], False, ["adam", "0.1"]),
        (("nan", "1"), [0.0, 1.0], False, ["nan", "1"]),
        (("-1", "200"), [-1.0, 200.0], False, []),
    ],
)
def test_points_have_values_of_sweep(values: tuple[str, str], xs: list[float], is_log: bool, names: list[str]) -> None:
    found = jobs(a=values[0], b=values[1], unmeasured="7")
    best = {"a": Best(5.0, 0.0, "step"), "b": Best(1.0, 0.0, "step")}
    charts: Any = scatter(found, best, Choice("loss", True))["charts"]
    (chart,) = charts
    assert chart["title"] == "Least loss by lr"
    assert ([curve["xs"][0] for curve in chart["curves"]], chart["is_log_x"], chart["names"]) == (xs, is_log, names)
    assert [curve["ys"] for curve in chart["curves"]] == [[5.0], [1.0]]


def test_name_with_one_value_has_no_chart() -> None:
    best = {"a": Best(5.0, 0.0, "step"), "b": Best(1.0, 0.0, "step")}
    assert scatter(jobs(a="1", b="1"), best, Choice("loss", True)) == {"charts": [], "left_out": 0}
