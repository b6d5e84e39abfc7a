"""The table of recovery times, in the shape of the published one. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.figures import Figure, aligned, shown

_HEADER = ("FfDL's part", "published", "our part", "from its SIGKILL to", "where", "n", "min", "median", "max", "unit")
_NUMERIC = range(5, 9)
PUBLISHED = {"API": "3-5 s", "LCM": "4-6 s", "Guardian": "1-2 s", "helper": "3-4 s", "learner": "10-20 s"}
"""About what FfDL's authors published; docs/benchmarks.md says where."""


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
            PUBLISHED[self.stands_for],
            self.part,
            self.until,
            self.where,
            str(len(self.seconds)),
            *map(shown, values),
            "s",
        )

    def figure(self) -> Figure:
        """For JSON, all samples included."""
        detail = {"stands_for": self.stands_for, "published": PUBLISHED[self.stands_for], "where": self.where}
        return Figure("recovery", f"{self.part}: {self.until}", "ffdl", "s", self.seconds, detail=detail)


def recovery_table(recoveries: Sequence[Recovery]) -> str:
    """Aligned columns in the order of the published table; numbers to the right."""
    order = list(PUBLISHED)
    rows = [one.row() for one in sorted(recoveries, key=lambda one: order.index(one.stands_for))]
    return aligned([_HEADER, *rows], _NUMERIC)
