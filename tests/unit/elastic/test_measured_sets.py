"""What the benchmark of measured jobs relies on: drawn sets, a scheduler that knows true speeds, recomputation."""

from __future__ import annotations

from collections import Counter

import pytest

from ffdl_batch.elastic.measured import read_models, read_times
from ffdl_batch.elastic.policy import Rules
from ffdl_batch.elastic.schedulers import Pool
from ffdl_batch.elastic.simulator import Setting, simulate
from ffdl_batch.elastic.traces import read_arrivals
from tests.benchmarks.elastic import Informed, resampled
from tests.unit.elastic.recomputed import DATA, completion_times

TRUTH = read_times(DATA / "throughput.csv")
MODELS = read_models(DATA / "convergence.csv", TRUTH)
ARRIVALS = read_arrivals(DATA / "arrivals-1.csv", MODELS, 64)
TWO_JOBS = [
    {"job": "ncf-0", "submitted_s": "0", "model": "ncf"},
    {"job": "ncf-1", "submitted_s": "30", "model": "ncf"},
]


def row(time_s: float, job: str, gpus: int, batch: int = 32768) -> dict[str, str]:
    return {"time_s": str(time_s), "job": job, "gpus": str(gpus), "batch": str(batch if gpus else 0)}


def test_drawn_jobs_have_sizes_and_hours_of_the_given_ones() -> None:
    drawn, same, other = (resampled(ARRIVALS, 500, seed) for seed in (1, 1, 2))
    assert drawn == same != other and len({job.job for job in drawn}) == 500
    sizes = {(job.model, job.gpus, job.batch) for job in ARRIVALS}
    assert {(job.model, job.gpus, job.batch) for job in drawn} <= sizes
    hours, wanted = (Counter(job.submitted_s // 3600 for job in jobs) for jobs in (drawn, ARRIVALS))
    assert hours.keys() <= wanted.keys()
    assert hours.most_common(1)[0][0] in [hour for hour, _ in wanted.most_common(2)]


def test_scheduler_that_knows_speeds_gives_many_gpus_at_once() -> None:
    run = simulate(ARRIVALS[:1], MODELS, TRUTH, Informed(MODELS, Pool(), Rules(), TRUTH), Setting())
    assert ARRIVALS[0].gpus < run.changes[0].gpus <= 64 and len(run.changes) == 2


def test_recomputation_ends_job_when_its_work_is_done() -> None:
    rows = [row(0, "ncf-0", 1), row(5040, "ncf-0", 0)]
    long = completion_times(rows, TWO_JOBS)["ncf-0"]
    assert completion_times(rows[:1], TWO_JOBS)["ncf-0"] == long
    stopped = [row(0, "ncf-0", 1), row(60, "ncf-0", 0), row(120, "ncf-0", 1), row(5040, "ncf-0", 0)]
    assert completion_times(stopped, TWO_JOBS)["ncf-0"] == pytest.approx(long + 90)
    assert completion_times([row(0, "ncf-0", 1), row(60, "ncf-0", 0)], TWO_JOBS) == {}


@pytest.mark.parametrize(
    "rows",
    [
        [row(0, "ncf-1", 1), row(5040, "ncf-1", 0)],  # before its submission
        [row(61, "ncf-0", 1), row(5040, "ncf-0", 0)],  # between decisions
        [row(60, "ncf-0", 40), row(60, "ncf-1", 40), row(5040, "ncf-0", 0), row(5040, "ncf-1", 0)],  # 80 GPUs
        [row(60, "ncf-0", 1), row(5040, "ncf-0", 2)],  # after its end
    ],
)
def test_recomputation_refuses_impossible_timelines(rows: list[dict[str, str]]) -> None:
    with pytest.raises(AssertionError):
        completion_times(rows, TWO_JOBS)
