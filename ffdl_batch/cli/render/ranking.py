"""Print jobs in the order of the best value of a metric, with the values of their sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ffdl_batch.cli.render.charts import short
from ffdl_batch.cli.render.formatting import print_json, print_table
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.domain.job.views import JobView
    from ffdl_batch.domain.metrics.series import Series


@dataclass(frozen=True, slots=True)
class RankedJob:
    """A job and its best value; None if it has no finite value."""

    job: str
    array_index: int | None
    state: str
    sweep: Mapping[str, str]
    """Variables that the sweep sets."""
    metric: str
    best: float | None = None
    axis: str = ""
    at: float | None = None
    """Where the curve has the value first."""


def rank(jobs: Iterable[JobView], series: Sequence[Series], *, least: bool) -> list[RankedJob]:
    """Return the jobs, best first, and those without a value last. `series` are curves of one metric; `least`: the best
    value is the least one."""
    ranked = [
        _ranked(job, [one for one in series if one.name.job == job.id], series[0].name.label, least) for job in jobs
    ]
    sign = 1.0 if least else -1.0
    return sorted(ranked, key=lambda one: math.inf if one.best is None else sign * one.best)


def _ranked(job: JobView, series: Sequence[Series], metric: str, least: bool) -> RankedJob:
    found = RankedJob(job.id, job.array_index, job.state, job.array_values, metric)
    finite = [one for one in series if one.points]
    if not finite:
        return found
    best = min(finite, key=lambda one: one.least) if least else max(finite, key=lambda one: one.most)
    value, at = (best.least, best.least_x) if least else (best.most, best.most_x)
    return RankedJob(job.id, job.array_index, job.state, job.array_values, metric, value, best.name.axis, at)


def print_ranking(ranked: Sequence[RankedJob], *, as_json: bool) -> None:
    """Print a line for each job."""
    if as_json:
        for one in ranked:
            print_json({"ranked": one})
        return
    names = list(dict.fromkeys(name for one in ranked for name in one.sweep))
    columns = ("ID", "INDEX", "STATE", *names, ranked[0].metric, "AT")
    print_table(columns, [list(_row(one, names)) for one in ranked])


def _row(one: RankedJob, names: Iterable[str]) -> Iterator[str]:
    yield one.job
    yield "-" if one.array_index is None else str(one.array_index)
    yield one.state
    yield from (one.sweep.get(name, "-") for name in names)
    yield "-" if one.best is None else f"{one.best:.6g}"
    yield "-" if one.at is None else f"{one.axis} {short(one.at)}"
