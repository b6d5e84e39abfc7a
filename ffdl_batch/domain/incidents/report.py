"""What failed in a period: the values of a report, and what they come to. Pure.

Incidents are chosen by when they were noticed, so that nothing falls between two reports; the trend compares by when
they happened.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ffdl_batch.domain.incidents.incident import IncidentRow, Origin
from ffdl_batch.domain.incidents.kinds import kind_of

HOUR_S = 3600.0
BINS = 24
TOP = 10
MOST_ROWS = 5000
"""Incidents that a report holds in full, the newest ones; all are counted."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """How many incidents have this cause, node or user, how many had in the period before, and what was lost."""

    name: str
    title: str
    incidents: int
    before: int
    lost_gpu_hours: float


@dataclass(frozen=True, slots=True)
class Bin:
    """A part of the period, from `at` on; `before` is that of the period before, at the same distance."""

    at: float
    incidents: int
    before: int


@dataclass(frozen=True, slots=True)
class FaultsReport:
    """What failed from `since` to `until`. `as_of` is the recorder's clock when the report was made: an incident that
    is noticed later is a later report's. `rows` are those noticed after `rows_after`, oldest first, `left_out` how many
    more there are. Sums are of what was noticed in the period; `before` and `bins` compare by when it happened.
    `jobs` is how many jobs had any. `own_only`: it covers the caller's jobs only."""

    since: float
    until: float
    as_of: float
    rows_after: float
    own_only: bool = False
    incidents: int = 0
    happened: int = 0
    before: int = 0
    jobs: int = 0
    lost_gpu_hours: float = 0.0
    left_out: int = 0
    origins: tuple[Ranked, ...] = ()
    causes: tuple[Ranked, ...] = ()
    nodes: tuple[Ranked, ...] = ()
    users: tuple[Ranked, ...] = ()
    bins: tuple[Bin, ...] = ()
    rows: tuple[IncidentRow, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Scope:
    """The times that a report is about: from after `since` to `until`, at `as_of`, with all rows after `rows_after`."""

    since: float
    until: float
    as_of: float
    rows_after: float

    @property
    def first(self) -> float:
        """From then on incidents have to be read: the beginning of the period before, or of the rows."""
        return min(self.since - (self.until - self.since), self.rows_after)


Names = Callable[[IncidentRow], Iterable[str]]


def make_report(rows: Sequence[IncidentRow], scope: Scope, *, own_only: bool = False) -> FaultsReport:
    """The report of all incidents that were noticed from the scope's first moment on."""
    noticed = [row for row in rows if scope.since < row.noticed_at <= scope.until]
    happened = [row for row in rows if scope.since < row.at <= scope.until]
    before = [row for row in rows if 2 * scope.since - scope.until < row.at <= scope.since]
    shown = [row for row in rows if scope.rows_after < row.noticed_at <= scope.until]
    return FaultsReport(
        scope.since,
        scope.until,
        scope.as_of,
        scope.rows_after,
        own_only,
        incidents=len(noticed),
        happened=len(happened),
        before=len(before),
        jobs=len({row.job for row in noticed}),
        lost_gpu_hours=sum(row.lost_gpu_hours for row in noticed),
        left_out=max(0, len(shown) - MOST_ROWS),
        origins=_rank(noticed, before, lambda row: (row.origin,), lambda name: name, len(Origin)),
        causes=_rank(noticed, before, lambda row: (row.kind,), lambda name: kind_of(name).title, 4 * TOP),
        nodes=_rank(noticed, before, _nodes_at_fault, lambda _: "", TOP),
        users=_rank(noticed, before, lambda row: (row.user,), lambda _: "", TOP),
        bins=_bins(happened, before, scope),
        rows=tuple(shown[-MOST_ROWS:]),
    )


def _nodes_at_fault(row: IncidentRow) -> Iterable[str]:
    return row.nodes if row.origin == Origin.NODE else ()


def _rank(
    now: Iterable[IncidentRow], before: Iterable[IncidentRow], names: Names, title: Callable[[str], str], most: int
) -> tuple[Ranked, ...]:
    """The names with the most incidents. What was lost with several nodes is each one's in equal parts."""
    counts, earlier = Counter[str](), Counter[str]()
    lost: defaultdict[str, float] = defaultdict(float)
    for row in now:
        found = tuple(names(row))
        counts.update(found)
        for name in found:
            lost[name] += row.lost_gpu_hours / len(found)
    for row in before:
        earlier.update(names(row))
    order = sorted(counts, key=lambda name: (-counts[name], -lost[name], name))[:most]
    return tuple(Ranked(name, title(name), counts[name], earlier[name], lost[name]) for name in order)


def _bins(now: Iterable[IncidentRow], before: Iterable[IncidentRow], scope: Scope) -> tuple[Bin, ...]:
    length = scope.until - scope.since
    wide = length / BINS
    counts, earlier = [0] * BINS, [0] * BINS
    for rows, start, into in ((now, scope.since, counts), (before, scope.since - length, earlier)):
        for row in rows:
            into[min(BINS - 1, max(0, int((row.at - start) / wide)))] += 1
    return tuple(Bin(scope.since + n * wide, counts[n], earlier[n]) for n in range(BINS))
