"""Curves of metrics and usage for the page: at most MOST points each, among them the extremes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ffdl_batch.cli.render.metric_tables import by_chart
from ffdl_batch.client import Client
from ffdl_batch.domain.metrics.series import Curves, Series

MOST = 1000
MOST_CURVES = 300
"""Curves in one answer; the browser would not draw more of them smoothly."""


def read_metrics(client: Client, job_ids: Iterable[str], axis: str = "") -> Curves:
    """Return the metrics of jobs. Raises ClientError."""
    curves = Curves(axis)
    for job_id in job_ids:
        for line in client.metrics(job_id):
            curves.add_record(job_id, line.learner, line.record)
    return curves


def read_usage(client: Client, job_id: str) -> Curves:
    """Return the usage of a job. Raises ClientError."""
    curves = Curves()
    for line in client.usage(job_id):
        curves.add_sample(job_id, line.node, line.sample)
    return curves


def charts_of(series: Sequence[Series], names: dict[str, str] | None = None) -> dict[str, object]:
    """Return the charts as JSON: title, axis, unit, and the curves with their labels, xs and ys. `names` are labels of
    jobs by id."""
    charts: list[dict[str, object]] = []
    left = MOST_CURVES
    for title, curves in by_chart(series).items():
        shown = [_curve(label, one, names or {}) for label, one in curves[:left]]
        left -= len(shown)
        if shown:
            name = curves[0][1].name
            charts.append({"title": title, "axis": name.axis, "unit": name.unit, "curves": shown})
    return {"charts": charts, "left_out": max(0, sum(len(one) for one in by_chart(series).values()) - MOST_CURVES)}


def _curve(label: str, series: Series, names: dict[str, str]) -> dict[str, object]:
    points = thinned(series.points)
    for job_id, name in names.items():
        label = label.replace(job_id, name)
    return {"label": label, "xs": [x for x, _ in points], "ys": [y for _, y in points]}


def thinned(points: Sequence[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """Return at most `most` of the points, in order: the first, the last, and the least and most of each equal share of
    the others."""
    if len(points) <= most:
        return list(points)
    shares = (most - 2) // 2
    inner = points[1:-1]
    kept = [points[0]]
    for share in range(shares):
        part = inner[share * len(inner) // shares : (share + 1) * len(inner) // shares]
        extremes = {part.index(pick(part, key=lambda point: point[1])) for pick in (min, max)}
        kept += [part[index] for index in sorted(extremes)]
    return [*kept, points[-1]]
