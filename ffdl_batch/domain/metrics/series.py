"""Curves of measured values: a limited number of points of each, with count, last, least and most of all values.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import pairwise

from ffdl_batch.domain.metrics.records import FLOAT, INT, MetricRecord
from ffdl_batch.domain.metrics.usage import UsageSample, Use
from ffdl_batch.host.fast_dataclass import dataclass

MOST_POINTS = 4000
"""A curve with more points than this loses every second one."""
TIME = "time"
AXES = ("iteration", "step", "global_step", "epoch")
"""Preferred time axes, in this order; without any, the seconds since the first record."""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Name:
    """What a curve shows."""

    job: str
    learner: int
    """0 = of a whole node."""
    group: str
    value: str
    axis: str = TIME
    unit: str = ""
    """"" for users' own values."""

    @property
    def label(self) -> str:
        """Group and value."""
        return f"{self.group}/{self.value}" if self.group else self.value


@dataclass(slots=True)
class Series:
    """One curve. Values that are not finite are counted, but are no points. The last point is always kept."""

    name: Name
    count: int = 0
    last: float = math.nan
    last_x: float = math.nan
    least: float = math.inf
    most: float = -math.inf
    least_x: float = math.nan
    """Where the curve was least first."""
    most_x: float = math.nan
    _points: list[tuple[float, float]] = field(default_factory=list)
    _stride: int = 1
    _finite: int = 0
    _end: tuple[float, float] | None = None

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        self.count += 1
        self.last, self.last_x = y, x
        if not (math.isfinite(x) and math.isfinite(y)):
            return
        if y < self.least:
            self.least, self.least_x = y, x
        if y > self.most:
            self.most, self.most_x = y, x
        self._end = (x, y)
        if self._finite % self._stride == 0:
            self._points.append(self._end)
            if len(self._points) > MOST_POINTS:
                self._points, self._stride = self._points[::2], self._stride * 2
        self._finite += 1

    @property
    def points(self) -> list[tuple[float, float]]:
        """At most MOST_POINTS and the last one, in order."""
        if self._end is not None and self._points[-1] != self._end:
            return [*self._points, self._end]
        return list(self._points)


class Curves:
    """The curves of some jobs, in the order of their first points. `axis` "" = the first of AXES that a record has."""

    def __init__(self, axis: str = "") -> None:
        self._axis = axis
        self._series: dict[tuple[str, int, str, str], Series] = {}
        self._began: dict[str, float] = {}
        self._counters: dict[tuple[str, int, str, str], tuple[float, float]] = {}

    def __iter__(self) -> Iterator[Series]:
        return iter(self._series.values())

    def add_record(self, job: str, learner: int, record: MetricRecord) -> None:
        """Add all numbers of a record."""
        axis, x = self._place(job, record)
        group = f"{record.subid}/{record.group}" if record.subid else record.group
        for value, measure in record.values.items():
            if measure.type in (INT, FLOAT) and (number := _number(measure.value)) is not None:
                self._add(Name(job, learner, group, value, axis), x, number)

    def add_sample(self, job: str, node: int, sample: UsageSample) -> None:
        """Add rates and amounts of a sample, by the seconds since the job's first one."""
        x = sample.at - self._began.setdefault(job, sample.at)
        where = f"node {node}"
        if sample.node is not None:
            self._add_use(job, 0, where, x, sample.node)
        for learner, use in sample.learners.items():
            self._add_use(job, int(learner) if learner.isdecimal() else 0, where, x, use)
        for counter, value in (("received", sample.received_bytes), ("sent", sample.sent_bytes)):
            self._rate(Name(job, 0, where, f"network {counter}", TIME, "B/s"), x, value)
        for gpu in sample.gpus:
            of = f"gpu {gpu.name}"
            self._amount(Name(job, gpu.learner_id, where, of, TIME, "%"), x, gpu.used and gpu.used * 100)
            self._amount(Name(job, gpu.learner_id, where, f"{of} memory", TIME, "B"), x, gpu.memory_bytes)

    def _add_use(self, job: str, learner: int, where: str, x: float, use: Use) -> None:
        self._rate(Name(job, learner, where, "cpu", TIME, "cores"), x, use.cpu_s)
        self._amount(Name(job, learner, where, "memory", TIME, "B"), x, use.memory_bytes)
        self._rate(Name(job, learner, where, "storage read", TIME, "B/s"), x, use.read_bytes)
        self._rate(Name(job, learner, where, "storage written", TIME, "B/s"), x, use.written_bytes)

    def _amount(self, name: Name, x: float, value: float | None) -> None:
        if value is not None:
            self._add(name, x, float(value))

    def _rate(self, name: Name, x: float, counter: float | None) -> None:
        """Add the rate of a counter between two samples. A counter that was reset (by another attempt) begins a new
        pair."""
        if counter is None:
            return
        key = _key(name)
        before = self._counters.get(key)
        self._counters[key] = (x, counter)
        if before is not None and x > before[0] and counter >= before[1]:
            self._add(name, x, (counter - before[1]) / (x - before[0]))

    def _add(self, name: Name, x: float, y: float) -> None:
        self._series.setdefault(_key(name), Series(name)).add(x, y)

    def _place(self, job: str, record: MetricRecord) -> tuple[str, float]:
        wanted = (self._axis,) if self._axis and self._axis != TIME else () if self._axis == TIME else AXES
        for axis in wanted:
            measure = record.etimes.get(axis)
            x = _number(measure.value) if measure is not None else None
            if x is not None:
                return axis, x
        at = record.time_ms / 1000
        return TIME, at - self._began.setdefault(job, at)


def _key(name: Name) -> tuple[str, int, str, str]:
    return name.job, name.learner, name.group, name.value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as at most `width` characters, each the mean of its share."""
    if not values:
        return ""
    shares = min(width, len(values))
    edges = [round(i * len(values) / shares) for i in range(shares + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    least, most = min(means), max(means)
    span = most - least
    if not math.isfinite(span) or span == 0:
        return _BARS[3] * shares
    return "".join(_BARS[min(len(_BARS) - 1, int((mean - least) / span * len(_BARS)))] for mean in means)
