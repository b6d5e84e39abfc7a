"""Lines in which learners report their speed and the size that they could use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.metrics.learner_reports import HOLD, last_hint, parse_report, remaining_samples, throughputs
from ffdl_batch.domain.metrics.records import Measure, MetricRecord


def record(time_ms: int = 0, **values: Measure) -> MetricRecord:
    return MetricRecord("training-1", time_ms, 1, "", "any", values=values)


@pytest.mark.parametrize(
    ("line", "speed"),
    [
        ("ffdl-throughput: samples=12800 seconds=10", "1280.0"),
        ("ffdl-throughput:samples=.5   seconds=2.\t ", "0.25"),
        ("2026-11-30 12:00:00 INFO [rank0]: ffdl-throughput: samples=1e3 seconds=2.5e-1", "4000.0"),
        ("ffdl-scale: +1 ffdl-throughput: samples=1 seconds=2", "0.5"),
    ],
)
def test_report_of_samples_and_seconds_becomes_samples_per_second(line: str, speed: str) -> None:
    assert parse_report(line) == {"throughput": Measure("FLOAT", speed)}


def test_last_report_with_remaining_samples_counts() -> None:
    reports = [
        parse_report(f"ffdl-throughput: samples=10 seconds=2{rest}") or {}
        for rest in (" remaining=500", " \tremaining=4e2", "", " remaining=1e999")
    ]
    assert [sorted(values) for values in reports] == [["remaining", "throughput"]] * 2 + [["throughput"]] * 2
    assert remaining_samples([record(0, **values) for values in reports]) == 400.0
    assert remaining_samples([record(throughput=Measure("FLOAT", "5.0"))]) is None
    assert parse_report("ffdl-throughput: samples=10 seconds=2 remaining=-1") is None


@pytest.mark.parametrize(
    ("line", "change"), [("ffdl-scale: +2", 2), ("x ffdl-scale:-10", -10), ("ffdl-scale: hold", 0)]
)
def test_hint_becomes_change_of_learners(line: str, change: int) -> None:
    assert parse_report(line) == {"scale": Measure("INT", str(change))}


@pytest.mark.parametrize(
    "line",
    [
        "", "loss 0.5", "ffdl-", "ffdl-throughput:", "ffdl-throughput: samples=1",
        "ffdl-throughput: seconds=1 samples=1",
        "ffdl-throughput: samples=0 seconds=1", "ffdl-throughput: samples=1 seconds=0",
        "ffdl-throughput: samples=-1 seconds=1", "ffdl-throughput: samples=nan seconds=1",
        "ffdl-throughput: samples=1e300 seconds=1", "ffdl-throughput: samples=1e-300 seconds=1e9",
        "ffdl-throughput: samples=1 seconds=inf", "ffdl-throughput: samples=1e999 seconds=1",
        "ffdl-throughput: samples=1 seconds=1e999", "ffdl-throughput: samples=1e999 seconds=1e999",
        "ffdl-throughput: samples=1e200 seconds=1e-200", "ffdl-throughput: samples=1e-200 seconds=1e200",
        "ffdl-throughput: samples=1 seconds=1 more", "ffdl-throughput: samples=\u0661 seconds=1",
        f"ffdl-throughput: samples={'1' * 19} seconds=1", f"ffdl-throughput: samples=1 {' ' * 200}seconds=1",
        "ffdl-scale: 2", "ffdl-scale: +0", "ffdl-scale: -0", "ffdl-scale: +99999", "ffdl-scale: HOLD",
        "ffdl-scale: hold!",
        "ffdl-scale: +1.5", f"ffdl-scale: +1{'x' * 100_000}",
    ],
)  # fmt: skip
def test_line_that_is_no_report_is_ignored(line: str) -> None:
    assert parse_report(line) is None


@given(st.text(), st.sampled_from(["ffdl-throughput: samples=", "ffdl-scale: ", "ffdl-", ""]), st.text())
def test_report_of_any_line_is_a_finite_number_or_nothing(before: str, marker: str, after: str) -> None:
    found = parse_report(f"{before}{marker}{after}")
    read = [record(0, **found)] if found else []
    assert len(read) == len(throughputs(read)) + (last_hint(read) is not None)


def test_throughputs_are_those_of_records_with_usable_values() -> None:
    wrong = [Measure("FLOAT", text) for text in ("nan", "Infinity", "0", "-1", "x", "1e-10", "1e16")]
    records = [
        record(500, throughput=Measure("INT", "7")), *(record(throughput=one) for one in wrong),
        record(throughput=Measure("STRING", "7")), record(loss=Measure("FLOAT", "1")),
        record(2000, throughput=Measure("FLOAT", "8.5")),
    ]  # fmt: skip
    assert throughputs(records) == [(0.5, 7.0), (2.0, 8.5)]


def test_last_valid_hint_counts() -> None:
    hints = [record(scale=Measure("INT", text)) for text in ("2", "-1")]
    wrong = [record(scale=one) for one in (Measure("FLOAT", "0.5"), Measure("INT", "9999"), Measure("STRING", "x"))]
    assert last_hint([]) is None
    assert last_hint([*hints, *wrong]) == -1
    assert last_hint([*hints, record(scale=Measure("INT", "0"))]) == HOLD
