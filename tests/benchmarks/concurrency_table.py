"""The table of concurrent jobs: table 1 of FfDL's workshop paper, and ours beside it. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.figures import Figure, aligned, shown

_HEADER = ("concurrent jobs", "who", "n", "mean", "min", "max", "stdev", "unit", "mean over that of the fewest")
_NUMERIC = (0, 2, 3, 4, 5, 6, 8)
THEIRS = "FfDL, published"
PUBLISHED = {
    10: (50.15, 43.23, 54.22, 4.17),
    20: (58.36, 43.95, 64.63, 5.48),
    30: (74.67, 54.68, 186.73, 21.69),
    40: (81.36, 49.48, 129.93, 23.93),
}
"""Mean, min, max and stdev of completion times in seconds, by the number of concurrent jobs: "Scalable Multi-Framework
Multi-Tenant Lifecycle Management of Deep Learning Training Jobs" (NIPS 2017 workshop), Torch text classification on 40
GPUs of 10 nodes."""


@dataclass(frozen=True, slots=True)
class Level:
    """Completion times of jobs that one who submitted at the same moment, one sample for each job."""

    jobs: int
    who: str
    seconds: Sequence[float]

    def values(self) -> tuple[float, float, float, float]:
        """Return mean, min, max and stdev."""
        spread = statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0
        return statistics.fmean(self.seconds), min(self.seconds), max(self.seconds), spread

    def figure(self) -> Figure:
        """For JSON, all samples included."""
        mean, _, _, spread = self.values()
        detail = {"jobs": self.jobs, "mean": mean, "stdev": spread, "published": PUBLISHED.get(self.jobs)}
        what = f"{self.jobs} concurrent jobs: completion"
        return Figure("concurrency", what, self.who, "s", self.seconds, detail=detail)


def growth_figures(levels: Sequence[Level]) -> list[Figure]:
    """Return by how much the mean grows from the fewest to the most jobs, and by how much more than that of srun."""
    means = {(one.who, one.jobs): one.values()[0] for one in levels}
    means |= {(THEIRS, jobs): values[0] for jobs, values in PUBLISHED.items()}
    numbers = sorted({one.jobs for one in levels})
    fewest, most = numbers[0], numbers[-1]
    factors = {
        who: means[who, most] / means[who, fewest]
        for who in dict.fromkeys(who for who, _ in means)
        if {(who, fewest), (who, most)} <= means.keys()
    }
    what = f"growth of the mean from {fewest} to {most} jobs"
    figures = [Figure("concurrency", what, who, "%", [100 * (factor - 1)]) for who, factor in factors.items()]
    beyond = 100 * (factors["ffdl"] / factors["srun"] - 1)
    return [*figures, Figure("concurrency", f"{what}, beyond that of srun", "ffdl", "%", [beyond], "<= 5")]


def concurrency_table(levels: Sequence[Level]) -> str:
    """Aligned columns: for each number of jobs ours, the plain tool's and the published figures."""
    rows = [(one.jobs, one.who, str(len(one.seconds)), one.values()) for one in levels]
    rows += [(jobs, THEIRS, "", values) for jobs, values in PUBLISHED.items() if jobs in {one.jobs for one in levels}]
    rows.sort(key=lambda row: row[0])
    first = {who: values[0] for _, who, _, values in reversed(rows)}
    cells = [
        (str(jobs), who, n, *map(shown, values), "s", f"{100 * (values[0] / first[who] - 1):+.0f} %")
        for jobs, who, n, values in rows
    ]
    return aligned([_HEADER, *cells], _NUMERIC)
