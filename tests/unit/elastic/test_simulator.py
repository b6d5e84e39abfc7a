"""The simulated pool: progress, restarts, failures and measurements, and schedulers on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest

from ffdl_batch.elastic.policy import Objective, Rules, Target
from ffdl_batch.elastic.schedulers import (
    Elastic,
    Fifo,
    Pool,
    free_batches,
    largest_batch,
    random_batch,
    smallest_batch,
    submitted_batch,
)
from ffdl_batch.elastic.simulator import Arrival, Change, LiveJob, Model, Run, Setting, simulate

MODELS = {"m": Model({8: 1000, 16: 600}, smallest_local=1, largest_local=8)}


class Linear:
    """Step times that fall with the number of GPUs."""

    def step_s(self, model: str, gpus: int, batch: int) -> float:
        assert model == "m"
        return batch / 8 / gpus + 0.01 * (gpus - 1)


class Scripted:
    """Gives the sizes of a script, one entry for each decision, the last one for ever."""

    def __init__(self, *script: Sequence[Target]) -> None:
        self.script, self.seen = script, list[float | None]()

    def decide(self, jobs: Sequence[LiveJob]) -> list[Target]:
        self.seen.append(jobs[0].measured_step_s)
        return list(self.script[min(len(self.seen), len(self.script)) - 1][: len(jobs)])


def run_of(scheduler: Scripted | Fifo | Elastic, *arrivals: Arrival, **setting: float) -> Run:
    return simulate(arrivals, MODELS, Linear(), scheduler, Setting(**setting))  # type: ignore[arg-type]


def arrival(name: str, submitted_s: float = 0, gpus: int = 1, batch: int = 8) -> Arrival:
    return Arrival(name, submitted_s, "m", gpus, batch)


def test_job_starts_at_next_decision_and_ends_after_restart_and_its_steps() -> None:
    run = run_of(Scripted([Target(1, 8)]), arrival("a", submitted_s=61))
    assert run.completed_s == {"a": pytest.approx(120 + 30 + 1000)}
    assert run.changes == (Change(120, "a", 1, 8), Change(run.completed_s["a"], "a", 0, 0))


def test_change_of_size_costs_restart_and_keeps_progress() -> None:
    run = run_of(Scripted([Target(1, 8)], [Target(2, 8)]), arrival("a"))
    left = 1 - 30 / 1000
    assert run.completed_s["a"] == pytest.approx(60 + 30 + left * 1000 * 0.51)


def test_other_batch_continues_at_same_fraction() -> None:
    run = run_of(Scripted([Target(1, 8)], [Target(1, 16)]), arrival("a"))
    assert run.completed_s["a"] == pytest.approx(60 + 30 + (1 - 30 / 1000) * 600 * 2)


def test_stopped_job_makes_no_progress_and_is_not_measured() -> None:
    scheduler = Scripted([Target(1, 8)], [Target(0, 0)], [Target(0, 0)], [Target(1, 8)])
    run = run_of(scheduler, arrival("a"), noise=0.0)
    assert run.completed_s["a"] == pytest.approx(180 + 30 + 970)
    assert scheduler.seen[:5] == [None, pytest.approx(1.0), None, None, pytest.approx(1.0)]


def test_measured_speeds_are_within_noise_and_differ() -> None:
    scheduler = Scripted([Target(1, 8)])
    run_of(scheduler, arrival("a"))
    measured = [one for one in scheduler.seen if one is not None]
    assert all(0.9 <= 1 / one <= 1.1 for one in measured) and len(set(measured)) == len(measured) > 10


def test_equal_seeds_repeat_a_run_and_others_do_not() -> None:
    jobs = [arrival(str(number), 40 * number, 2) for number in range(20)]
    runs = [run_of(Elastic(MODELS, Pool(16), Rules()), *jobs, seed=seed, noise=0.4) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_failures_cost_work_since_checkpoint_and_no_more() -> None:
    quiet = run_of(Scripted([Target(1, 8)]), arrival("a"))
    failing = run_of(Scripted([Target(1, 8)]), arrival("a"), failures_per_gpu_hour=12.0, checkpoint_s=60.0)
    assert failing.failures > 0
    late = failing.completed_s["a"] - quiet.completed_s["a"]
    assert 30 * failing.failures <= late <= (30 + 60 + 60) * failing.failures


def test_too_many_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match=r"5 GPUs were allocated, but the pool has 4"):
        run_of(Scripted([Target(5, 8)]), arrival("a"), gpus=4)


def test_simulation_ends_at_given_time() -> None:
    assert run_of(Scripted([Target(1, 8)]), arrival("a"), until_s=300.0).completed_s == {}


def test_fifo_runs_jobs_as_submitted_and_in_their_order() -> None:
    run = run_of(Fifo(4), arrival("a", 0, 3), arrival("b", 1, 2), arrival("c", 2, 1), gpus=4)
    starts = {change.job: (change.time_s, change.gpus) for change in run.changes if change.gpus}
    assert [gpus for _, gpus in starts.values()] == [3, 2, 1]
    assert starts["b"][0] == starts["c"][0] > run.completed_s["a"]


def test_elastic_jobs_use_free_gpus_and_end_sooner_than_by_fifo() -> None:
    jobs = [arrival(str(number), 600 * number) for number in range(6)]
    elastic = run_of(Elastic(MODELS, Pool(8), Rules()), *jobs, gpus=8)
    fifo = run_of(Fifo(8), *jobs, gpus=8)
    took = [sum(run.completed_s[one.job] - one.submitted_s for one in jobs) for run in (elastic, fifo)]
    assert took[0] < 0.5 * took[1]
    assert elastic.completed_s.keys() == fifo.completed_s.keys()


def test_first_job_of_its_kind_runs_as_submitted_and_grows_by_steps() -> None:
    run = run_of(Elastic(MODELS, Pool(64), Rules(horizon_s=None), submitted_batch), arrival("a", gpus=1))
    sizes = [change.gpus for change in run.changes if change.gpus]
    assert sizes[0] == 1
    assert all(later <= 4 * earlier for earlier, later in pairwise(sizes)) and len(sizes) > 1


@pytest.mark.parametrize(
    ("batches", "expected"),
    [(submitted_batch, {8}), (smallest_batch, {8}), (largest_batch, {16}), (free_batches, {8, 16})],
)
def test_jobs_run_with_permitted_batches_only(batches: object, expected: set[int]) -> None:
    jobs = [arrival(str(number), 100 * number) for number in range(10)]
    run = run_of(Elastic(MODELS, Pool(8), Rules(), batches), *jobs, gpus=8)  # type: ignore[arg-type]
    assert {change.batch for change in run.changes if change.gpus} <= expected


def test_random_batch_belongs_to_the_job() -> None:
    chosen = [random_batch(arrival(str(number)), MODELS["m"])[0] for number in range(20)]
    assert set(chosen) == {8, 16}
    assert chosen == [random_batch(arrival(str(number)), MODELS["m"])[0] for number in range(20)]


@pytest.mark.parametrize("objective", list(Objective))
def test_all_jobs_complete_under_each_objective_with_failures(objective: Objective) -> None:
    jobs = [arrival(str(number), 50 * number, 1 + number % 4) for number in range(12)]
    run = run_of(Elastic(MODELS, Pool(8), Rules(objective)), *jobs, gpus=8, failures_per_gpu_hour=2.0)
    assert len(run.completed_s) == 12 and max(run.completed_s.values()) < math.inf
