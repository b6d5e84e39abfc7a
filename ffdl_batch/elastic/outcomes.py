"""Compute the figures of a simulated run, and compare it with equal sharing. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ffdl_batch.elastic.simulator import Arrival, Model, Run, Setting, Truth, first_decision_s
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one policy. Times refer to completed jobs; NaN if there is none."""

    completed: int
    unfinished: int
    """Jobs that had not ended at the end of the simulation."""
    mean_s: float
    """Completion time: from the submission to the end."""
    p50_s: float
    p95_s: float
    makespan_s: float
    """From the first submission to the last end."""
    utilisation: float
    """GPU-seconds allocated to jobs, as a fraction of those of the pool during the makespan."""
    jain: float
    """Jain's fairness index of the slowdowns: 1 if all are equal."""
    worst_slow_down: float
    """The largest slowdown: completion time of a job divided by its completion time with equal shares."""
    restarts: int
    """Starts after the first one of each job: changes of size and failures."""
    failures: int


def completion_times(run: Run, arrivals: Sequence[Arrival]) -> dict[str, float]:
    """Return the seconds from submission to end of each completed job."""
    return {one.job: run.completed_s[one.job] - one.submitted_s for one in arrivals if one.job in run.completed_s}


def outcome_of(run: Run, arrivals: Sequence[Arrival], equal_s: Mapping[str, float], setting: Setting) -> Outcome:
    """Return the figures of a run. `equal_s` has the completion times with equal shares."""
    took_s = completion_times(run, arrivals)
    times = np.array(list(took_s.values())) if took_s else np.array([math.nan])
    slow = np.array([took_s[job] / equal_s[job] for job in took_s]) if took_s else np.array([math.nan])
    first_s = min(one.submitted_s for one in arrivals)
    end_s = max(run.completed_s.values(), default=math.nan)
    until_s = end_s if len(took_s) == len(arrivals) else setting.until_s
    starts = Counter(change.job for change in run.changes if change.gpus)
    return Outcome(
        completed=len(took_s),
        unfinished=len(arrivals) - len(took_s),
        mean_s=float(times.mean()),
        p50_s=float(np.percentile(times, 50)),
        p95_s=float(np.percentile(times, 95)),
        makespan_s=end_s - first_s,
        utilisation=_gpu_seconds(run, until_s) / (setting.gpus * (until_s - first_s)),
        jain=float(slow.sum() ** 2 / (len(slow) * (slow**2).sum())),
        worst_slow_down=float(slow.max()),
        restarts=sum(starts.values()) - len(starts) + run.failures,
        failures=run.failures,
    )


def equal_sharing(
    arrivals: Sequence[Arrival], models: Mapping[str, Model], truth: Truth, setting: Setting
) -> dict[str, float]:
    """Return the completion time of each job if all present jobs have equal shares of the GPUs.

    Shares are recomputed at intervals, when a job has arrived or ended. A share is rounded down to whole GPUs; a job
    with less than one GPU runs at that fraction of its speed on one. Jobs keep the submitted batch, and changes are
    free. The result is inf for jobs that cannot run with their last share.
    """
    waiting = sorted(arrivals, key=lambda one: one.submitted_s)[::-1]
    left: dict[str, float] = {}
    present: dict[str, Arrival] = {}
    took_s: dict[str, float] = {}
    now = 0.0
    while waiting or present:
        if not present:
            now = max(now, first_decision_s(waiting[-1].submitted_s, setting.interval_s))
        while waiting and waiting[-1].submitted_s <= now:
            arrival = waiting.pop()
            present[arrival.job], left[arrival.job] = arrival, arrival.work
        share = setting.gpus / len(present)
        done = {
            job: setting.interval_s
            * min(1.0, share)
            / truth.step_s(one.model, max(1, math.floor(share)), one.batch)
            / models[one.model].iterations[one.batch]
            for job, one in present.items()
        }
        ends = [left[job] / part for job, part in done.items() if part]
        intervals = min((math.ceil(one) for one in ends), default=math.inf)
        if waiting:
            intervals = min(intervals, math.ceil((waiting[-1].submitted_s - now) / setting.interval_s))
        if intervals == math.inf:
            return took_s | dict.fromkeys(present, math.inf)
        before = max(0, int(intervals) - 1)
        now += before * setting.interval_s
        for job, part in done.items():
            left[job] -= before * part
            if left[job] <= part:
                took_s[job] = now + left[job] / part * setting.interval_s - present.pop(job).submitted_s
            else:
                left[job] -= part
        now += setting.interval_s
    return took_s


def _gpu_seconds(run: Run, until_s: float) -> float:
    total = 0.0
    since: dict[str, tuple[float, int]] = {}
    for change in run.changes:
        began, gpus = since.get(change.job, (change.time_s, 0))
        total += gpus * (change.time_s - began)
        since[change.job] = (change.time_s, change.gpus)
    return total + sum(gpus * (until_s - began) for began, gpus in since.values() if gpus)
