"""The table of recovery times: parts of ours, beside the parts of FfDL that do the same work. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.figures import Figure, aligned, shown

_HEADER = ("FfDL's part", "our part", "from its SIGKILL to", "where", "n", "min", "median", "max", "unit")
_NUMERIC = range(4, 8)


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long it took from the death of one part until something. `stands_for` is the part of FfDL that does the same
    work."""

    stands_for: str
    part: str
    until: str
    where: str
    seconds: Sequence[float]

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        values = (min(self.seconds), statistics.median(self.seconds), max(self.seconds))
        return (
            self.stands_for,
            self.part,
            self.until,
            self.where,
            str(len(self.seconds)),
            *map(shown, values),
            "s",
        )

    def figure(self) -> Figure:
        """For JSON, all samples included."""
        detail = {"stands_for": self.stands_for, "where": self.where}
        return Figure("recovery", f"{self.part}: {self.until}", "ffdl", "s", self.seconds, detail=detail)


def recovery_table(recoveries: Sequence[Recovery]) -> str:
    """Aligned columns, rows in the order in which they were measured; numbers to the right."""
    return aligned([_HEADER, *(one.row() for one in recoveries)], _NUMERIC)
