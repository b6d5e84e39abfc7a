"""Numbers in Prometheus' text format, version 0.0.4: counters, gauges and histograms. Pure.

Own code, for it is this little: the client library would be one more thing that every daemon needs.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from ffdl_batch.host.fast_dataclass import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Histogram:
    """How many values were at most each of `bounds` (growing), how many there were, and their sum."""

    bounds: Sequence[float]
    sum: float = 0.0
    _counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """One more value."""
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Bound and count of the values up to it; the last bound is infinity."""
        total, found = 0, []
        for bound, count in zip((*self.bounds, math.inf), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found


@dataclass(slots=True)
class Family:
    """One metric with all its labels. `kind` is counter, gauge or histogram; the name ends as its kind wants."""

    name: str
    kind: str
    help: str
    values: dict[Labels, float | Histogram] = field(default_factory=dict)

    def put(self, value: float | Histogram, **labels: str) -> None:
        """The value with these labels."""
        self.values[tuple(labels.items())] = value


def render(families: Iterable[Family]) -> str:
    """The whole text, in the order of the families."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {_escaped(family.help)}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.values.items():
            if isinstance(value, Histogram):
                lines += _histogram(family.name, dict(labels), value)
            else:
                lines.append(_line(family.name, dict(labels), value))
    return "".join(f"{line}\n" for line in lines)


def _histogram(name: str, labels: Mapping[str, str], histogram: Histogram) -> list[str]:
    counts = histogram.cumulative()
    buckets = [_line(f"{name}_bucket", {**labels, "le": _bound(bound)}, count) for bound, count in counts]
    total = counts[-1][1]
    return [*buckets, _line(f"{name}_sum", labels, histogram.sum), _line(f"{name}_count", labels, total)]


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _bound(bound: float) -> str:
    """Always with a point, as Prometheus writes it."""
    return "+Inf" if math.isinf(bound) else repr(float(bound))


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
