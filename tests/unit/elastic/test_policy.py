"""Decisions about sizes: what a change must gain, who may be stopped, and how objectives differ."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.elastic.optimiser import InfeasibleAllocation
from ffdl_batch.elastic.policy import Objective, PoolJob, Rules, Target, decide, fair_weights

ALL = [Rules(objective, greedy=greedy) for objective in Objective for greedy in (False, True)]


def job(name: str, one_gpu_s: float, *, most: int = 8, exponent: float = 0.8, **given: object) -> PoolJob:
    """Return a job whose speed grows with GPUs ** exponent."""
    gpus = np.arange(1, most + 1)
    remaining = np.concatenate([[math.inf], one_gpu_s / gpus**exponent])
    waiting = PoolJob(name, remaining, np.concatenate([[0], gpus * 10]), restart_s=30.0)
    return replace(waiting, **given)  # type: ignore[arg-type]


def running(name: str, one_gpu_s: float, gpus: int, **given: object) -> PoolJob:
    """Return such a job with GPUs."""
    waiting = job(name, one_gpu_s)
    present: dict[str, object] = {"present_batch": gpus * 10, "present_remaining_s": float(waiting.remaining_s[gpus])}
    return replace(waiting, gpus=gpus, **present | given)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", ALL)
@given(sizes=st.lists(st.integers(30, 100_000), min_size=1, max_size=6), gpus=st.integers(1, 20))
def test_no_more_gpus_are_given_than_there_are(rules: Rules, sizes: list[int], gpus: int) -> None:
    targets = decide([job(str(number), size) for number, size in enumerate(sizes)], gpus, rules)
    assert len(targets) == len(sizes)
    assert 1 <= sum(target.gpus for target in targets) <= gpus
    assert all(target.batch == 10 * target.gpus for target in targets)


def test_single_job_gets_its_fastest_size() -> None:
    assert decide([job("a", 10_000)], 64, Rules()) == [Target(8, 80)]


def test_short_job_gets_more_than_long_one_by_completion_and_equal_shares_by_throughput() -> None:
    jobs = [job("long", 100_000, most=16), job("short", 1_000, most=16)]
    long, short = decide(jobs, 16, Rules(horizon_s=None))
    assert short.gpus > long.gpus > 0
    assert [target.gpus for target in decide(jobs, 16, Rules(Objective.THROUGHPUT, None))] == [8, 8]


def test_fair_objective_serves_job_that_scales_badly_and_throughput_does_not() -> None:
    jobs = [job("good", 10_000, most=16, exponent=1.0), job("bad", 10_000, most=16, exponent=0.3)]
    assert decide(jobs, 16, Rules(Objective.THROUGHPUT, None))[1].gpus == 0
    assert decide(jobs, 16, Rules(Objective.FAIR, None))[1].gpus > 1


def test_job_that_ends_soon_is_not_changed_and_one_that_lasts_is() -> None:
    for one_gpu_s, expected in ((80, Target(4, 40)), (80_000, Target(8, 80))):
        assert decide([running("a", one_gpu_s, 4)], 8, Rules()) == [expected]


def test_gain_counts_until_horizon_only() -> None:
    remaining = np.array([math.inf, 10_000, 9_500])
    present = PoolJob(
        "a", remaining, np.array([0, 10, 20]), 30.0, gpus=1, present_batch=10, present_remaining_s=10_000.0
    )
    assert decide([present], 2, Rules(horizon_s=500)) == [Target(1, 10)]
    assert decide([present], 2, Rules(horizon_s=5_000)) == [Target(2, 20)]
    assert decide([present], 2, Rules(horizon_s=None)) == [Target(2, 20)]


def test_better_batch_on_same_gpus_is_taken_only_if_restart_is_worth_it() -> None:
    same = running("a", 80_000, 8, present_batch=16)
    assert decide([same], 8, Rules()) == [Target(8, 16)]
    slow = replace(same, present_remaining_s=2 * same.present_remaining_s)
    assert decide([slow], 8, Rules()) == [Target(8, 80)]


@pytest.mark.parametrize("rules", ALL)
def test_held_job_keeps_its_gpus_and_batch(rules: Rules) -> None:
    held = running("held", 50_000, 3, held=True, present_batch=7)
    targets = decide([held, job("short", 500)], 4, rules)
    assert targets[0].gpus == 3
    assert targets[1].gpus == 1


@pytest.mark.parametrize("objective", list(Objective))
def test_held_job_keeps_its_gpus_although_its_restart_takes_longer_than_it(objective: Objective) -> None:
    held = running("held", 1e-20, 3, held=True, restart_s=60.0, restarting_s=60.0)
    assert decide([held, job("short", 500)], 4, Rules(objective))[0].gpus == 3


def test_running_job_is_stopped_for_many_short_ones_only_where_that_is_allowed() -> None:
    jobs = [running("long", 500_000, 1), *(job(f"s{number}", 500, most=1) for number in range(4))]
    assert decide(jobs, 4, Rules())[0].gpus == 0
    targets = decide(jobs, 4, Rules(stop_running=False))
    assert [target.gpus for target in targets] == [1, 1, 1, 1, 0]


def test_jobs_behind_one_that_does_not_fit_wait_where_running_jobs_are_not_stopped() -> None:
    large = job("large", 1_000)
    large.remaining_s[:4] = math.inf
    jobs = [running("a", 1_000, 1), large, job("small", 10)]
    assert [bool(target.gpus) for target in decide(jobs, 4, Rules(stop_running=False))] == [True, False, False]
    assert [bool(target.gpus) for target in decide(jobs, 5, Rules(stop_running=False))] == [True, True, False]


def test_held_jobs_larger_than_pool_are_refused() -> None:
    with pytest.raises(InfeasibleAllocation):
        decide([running("a", 1_000, 4, held=True)], 3, Rules())


@pytest.mark.parametrize("rules", ALL)
@given(exponents=st.lists(st.floats(0.3, 1.0), min_size=1, max_size=6), factor=st.sampled_from([1 - 1e-12, 1 + 1e-12]))
def test_decision_does_not_depend_on_last_bits_of_speeds(rules: Rules, exponents: list[float], factor: float) -> None:
    """Predicted speeds differ in them between processors. Half of the jobs are alike, so that many sums are equal."""
    jobs = [job(str(number), 1000.0, exponent=one) for number, one in enumerate([*exponents, *exponents])]
    other = [replace(one, remaining_s=one.remaining_s * factor**number) for number, one in enumerate(jobs)]
    assert decide(jobs, 8, rules) == decide(other, 8, rules)


def test_no_jobs_get_nothing() -> None:
    assert decide([], 4, Rules()) == []


def test_tenant_with_many_jobs_weighs_as_much_as_tenant_with_one() -> None:
    weights = fair_weights(["a", "a", "a", "b"], [1.0, 1.0, 2.0, 1.0])
    assert sum(weights[:3]) == pytest.approx(weights[3]) == pytest.approx(2.5)
    jobs = [job(f"a{number}", 10_000, tenant="a") for number in range(3)] + [job("b", 10_000, tenant="b")]
    gpus = [target.gpus for target in decide(jobs, 8, Rules(Objective.FAIR, None))]
    assert gpus[3] == max(gpus) > gpus[0]


def test_job_of_larger_weight_gets_more() -> None:
    jobs = [job("a", 10_000), replace(job("b", 10_000), weight=4.0)]
    first, second = decide(jobs, 8, Rules(Objective.FAIR, None))
    assert second.gpus > first.gpus
