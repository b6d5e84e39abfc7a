"""Divide the rate of submissions to the scheduler between tenants by their weights.

A limited number of submissions is in progress at any time, site-wide. They are divided between groups (tenants, and
users without one) by weight: a group gets no more than it needs, and the others share the rest (max-min fairness). Each
group may always have one. Submissions of all groups take equally long, so their rates follow the shares.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from ffdl_batch.host.fast_dataclass import dataclass

AT_ONCE = 64
"""Submissions in progress. More concurrent submissions do not raise Slurm's throughput."""
FORGOTTEN_S = 30.0
"""After this time a job counts as handed over, even if its daemon did not report it."""
DEMAND_S = 6.0
"""How long jobs count as waiting after their daemon has asked for them; longer than daemons pause."""


@dataclass(frozen=True, slots=True)
class _Demand:
    """Jobs of a user that have not been granted."""

    count: int
    at: float


class FairWindow:
    """The jobs that are being handed over. Safe in every thread."""

    def __init__(self, at_once: int = AT_ONCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once, self._clock = at_once, clock
        self._lock = threading.Lock()
        self._granted: dict[tuple[int, str], tuple[str, float]] = {}
        """(uid, job) → group, and when it was granted; oldest first."""
        self._demands: dict[tuple[str, int], _Demand] = {}
        self._weights: dict[str, float] = {}

    def note_handed(self, uid: int, jobs: Collection[str]) -> None:
        """Stop counting jobs that the scheduler has accepted or rejected, or that ask again."""
        with self._lock:
            for job in jobs:
                self._granted.pop((uid, job), None)

    def room(self, group: str, weight: float, uid: int, count: int) -> int:
        """Return how many of `count` jobs of a user may be granted now. The rest count as waiting."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            self._weights[group] = weight
            self._demands[group, uid] = _Demand(count, now)
            running = Counter(group for group, _ in self._granted.values())
            needs = Counter(running)
            for (owner, _), demand in self._demands.items():
                needs[owner] += demand.count
            share = max_min_shares(needs, self._weights, self._at_once)[group]
            room = min(count, max(math.floor(share) - running[group], 0 if running[group] else 1))
            if room < count:
                self._demands[group, uid] = _Demand(count - room, now)
            else:
                del self._demands[group, uid]
            return room

    def grant(self, group: str, uid: int, jobs: Collection[str]) -> None:
        """Count jobs as being handed over."""
        with self._lock:
            now = self._clock()
            for job in jobs:
                self._granted[uid, job] = (group, now)

    def _forget(self, now: float) -> None:
        old = [key for key, (_, at) in self._granted.items() if now - at > FORGOTTEN_S]
        for key in old:
            del self._granted[key]
        gone = [key for key, demand in self._demands.items() if now - demand.at > DEMAND_S]
        for demand_key in gone:
            del self._demands[demand_key]


def max_min_shares(needs: Mapping[str, float], weights: Mapping[str, float], total: float) -> dict[str, float]:
    """Return the share of each group: in proportion to its weight, and at most what it needs."""
    shares = dict.fromkeys(needs, 0.0)
    open_groups, left = set(needs), total
    while open_groups:
        weight = math.fsum(weights[group] for group in open_groups)
        full = {group for group in open_groups if needs[group] <= left * weights[group] / weight}
        if not full:
            return shares | {group: left * weights[group] / weight for group in open_groups}
        shares |= {group: needs[group] for group in full}
        left -= math.fsum(needs[group] for group in full)
        open_groups -= full
    return shares
