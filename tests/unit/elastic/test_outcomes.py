"""Figures of a run, equal sharing, policies by name and synthetic workloads."""

from __future__ import annotations

import math

import pytest

from ffdl_batch.elastic.outcomes import completion_times, equal_sharing, outcome_of
from ffdl_batch.elastic.policies import Policy, scheduler_of
from ffdl_batch.elastic.schedulers import Pool
from ffdl_batch.elastic.simulator import Arrival, Change, Model, Run, Setting, simulate
from ffdl_batch.elastic.synthetic import (
    Pattern,
    Scaling,
    SyntheticTimes,
    Workload,
    synthetic_arrivals,
    synthetic_models,
)

MODELS = {"m": Model({8: 1000}, smallest_local=1, largest_local=8)}
SETTING = Setting(gpus=4, restart_s=0.0)


class Linear:
    """Steps of 1 s on one GPU, and proportionally less on more."""

    def step_s(self, model: str, gpus: int, batch: int) -> float:
        assert (model, batch) == ("m", 8)
        return 1 / gpus


def arrival(job: str, submitted_s: float, gpus: int = 1, work: float = 1.0) -> Arrival:
    return Arrival(job, submitted_s, "m", gpus, 8, work=work)


def test_equal_sharing_divides_gpus_among_present_jobs_at_each_interval() -> None:
    took = equal_sharing([arrival("a", 0), arrival("b", 50)], MODELS, Linear(), SETTING)
    # a has 4 GPUs for 60 s, then both have 2: a needs 380 s more, and b the rest with 4 from 480 s on.
    assert took == {"a": pytest.approx(60 + 380), "b": pytest.approx(480 + (1000 - 840) / 4 - 50)}


def test_equal_share_below_one_gpu_is_that_part_of_its_speed() -> None:
    took = equal_sharing([arrival(str(number), 0) for number in range(8)], MODELS, Linear(), SETTING)
    assert list(took.values()) == [pytest.approx(2000)] * 8


def test_share_is_rounded_down_to_whole_gpus_and_work_counts() -> None:
    took = equal_sharing([arrival(str(number), 0, work=0.5) for number in range(3)], MODELS, Linear(), SETTING)
    assert list(took.values()) == [pytest.approx(500)] * 3


def test_job_that_cannot_run_with_its_share_never_ends_and_others_do() -> None:
    class OnOneOnly(Linear):
        def step_s(self, model: str, gpus: int, batch: int) -> float:
            return math.inf if gpus > 1 else 1.0

    took = equal_sharing([arrival("a", 0), arrival("b", 30)], MODELS, OnOneOnly(), SETTING)
    assert took == {"a": math.inf, "b": math.inf}
    took = equal_sharing([arrival("a", 0)], MODELS, OnOneOnly(), Setting(gpus=1))
    assert took == {"a": pytest.approx(1000)}


def test_equal_sharing_of_long_jobs_asks_for_speeds_only_when_shares_change() -> None:
    class Counted(Linear):
        asked = 0

        def step_s(self, model: str, gpus: int, batch: int) -> float:
            self.asked += 1
            return super().step_s(model, gpus, batch)

    truth = Counted()
    took = equal_sharing([arrival("a", 0, work=1e6), arrival("b", 1e8)], MODELS, truth, SETTING)
    assert took == {"a": pytest.approx(2.5e8, rel=1e-3), "b": pytest.approx(500, abs=60)}
    assert truth.asked < 10


def test_figures_of_known_run() -> None:
    arrivals = [arrival("a", 0), arrival("b", 100), arrival("c", 100)]
    changes = (
        Change(0, "a", 2, 8),
        Change(120, "b", 1, 8),
        Change(180, "b", 2, 8),
        Change(400, "a", 0, 0),
        Change(500, "b", 0, 0),
        Change(600, "c", 1, 8),
    )
    run = Run(changes, {"a": 400.0, "b": 500.0}, failures=1)
    out = outcome_of(run, arrivals, {"a": 400.0, "b": 200.0, "c": 1.0}, Setting(gpus=4, until_s=1000.0))
    assert completion_times(run, arrivals) == {"a": 400.0, "b": 400.0}
    assert (out.completed, out.unfinished, out.mean_s, out.p50_s, out.makespan_s) == (2, 1, 400, 400, 500)
    assert out.utilisation == pytest.approx((2 * 400 + 60 + 2 * 320 + 400) / 4000)
    assert out.jain == pytest.approx(9 / 10) and out.worst_slow_down == 2
    assert (out.restarts, out.failures) == (2, 1)


def test_run_without_completed_jobs_has_no_times() -> None:
    out = outcome_of(Run((), {}, 0), [arrival("a", 0)], {"a": 1.0}, Setting(until_s=600.0))
    assert (out.completed, out.unfinished, out.utilisation) == (0, 1, 0)
    assert math.isnan(out.mean_s) and math.isnan(out.makespan_s)


@pytest.mark.parametrize("policy", Policy)
def test_every_policy_completes_all_jobs_of_small_workload(policy: Policy) -> None:
    times, models = SyntheticTimes(16, 4), synthetic_models()
    jobs = synthetic_arrivals(Workload(Pattern.BURSTY, None, 16, 2, seed=1), times)
    setting = Setting(gpus=16)
    run = simulate(jobs, models, times, scheduler_of(policy, models, Pool(16), 60), setting)
    out = outcome_of(run, jobs, equal_sharing(jobs, models, times, setting), setting)
    assert out.unfinished == 0 and 0 < out.utilisation <= 1 and out.worst_slow_down > 0


def test_job_with_twice_the_work_takes_twice_as_long() -> None:
    models = {"m": MODELS["m"]}
    for work in (1.0, 2.0):
        run = simulate(
            [arrival("a", 0, 4, work)], models, Linear(), scheduler_of(Policy.FIFO, models, Pool(4), 60), SETTING
        )
        assert run.completed_s == {"a": pytest.approx(250 * work)}


def test_synthetic_scaling_orders_speed_ups_and_loses_at_node_boundary() -> None:
    times = SyntheticTimes(64, 4)
    gains = [times.step_s(scaling.value, 1, 512) / times.step_s(scaling.value, 32, 512) for scaling in Scaling]
    assert gains == sorted(gains, reverse=True) and gains[0] > 10 and 1 < gains[-1] < 5
    slow = Scaling.COMMUNICATION.value
    assert times.step_s(slow, 5, 512) == times.step_s(slow, 4, 512)  # the fifth GPU stays idle
    assert times.step_s(slow, 64, 32) == times.step_s(slow, 8, 32)  # more would get too few samples


@pytest.mark.parametrize("pattern", Pattern)
def test_synthetic_arrivals_are_repeatable_and_follow_their_pattern(pattern: Pattern) -> None:
    times = SyntheticTimes(64, 4)
    jobs, same, other = (
        synthetic_arrivals(Workload(pattern, Scaling.BALANCED, 64, 8, seed), times) for seed in (1, 1, 2)
    )
    assert jobs == same != other and {job.model for job in jobs} == {"balanced"}
    assert [job.submitted_s for job in jobs] == sorted(job.submitted_s for job in jobs)
    in_bursts = all(job.submitted_s % 7200 <= 600 for job in jobs)
    assert in_bursts == (pattern is Pattern.BURSTY)


def test_high_load_has_more_jobs_than_low_load() -> None:
    times = SyntheticTimes(64, 4)
    counts = [len(synthetic_arrivals(Workload(pattern, None, 64, 8, 1), times)) for pattern in Pattern]
    high, low, bursty = counts
    assert high > bursty > low
