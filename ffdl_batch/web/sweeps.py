"""The best value of a metric for each of several jobs, and charts of it by the values that a sweep gave them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.metrics.series import Series
from ffdl_batch.host.fast_dataclass import dataclass

_FALLS = ("loss", "error", "err", "perplexity", "rmse", "mse", "mae")
"""A metric with such a word in its name is best where it is least."""
_WIDE = 100.0
"""An axis whose last value is so many times its first one is logarithmic."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a metric in a job."""

    value: float
    at: float
    """Position on `axis`."""
    axis: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The metric by which jobs are compared."""

    metric: str = ""
    """Its label; "" = none was measured."""
    is_least: bool = False
    """Whether the least value is the best one."""
    metrics: tuple[str, ...] = ()
    """All labels."""


def choose(series: Iterable[Series], metric: str, best: str) -> Choice:
    """Return the metric with that label, or else the first one. `best` is least, most, or "" to decide by the name."""
    metrics = tuple(dict.fromkeys(one.name.label for one in series))
    if not metrics:
        return Choice()
    chosen = metric if metric in metrics else metrics[0]
    falls = any(word in chosen.lower() for word in _FALLS)
    return Choice(chosen, best == "least" if best in ("least", "most") else falls, metrics)


def best_of(series: Iterable[Series], choice: Choice) -> dict[str, Best]:
    """Return the best value of each job that measured the metric, over its learners, by the id of the job."""
    found: dict[str, Best] = {}
    for one in series:
        value, at = (one.least, one.least_x) if choice.is_least else (one.most, one.most_x)
        if one.name.label != choice.metric or not math.isfinite(value):
            continue
        before = found.get(one.name.job)
        if before is None or (value < before.value if choice.is_least else value > before.value):
            found[one.name.job] = Best(value, at, one.name.axis)
    return found


def ranked(jobs: Sequence[JobView], best: Mapping[str, Best], choice: Choice) -> list[JobView]:
    """Return the jobs, the best one first, and those without the metric last."""
    sign = 1 if choice.is_least else -1
    return sorted(jobs, key=lambda job: sign * best[job.id].value if job.id in best else math.inf)


def scatter(jobs: Sequence[JobView], best: Mapping[str, Best], choice: Choice) -> dict[str, object]:
    """Return a chart for each swept name with different values: a point for each job."""
    names = sorted({name for job in jobs for name in job.array_values})
    charts = [_chart(name, [job for job in jobs if job.id in best and name in job.array_values], best, choice) for name
              in names]  # fmt: skip
    return {"charts": [chart for chart in charts if chart is not None], "left_out": 0}


def _chart(name: str, jobs: Sequence[JobView], best: Mapping[str, Best], choice: Choice) -> dict[str, object] | None:
    texts = list(dict.fromkeys(job.array_values[name] for job in jobs))
    if len(texts) < 2:
        return None
    numbers = [_number(text) for text in texts]
    places = [number for number in numbers if number is not None]
    is_numeric = len(places) == len(texts)
    if not is_numeric:
        places = [float(index) for index in range(len(texts))]
    place = dict(zip(texts, places, strict=True))
    curves = [
        {"label": _values(job), "xs": [place[job.array_values[name]]], "ys": [best[job.id].value]} for job in jobs
    ]
    return {
        "title": f"{'Least' if choice.is_least else 'Most'} {choice.metric} by {name}",
        "axis": name,
        "unit": "",
        "is_scatter": True,
        "is_log_x": is_numeric and min(places) > 0 and max(places) / min(places) >= _WIDE,
        "names": [] if is_numeric else texts,
        "curves": curves,
    }


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _values(job: JobView) -> str:
    return " ".join(f"{name}={value}" for name, value in job.array_values.items())
