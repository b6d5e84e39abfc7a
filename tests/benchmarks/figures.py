"""Figures, and the table that shows them. Values only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

_HEADER = ("benchmark", "measure", "who", "n", "min", "median", "p99", "max", "unit", "aim")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing. `who` is "ffdl" or the plain tool; `aim` is ours, shown and not judged ("" = none)."""

    benchmark: str
    measure: str
    who: str
    unit: str
    samples: Sequence[float]
    aim: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        values = (min(self.samples), statistics.median(self.samples), self.percentile(99), max(self.samples))
        return (
            self.benchmark,
            self.measure,
            self.who,
            str(len(self.samples)),
            *map(shown, values),
            self.unit,
            self.aim,
        )

    def percentile(self, percent: float) -> float:
        """By the nearest rank: the smallest sample that at least `percent` of all do not exceed."""
        ordered = sorted(self.samples)
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]

    def plain(self) -> dict[str, object]:
        """For JSON, all samples included."""
        return {
            "benchmark": self.benchmark,
            "measure": self.measure,
            "who": self.who,
            "unit": self.unit,
            "n": len(self.samples),
            "min": min(self.samples),
            "median": statistics.median(self.samples),
            "p99": self.percentile(99),
            "max": max(self.samples),
            "aim": self.aim,
            "samples": list(self.samples),
            **self.detail,
        }


def shown(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(figures: Sequence[Figure]) -> str:
    """Aligned columns; numbers to the right."""
    return aligned([_HEADER, *(figure.row() for figure in figures)], range(3, 8))


def aligned(rows: Sequence[Sequence[str]], numeric: Container[int]) -> str:
    """Rows of cells as lines of a table; the columns in `numeric` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
