"""The rules of advice that need no model."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.metrics.advice import (
    Choice,
    Form,
    LikeJob,
    PastAttempt,
    advise_checkpoints,
    expected_end,
    find_bottleneck,
    recommend,
    time_limit,
)

ONE = PastAttempt(Form(1, 1.0), 1, run_s=100.0, processing_s=80.0)


@pytest.mark.parametrize(
    ("run_times_s", "limit_s"),
    [([1.0], 300), ([250.0], 300), ([251.0], 600), ([*[1000.0] * 19, 9000.0], 1200), ([1000.0, 9000.0], 10_800)],
)
def test_time_limit_covers_nineteen_of_twenty_runs_with_a_fifth_more(run_times_s: list[float], limit_s: int) -> None:
    assert time_limit(run_times_s) == limit_s


def test_job_without_speed_of_every_attempt_has_no_known_samples() -> None:
    measured = PastAttempt(Form(1, 1.0), 1, run_s=100.0, processing_s=80.0, samples_per_s=5.0)
    assert LikeJob("a", completed=True, attempts=(measured, measured)).samples == 800.0
    assert LikeJob("a", completed=True, attempts=(measured, ONE)).samples is None
    assert LikeJob("a", completed=False, attempts=(measured,)).samples is None


def test_recommended_choice_is_fastest_that_costs_at_most_a_quarter_more() -> None:
    times = {1: 100.0, 2: 62.5, 4: 40.0, 8: 5.0}
    choices = [
        Choice(Form(1, float(gpus)), gpus, time_s=time_s, extrapolates=gpus == 8) for gpus, time_s in times.items()
    ]
    assert [one.workers for one in recommend(choices, lambda _: True) if one.recommended] == [2]
    assert [one.workers for one in recommend(choices, lambda form: form.gpus != 2.0) if one.recommended] == [1]
    assert not any(one.recommended for one in recommend([Choice(Form(1, 1.0), 1)], lambda _: True))


@pytest.mark.parametrize(
    ("workers", "gpu_use", "exchange", "begins"),
    [
        (1, 0.59, 0.9, "input-bound"),
        (1, 0.6, None, ""),
        (1, None, None, ""),
        (4, 0.2, None, ""),
        (4, 0.2, 0.29, "input-bound"),
        (4, 0.4, 0.29, ""),
        (4, 0.2, 0.3, "sync-bound"),
    ],
)
def test_bottleneck_is_input_only_if_exchange_does_not_explain_idle_gpus(
    workers: int, gpu_use: float | None, exchange: float | None, begins: str
) -> None:
    attempt = PastAttempt(Form(1, float(workers)), workers, 1.0, 1.0, gpu_use=gpu_use)
    assert find_bottleneck(attempt, exchange).partition(":")[0] == begins


def test_checkpoint_interval_needs_checkpoints_and_preemptions() -> None:
    assert advise_checkpoints([], 2, 7200.0) is None
    assert advise_checkpoints([5.0], 0, 7200.0) is None
    found = advise_checkpoints([4.0, 5.0, 100.0], 2, 7200.0)
    assert found is not None and found.interval_s == pytest.approx((2 * 5 * 3600) ** 0.5)
    assert (found.checkpoint_s, found.checkpoints) == (5.0, 3)


def test_expected_end_counts_from_last_report_with_median_speed() -> None:
    assert expected_end([]) is None
    assert expected_end([(10.0, 1.0, 900.0), (20.0, 5.0, 850.0), (30.0, 50.0, 100.0)]) == 30.0 + 100.0 / 5.0
    assert expected_end([(10.0, 1e-9, 1e18)]) is None
