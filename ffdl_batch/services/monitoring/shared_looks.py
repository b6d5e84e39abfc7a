"""Decides whether the daemon must query the scheduler about live jobs itself, if a hub shares its listing.

The hub is not trusted. Its listing can only show that nothing has changed since the daemon's own last query. If it
shows anything else, omits a job or is missing, the daemon queries the scheduler itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.outcome.shared_listing import SharedView
from ffdl_batch.host.fast_dataclass import dataclass

SLOW_S = 60.0
"""Average interval of own queries while the hub has no listing."""
TOO_OLD_S = 60.0
"""A listing older than this is ignored."""
LONGEST_S = 3600.0
"""Average interval of own queries if the hub shows no change."""


@dataclass(frozen=True, slots=True)
class Look:
    """The state of live jobs, as far as it is known now."""

    listed: Mapping[NativeId, Observation]
    is_own: bool = True
    """Whether it is the result of a new own query. If not, it is that of the last one, which the hub confirms."""


class SharedLooks:
    """The results of this daemon's own queries about the jobs of one backend. `random` returns numbers in [0, 1), which
    spread the queries of many daemons."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._own: dict[NativeId, Observation] = {}
        self._asked_at = 0.0
        self._due_at = 0.0
        self._is_alone = False

    def note_own(self, asked_at: float, listed: Mapping[NativeId, Observation]) -> None:
        """Record the result of an own query, which was sent at `asked_at`."""
        self._own, self._asked_at = dict(listed), asked_at
        self._due_at = asked_at + self._spread(SLOW_S if self._is_alone else LONGEST_S)

    def judge(self, ids: Collection[NativeId], view: SharedView | None, now: float) -> Look | None:
        """Return what is known without an own query; None if one is needed, as soon as :meth:`may_ask` permits it."""
        was_alone, self._is_alone = self._is_alone, view is None or view.age_s > TOO_OLD_S
        if self._is_alone and not was_alone and self._own:  # all daemons notice it at once
            self._due_at = now + SLOW_S * self._random()
        elif was_alone and not self._is_alone and self._own:
            self._due_at = self._asked_at + self._spread(LONGEST_S)
        if view is None or self._is_alone or now >= self._due_at or now - view.age_s < self._asked_at:
            return None
        unchanged = {native: seen for native in ids if (seen := self._unchanged(native, view.shown)) is not None}
        if len(unchanged) < len(ids):
            self._due_at = now
            return None
        self._own |= unchanged
        return Look(unchanged, is_own=False)

    def may_ask(self, now: float) -> bool:
        """Return whether an own query is due that no event requires."""
        return now >= self._due_at

    def _unchanged(self, native: NativeId, shown: Mapping[NativeId, Observation]) -> Observation | None:
        """Return the result of the last own query, if the listing shows the same. Only the pending reason may differ;
        the result has the newer one."""
        own, seen = self._own.get(native), shown.get(native)
        if own is None or seen is None or seen.phase is Phase.ENDED:
            return None
        if own == replace(seen, name=own.name):
            return own
        later = replace(own, reason=seen.reason) if own.phase is Phase.PENDING else own
        return later if later == replace(seen, name=own.name) else None

    def _spread(self, pause_s: float) -> float:
        return pause_s * (0.5 + self._random())
