"""Compare policies that divide a pool of GPUs among elastic jobs: measured jobs, and the setting of arXiv 2006.13878.

Measured jobs: the two published sets of arrivals, and four that are drawn from their jobs and hours. Completion times
are recomputed from the timelines by the rules of the data alone, and the run fails if they differ from the simulator's.
The baselines run twice: with measured speeds as ours, and with true speeds from the start. Setting of the paper: 400
GPUs, a decision every ten minutes, eight hours; jobs by what limits them and by how they arrive.
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean

import numpy as np

from ffdl_batch.cli.render.simulation import write_timeline
from ffdl_batch.elastic.measured import MeasuredTimes, read_models, read_times
from ffdl_batch.elastic.outcomes import Outcome, completion_times, equal_sharing, outcome_of
from ffdl_batch.elastic.policies import Policy, scheduler_of
from ffdl_batch.elastic.policy import Objective, Rules
from ffdl_batch.elastic.schedulers import Elastic, Pool, submitted_batch
from ffdl_batch.elastic.simulator import Arrival, LiveJob, Model, Run, Scheduler, Setting, simulate
from ffdl_batch.elastic.synthetic import (
    Pattern,
    Scaling,
    SyntheticTimes,
    Workload,
    synthetic_arrivals,
    synthetic_models,
)
from ffdl_batch.elastic.traces import read_arrivals
from ffdl_batch.host.fast_dataclass import dataclass
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.unit.elastic import recomputed
from tests.unit.elastic.recomputed import DATA

NAME = "elastic"
POLLUX_S = {"arrivals-1": 2089.0, "arrivals-2": 3323.0}
"""Mean completion times that the authors of Pollux publish for the two sets."""
RESAMPLED = 4
PAPER = Setting(gpus=400, interval_s=600.0, until_s=8 * 3600.0)
PAPER_BASELINES = (Policy.BASELINE_MIN, Policy.BASELINE_MAX, Policy.BASELINE_RANDOM)
INFORMED = {
    "throughput, true speeds": Rules(Objective.THROUGHPUT, horizon_s=None),
    "completion, true speeds": Rules(Objective.COMPLETION),
}
"""With submitted batches."""
OURS = Policy.COMPLETION.value
SETTING, POOL = Setting(), Pool()


class Informed(Elastic):
    """Knows true speeds from the start, so that it needs no growth limit. Submitted batches."""

    def __init__(self, models: Mapping[str, Model], pool: Pool, rules: Rules, truth: MeasuredTimes) -> None:
        super().__init__(models, pool, rules, submitted_batch)
        self._truth = truth

    def _step_times(self, model: str) -> np.ndarray:
        choices = self._choices[model]
        return np.array(
            [
                [self._truth.step_s(model, int(gpus), batch) if gpus else math.inf for gpus in choices.gpus]
                for batch in choices.batches
            ]
        )

    def _most(self, _job: LiveJob, remaining: np.ndarray) -> int:
        return len(remaining)


@dataclass(frozen=True, slots=True)
class JobSet:
    """One set of measured jobs."""

    name: str
    arrivals: Sequence[Arrival]


def measured_sets(models: Mapping[str, Model], count: int) -> list[JobSet]:
    """Return the published sets, and `count` sets of as many jobs that are drawn from them."""
    published = [JobSet(name, read_arrivals(DATA / f"{name}.csv", models, POOL.gpus)) for name in POLLUX_S]
    pooled = [job for one in published for job in one.arrivals]
    drawn = [JobSet(f"resampled-{seed}", resampled(pooled, 160, seed)) for seed in range(1, count + 1)]
    return [*published, *drawn]


def resampled(jobs: Sequence[Arrival], count: int, seed: int) -> list[Arrival]:
    """Return jobs whose sizes and hours are drawn from given ones; minutes are drawn evenly."""
    chance = random.Random(seed)
    drawn = []
    for number in range(count):
        hour = chance.choice(jobs).submitted_s // 3600
        job = chance.choice(jobs)
        submitted_s = float(round(3600 * hour + chance.uniform(0, 3599)))
        drawn.append(replace(job, job=f"{job.model}-{number}", submitted_s=submitted_s))
    return sorted(drawn, key=lambda one: one.submitted_s)


def measure_elastic(_knobs: Knobs) -> list[Figure]:
    """Return the figures of the measured jobs, with submitted and with smallest batches, and those of the paper."""
    truth = read_times(DATA / "throughput.csv")
    models = read_models(DATA / "convergence.csv", truth)
    sets = measured_sets(models, RESAMPLED)
    figures = []
    for batches in ("submitted batches", "smallest batches"):
        if batches == "smallest batches":
            sets = [
                replace(one, arrivals=[replace(job, batch=min(models[job.model].iterations)) for job in one.arrivals])
                for one in sets
            ]
        outcomes = {one.name: _run_set(one, models, truth) for one in sets}
        figures += [*_published(outcomes, batches), *_criteria(outcomes, batches)]
    return [*figures, *_paper()]


def _run_set(jobs: JobSet, models: Mapping[str, Model], truth: MeasuredTimes) -> dict[str, Outcome]:
    """Return the outcomes of all policies for a published set, and of the compared ones for another."""
    compared = (Policy.FIFO, Policy.THROUGHPUT, Policy.COMPLETION)
    chosen = tuple(Policy) if jobs.name in POLLUX_S else compared
    equal_s = equal_sharing(jobs.arrivals, models, truth, SETTING)
    schedulers: dict[str, Scheduler] = {
        one.value: scheduler_of(one, models, POOL, SETTING.interval_s) for one in chosen
    }
    schedulers |= {name: Informed(models, POOL, rules, truth) for name, rules in INFORMED.items()}
    outcomes = {}
    for name, scheduler in schedulers.items():
        run = simulate(jobs.arrivals, models, truth, scheduler, SETTING)
        check(run, jobs.arrivals)
        outcomes[name] = outcome_of(run, jobs.arrivals, equal_s, SETTING)
    return outcomes


def check(run: Run, arrivals: Sequence[Arrival]) -> dict[str, float]:
    """Return the completion times, recomputed from the timeline. Raises AssertionError if they differ."""
    text = io.StringIO()
    write_timeline(text, run)
    rows = list(csv.DictReader(text.getvalue().splitlines()))
    jobs = [{"job": one.job, "submitted_s": str(one.submitted_s), "model": one.model} for one in arrivals]
    found, own = recomputed.completion_times(rows, jobs), completion_times(run, arrivals)
    assert found.keys() == own.keys() and len(own) == len(arrivals)
    assert max(abs(found[job] - own[job]) for job in own) < 1e-3
    return found


def _published(outcomes: Mapping[str, Mapping[str, Outcome]], batches: str) -> list[Figure]:
    figures = []
    for name, published_s in POLLUX_S.items():
        what = f"mean completion, {name}, {batches}"
        figures += [Figure(NAME, what, policy, "s", [out.mean_s]) for policy, out in outcomes[name].items()]
        if batches == "submitted batches":
            figures.append(Figure(NAME, what, "Pollux, published", "s", [published_s]))
    return figures


def _criteria(outcomes: Mapping[str, Mapping[str, Outcome]], batches: str) -> list[Figure]:
    """Return geometric means over all sets, and the worst slowdowns."""

    def ratio(measure: str, over: str, under: str, of: Callable[[Outcome], float], aim: str) -> Figure:
        found = {name: of(some[over]) / of(some[under]) for name, some in outcomes.items()}
        what, who = f"{measure}, {batches}", f"{over} / {under}"
        return Figure(NAME, what, who, "", [geometric_mean(found.values())], aim, {"sets": found})

    def mean_s(one: Outcome) -> float:
        return one.mean_s

    figures = []
    for baseline in (Policy.THROUGHPUT.value, "throughput, true speeds"):
        figures += [
            ratio("mean completion", baseline, OURS, mean_s, ">= 2"),
            ratio("p95 completion", OURS, baseline, lambda one: one.p95_s, "<= 0.5"),
            ratio("makespan", OURS, baseline, lambda one: one.makespan_s, "<= 1.1"),
        ]
    for baseline, aim in ((Policy.FIFO.value, ">= 6"), ("completion, true speeds", ">= 1")):
        figures.append(ratio("mean completion", baseline, OURS, mean_s, aim))
    worst = [some[OURS].worst_slow_down for some in outcomes.values()]
    figures.append(Figure(NAME, f"worst slowdown relative to equal sharing, {batches}", OURS, "", worst, "<= 3"))
    return figures


def _paper() -> list[Figure]:
    """Return the two ratios of the paper for each kind of jobs: one sample for each pattern of arrivals."""
    times, models = SyntheticTimes(PAPER.gpus, POOL.node_gpus), synthetic_models()
    pool = Pool(PAPER.gpus)
    figures = []
    for scaling in (*Scaling, None):
        found = []
        for pattern in Pattern:
            workload = Workload(pattern, scaling, PAPER.gpus, PAPER.until_s / 3600, seed=1)
            arrivals = synthetic_arrivals(workload, times)
            equal_s = {one.job: 1.0 for one in arrivals}  # slow-downs are not shown
            outcomes = {}
            for policy in (*PAPER_BASELINES, Policy.COMPLETION):
                run = simulate(arrivals, models, times, scheduler_of(policy, models, pool, PAPER.interval_s), PAPER)
                outcomes[policy] = outcome_of(run, arrivals, equal_s, PAPER)
            found.append(outcomes)
        kind = f"{scaling or 'mixed'} jobs, {', '.join(Pattern)} arrivals"
        for policy in PAPER_BASELINES:
            more = [one[Policy.COMPLETION].completed / one[policy].completed for one in found]
            sooner = [one[policy].mean_s / one[Policy.COMPLETION].mean_s for one in found]
            figures += [
                Figure(NAME, f"completed, {kind}", f"{OURS} / {policy}", "", more, "paper: up to 2"),
                Figure(NAME, f"mean completion, {kind}", f"{policy} / {OURS}", "", sooner, "paper: up to 10"),
            ]
    return figures
