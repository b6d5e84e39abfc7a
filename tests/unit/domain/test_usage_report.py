"""Shares and distributions in the form of the published figures."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.usage_report import (
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
    assert found.counts[0] == 2  # 0.5 and 1.0: bounds belong to the bin below
    assert found.counts[-1] == 1
    assert found.quantiles_s == (16.0, 99999.0, 99999.0, 99999.0)
    assert found.longest_s == 99999.0
    assert (found.published_s, found.within) == (16.0, 60.0)


def test_distribution_of_no_times_has_no_quantiles() -> None:
    found = distribution("processing", [])
    assert (found.count, found.quantiles_s, found.within, found.published_s) == (0, (), None, None)
    assert sum(found.counts) == 0


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
    assert Efficiency(10.0).utilisation is None
    assert Efficiency().covered is None
    seen = Efficiency(gpu_hours=10.0, sampled_gpu_hours=5.0, used_gpu_hours=4.0)
    assert (seen.utilisation, seen.covered) == (0.8, 0.5)
