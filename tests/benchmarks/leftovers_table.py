"""What jobs leave on their nodes: counts before, meanwhile and after, and their table. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.figures import Figure, aligned

Count = Mapping[str, frozenset[str]]
"""Names by kind, each with its node."""
_HEADER = ("jobs", "what the nodes have", "before", "most at once", "after", "left behind")
_NUMERIC = range(2, 6)


@dataclass(frozen=True, slots=True)
class Coming:
    """Jobs that came and went. `networks` of them had a network, `most` is the largest count of each kind that was
    seen meanwhile."""

    who: str
    jobs: int
    networks: int
    seconds: float
    before: Count
    most: Mapping[str, int]
    after: Count

    @property
    def left(self) -> Mapping[str, Sequence[str]]:
        """What is there and was not before."""
        return {kind: sorted(names) for kind, names in news(self.before, self.after).items() if names}

    def rows(self) -> list[tuple[str, ...]]:
        """A row of the table for each kind."""
        new = news(self.before, self.after)
        return [
            (
                f"{self.jobs}, {self.who}",
                kind,
                *(str(number) for number in (len(names), self.most[kind], len(self.after[kind]), len(new[kind]))),
            )
            for kind, names in self.before.items()
        ]

    def figures(self) -> list[Figure]:
        """How long it took, and what was left with its names."""
        what = f"{self.jobs} jobs come and go"
        number = sum(map(len, self.left.values()))
        return [
            Figure("leftovers", what, self.who, "s", [self.seconds]),
            Figure("leftovers", "of them with a network", self.who, "", [float(self.networks)]),
            Figure("leftovers", "left behind", self.who, "", [float(number)], "0", {"left": dict(self.left)}),
        ]


def named(node: str, counted: Mapping[str, Sequence[str]]) -> Count:
    """What one node has, with its name."""
    return {kind: frozenset(f"{node} {name}" for name in names) for kind, names in counted.items()}


def together(counts: Sequence[Count]) -> Count:
    """The nodes' counts as one."""
    return {kind: frozenset().union(*(count[kind] for count in counts)) for kind in counts[0]}


def news(before: Count, after: Count) -> Count:
    """What is in the second only."""
    return {kind: names - before[kind] for kind, names in after.items()}


def more(most: Mapping[str, int], seen: Count) -> Mapping[str, int]:
    """The larger number of each kind."""
    return {kind: max(most[kind], len(names)) for kind, names in seen.items()}


def leftovers_table(comings: Sequence[Coming]) -> str:
    """Aligned columns; numbers to the right."""
    return aligned([_HEADER, *(row for coming in comings for row in coming.rows())], _NUMERIC)
