"""Reports of a period: shares and distributions in the form of the published figures, and incidents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.incidents import report
from ffdl_batch.domain.incidents.incident import IncidentRow
from ffdl_batch.domain.incidents.report import BINS, Scope, make_report
from ffdl_batch.domain.metrics.usage_report import (
    PUBLISHED_FRAMEWORKS,
    Efficiency,
    Share,
    distribution,
    kind_of_gpus,
    kind_of_learners,
    shares,
)


def test_distribution_counts_each_time_once_with_exact_quantiles() -> None:
    found = distribution("queueing", [16.0, 0.5, 17.0, 1.0, 99999.0])
    assert sum(found.counts) == found.count == 5
    assert (found.counts[0], found.counts[-1]) == (2, 1)  # 0.5 and 1.0: bounds belong to the bin below
    assert found.quantiles_s == (16.0, 99999.0, 99999.0, 99999.0)
    assert (found.longest_s, found.published_s, found.within) == (99999.0, 16.0, 60.0)
    none = distribution("processing", [])
    assert (none.count, sum(none.counts), none.quantiles_s, none.within, none.published_s) == (0, 0, (), None, None)


@pytest.mark.parametrize("count", [1, 2, 10, 99, 1000])
def test_distribution_quantiles_are_smallest_values_covering_their_share(count: int) -> None:
    times = [float(n) for n in range(1, count + 1)]
    for share, value in zip((0.5, 0.9, 0.95, 0.99), distribution("download", times).quantiles_s, strict=True):
        assert sum(one <= value for one in times) >= share * count > sum(one < value for one in times)


def test_shares_list_published_share_beside_measured_share() -> None:
    assert shares({"tensorflow": 1, "pytorch": 3}, PUBLISHED_FRAMEWORKS) == (
        Share("pytorch", 3, 75.0, None),
        Share("tensorflow", 1, 25.0, 69.3),
        Share("caffe", 0, 0.0, 17.7),
        Share("torch", 0, 0.0, 11.1),
    )


@pytest.mark.parametrize(
    ("gpus", "kind"),
    [(0, "none"), (0.5, "less than 1"), (1, "1"), (1.5, "2"), (2, "2"), (3, "3 or more"), (8, "3 or more")],
)
def test_kind_of_gpus_groups_learners_by_gpu_count(gpus: float, kind: str) -> None:
    assert kind_of_gpus(gpus) == kind


@pytest.mark.parametrize(
    ("learners", "kind"), [(1, "1"), (2, "2"), (3, "3 to 4"), (4, "3 to 4"), (5, "5 to 8"), (9, "9 to 16")]
)
def test_kind_of_learners_groups_jobs_by_learner_count(learners: int, kind: str) -> None:
    assert kind_of_learners(learners) == kind


def test_efficiency_has_no_utilisation_without_samples() -> None:
    assert (Efficiency(10.0).utilisation, Efficiency().covered) == (None, None)
    seen = Efficiency(gpu_hours=10.0, sampled_gpu_hours=5.0, used_gpu_hours=4.0)
    assert (seen.utilisation, seen.covered) == (0.8, 0.5)


HOUR = 3600.0
SCOPE = Scope(since=100 * HOUR, until=124 * HOUR, as_of=124 * HOUR, rows_after=100 * HOUR)


def row(
    hour: float, kind: str = "user.exit", job: str = "a", noticed: float | None = None, **more: object
) -> IncidentRow:
    """It happened at `hour`, and was noticed then or at `noticed`."""
    at, seen = hour * HOUR, (hour if noticed is None else noticed) * HOUR
    made = IncidentRow(job, 1, "end-0", kind, kind.partition(".")[0], "t", "c", at, seen, "C201", "m", user="ada")
    return replace(made, **more)  # type: ignore[arg-type]


def test_faults_report_counts_noticed_incidents_and_trends_by_occurrence() -> None:
    rows = [row(75), row(77), row(99, job="late", noticed=101), row(100), row(101), row(124), row(125)]
    found = make_report(rows, SCOPE)
    assert (found.incidents, found.happened, found.before) == (3, 2, 3)
    assert [one.at / HOUR for one in found.rows] == [99, 101, 124]
    assert [one.incidents for one in found.bins] == [0, 1, *[0] * (BINS - 3), 1]
    assert sum(one.before for one in found.bins) == 3
    none = make_report([], SCOPE)
    assert (none.incidents, none.rows, none.causes, len(none.bins)) == (0, (), (), BINS)


def test_faults_report_rows_start_at_requested_time() -> None:
    hours = [90, 101, 110, 123]
    since_80, since_105, since_10 = (replace(SCOPE, rows_after=hour * HOUR) for hour in (80, 105, 10))
    rows = [row(hour) for hour in hours]
    assert [one.at / HOUR for one in make_report(rows, since_80).rows] == hours
    assert [one.at / HOUR for one in make_report(rows, since_105).rows] == [110, 123]
    assert (since_80.first, since_10.first) == (76 * HOUR, 10 * HOUR)


def test_faults_report_ranks_causes_nodes_and_users_with_previous_period() -> None:
    rows = [
        row(80, "node.gpu", nodes=("n1",)),
        row(101, "node.gpu", nodes=("n1", "n2"), lost_gpu_hours=3.0),
        row(102, "node.failed", nodes=("n1",), lost_gpu_hours=1.0),
        row(103, "user.exit", nodes=("n9",), user="bob"),
    ]
    found = make_report(rows, SCOPE)
    nodes = [(one.name, one.incidents, one.before, one.lost_gpu_hours) for one in found.nodes]
    assert nodes == [("n1", 2, 1, 2.5), ("n2", 1, 0, 1.5)]
    assert [(one.name, one.incidents) for one in found.users] == [("ada", 2), ("bob", 1)]
    assert next((one.name, one.title) for one in found.causes) == ("node.gpu", "a GPU or its links failed")
    assert {one.name: one.incidents for one in found.origins} == {"node": 2, "user": 1}
    assert found.lost_gpu_hours == 4.0


def test_faults_report_counts_all_incidents_but_limits_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_ROWS", 3)
    found = make_report([row(101 + n, job=str(n)) for n in range(5)], SCOPE)
    assert (found.incidents, found.jobs, found.left_out) == (5, 5, 2)
    assert [one.job for one in found.rows] == ["2", "3", "4"]
