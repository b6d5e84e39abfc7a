"""What the incidents of a period come to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain import faults_report
from ffdl_batch.domain.faults_report import BINS, Scope, make_report
from ffdl_batch.domain.incident_view import IncidentRow

HOUR = 3600.0
SCOPE = Scope(since=100 * HOUR, until=124 * HOUR, as_of=124 * HOUR, rows_after=100 * HOUR)


def row(
    hour: float, kind: str = "user.exit", job: str = "a", noticed: float | None = None, **more: object
) -> IncidentRow:
    """It happened at `hour`, and was noticed then or at `noticed`."""
    seen = hour if noticed is None else noticed
    made = IncidentRow(
        job, 1, "end-0", kind, kind.partition(".")[0], "t", "c", hour * HOUR, seen * HOUR, "C201", "m", user="ada"
    )
    return replace(made, **more)  # type: ignore[arg-type]


def test_faults_report_counts_noticed_incidents_and_trends_by_occurrence() -> None:
    rows = [row(75), row(77), row(99, job="late", noticed=101), row(100), row(101), row(124), row(125)]
    found = make_report(rows, SCOPE)
    assert (found.incidents, found.happened, found.before) == (3, 2, 3)
    assert [one.at / HOUR for one in found.rows] == [99, 101, 124]
    assert [one.incidents for one in found.bins] == [0, 1, *[0] * (BINS - 3), 1]
    assert sum(one.before for one in found.bins) == 3


def test_faults_report_rows_start_at_requested_time() -> None:
    rows = [row(hour) for hour in (90, 101, 110, 123)]
    assert [one.at / HOUR for one in make_report(rows, replace(SCOPE, rows_after=80 * HOUR)).rows] == [
        90,
        101,
        110,
        123,
    ]
    assert [one.at / HOUR for one in make_report(rows, replace(SCOPE, rows_after=105 * HOUR)).rows] == [110, 123]
    assert replace(SCOPE, rows_after=80 * HOUR).first == 76 * HOUR
    assert replace(SCOPE, rows_after=10 * HOUR).first == 10 * HOUR


def test_faults_report_ranks_causes_nodes_and_users_with_previous_period() -> None:
    rows = [
        row(80, "node.gpu", nodes=("n1",)),
        row(101, "node.gpu", nodes=("n1", "n2"), lost_gpu_hours=3.0),
        row(102, "node.failed", nodes=("n1",), lost_gpu_hours=1.0),
        row(103, "user.exit", nodes=("n9",), user="bob"),
    ]
    found = make_report(rows, SCOPE)
    assert [(one.name, one.incidents, one.before, one.lost_gpu_hours) for one in found.nodes] == [
        ("n1", 2, 1, 2.5),
        ("n2", 1, 0, 1.5),
    ]
    assert [(one.name, one.incidents) for one in found.users] == [("ada", 2), ("bob", 1)]
    assert next((one.name, one.title) for one in found.causes) == ("node.gpu", "a GPU or its links failed")
    assert {one.name: one.incidents for one in found.origins} == {"node": 2, "user": 1}
    assert found.lost_gpu_hours == 4.0


def test_faults_report_counts_all_incidents_but_limits_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_report, "MOST_ROWS", 3)
    found = make_report([row(101 + n, job=str(n)) for n in range(5)], SCOPE)
    assert (found.incidents, found.jobs, found.left_out) == (5, 5, 2)
    assert [one.job for one in found.rows] == ["2", "3", "4"]


def test_faults_report_is_empty_without_incidents() -> None:
    found = make_report([], SCOPE)
    assert (found.incidents, found.rows, found.causes, len(found.bins)) == (0, (), (), BINS)
