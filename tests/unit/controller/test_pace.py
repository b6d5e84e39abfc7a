"""How long a step takes, by the records of a learner's collector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.metrics.hang_detection import MAX_REPORTS, TAIL_BYTES, Pace, Step, intervals, median
from ffdl_batch.domain.metrics.records import Measure, MetricRecord, encode_record


def record(step: int, time_ms: int, axis: str = "iteration", group: str = "loss") -> MetricRecord:
    measure = Measure("INT", str(step))
    return MetricRecord("training-x", time_ms, step + 1, "", group, {axis: measure}, {"loss": Measure("FLOAT", "0.5")})


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([record(0, 1000), record(10, 3000), record(20, 5000)], [0.2, 0.2]),
        ([record(5, 1000), record(1, 1500, group="accuracy"), record(6, 3000)], [2.0]),
        ([record(5, 1000), record(6, 3000), record(0, 4000), record(1, 3500)], [2.0]),  # begun again; a clock set back
        ([record(1, 1000, "epoch"), record(2, 9000, "epoch")], []),
    ],
)
def test_step_intervals_divide_time_by_steps_within_group_and_run(
    records: list[MetricRecord], found: list[float]
) -> None:
    assert intervals(records) == found


@pytest.mark.parametrize("step", ["9" * 400, "9" * 5000, "\u00b2", "-1"])
def test_step_intervals_leave_out_step_that_is_not_number_in_range(step: str) -> None:
    records = [record(0, 1000), record(10, 3000)]
    odd = replace(records[0], time_ms=2000, etimes={"iteration": Measure("INT", step)})
    assert intervals([records[0], odd, records[1]]) == [0.2]


def test_step_median_needs_at_least_five_values() -> None:
    assert median([1.0, 1.0, 1.0, 1.0]) is None
    assert median([1.0, 9.0, 2.0, 3.0, 1.0]) == 2.0


def test_pace_reports_step_time_when_known_and_when_changed(tmp_path: Path) -> None:
    path = tmp_path / "learner-1.jsonl"
    pace = Pace(str(path))
    assert pace.changed_pace() is None
    path.write_text("".join(encode_record(record(step, step * 500)) for step in range(10)) + '{"torn')
    assert pace.changed_pace() == Step(0.5, steady=True)
    assert pace.changed_pace() is None
    path.write_text("".join(encode_record(record(step, step * 1500)) for step in range(10)))
    assert pace.changed_pace() == Step(1.5, steady=False)
    assert pace.changed_pace() == Step(1.5, steady=True)
    assert pace.changed_pace() is None


def test_pace_stops_reporting_if_step_time_never_settles(tmp_path: Path) -> None:
    """Each telling stands in a file that the daemon reads whole."""
    path = tmp_path / "learner-1.jsonl"
    pace = Pace(str(path))
    told = []
    for number in range(3 * MAX_REPORTS):
        path.write_text("".join(encode_record(record(n, n * (100 + 400 * (number % 2)))) for n in range(10)))
        told.append(pace.changed_pace())
    assert len([one for one in told if one is not None]) == MAX_REPORTS
    assert told[MAX_REPORTS - 1] == Step(0.0, steady=False)
    assert not any(told[MAX_REPORTS:])


def test_pace_uses_only_end_of_long_file(tmp_path: Path) -> None:
    path = tmp_path / "learner-1.jsonl"
    slow = "".join(encode_record(record(step, step * 9000)) for step in range(2000))
    fast = "".join(encode_record(record(step, 20_000_000 + step * 100)) for step in range(2000, 4000))
    path.write_text(slow + fast)
    assert path.stat().st_size > 2 * TAIL_BYTES
    news = Pace(str(path)).changed_pace()
    assert news is not None and news.step_s == pytest.approx(0.1)
