"""The report of what failed in a period. Pure.

Incidents are selected by when they were noticed, so that each is in one report; the trend compares by when they
happened.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from ffdl_batch.domain.incidents.incident import IncidentRow, Origin
from ffdl_batch.domain.incidents.kinds import kind_of
from ffdl_batch.host.fast_dataclass import dataclass

HOUR_S = 3600.0
BINS = 24
TOP = 10
MOST_ROWS = 5000
"""Maximum number of incidents that a report has in full, the newest ones; all are counted."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A cause, node or user with its incidents."""

    name: str
    title: str
    incidents: int
    before: int
    """Incidents in the period before."""
    lost_gpu_hours: float


@dataclass(frozen=True, slots=True)
class Bin:
    """A part of the period, from `at` on."""

    at: float
    incidents: int
    before: int
    """Incidents in the corresponding part of the period before."""


@dataclass(frozen=True, slots=True)
class FaultsReport:
    """What failed from `since` to `until`. Sums count incidents that were noticed in the period; `before` and `bins`
    compare by when they happened."""

    since: float
    until: float
    as_of: float
    """The recorder's clock when the report was made: an incident that is noticed later is in a later report."""
    rows_after: float
    own_only: bool = False
    """Whether it covers only the caller's jobs."""
    incidents: int = 0
    happened: int = 0
    before: int = 0
    jobs: int = 0
    """Jobs with incidents."""
    lost_gpu_hours: float = 0.0
    left_out: int = 0
    """How many more rows there are."""
    origins: tuple[Ranked, ...] = ()
    causes: tuple[Ranked, ...] = ()
    nodes: tuple[Ranked, ...] = ()
    users: tuple[Ranked, ...] = ()
    bins: tuple[Bin, ...] = ()
    rows: tuple[IncidentRow, ...] = field(default=())
    """Incidents that were noticed after `rows_after`, oldest first."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The times of a report: from after `since` to `until`, at `as_of`, with all rows after `rows_after`."""

    since: float
    until: float
    as_of: float
    rows_after: float

    @property
    def first(self) -> float:
        """The time from which incidents have to be read: the beginning of the period before, or of the rows."""
        return min(self.since - (self.until - self.since), self.rows_after)


Names = Callable[[IncidentRow], Iterable[str]]


def make_report(rows: Sequence[IncidentRow], scope: Scope, *, own_only: bool = False) -> FaultsReport:
    """Return the report of all incidents that were noticed since the scope's first moment."""
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
    """Return the names with the most incidents. The loss with several nodes is divided equally among them."""
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
