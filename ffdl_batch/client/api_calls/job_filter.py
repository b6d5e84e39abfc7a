"""Which jobs a listing holds."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a listing holds. `states` are names as in JobState; `since` is seconds since the epoch; `array` is the
    id of the array that they are elements of."""

    states: tuple[str, ...] = ()
    name: str = ""
    since: float | None = None
    limit: int | None = None
    all_users: bool = False
    array: str = ""

    def query(self) -> str:
        """The query part of the URL, with its question mark."""
        pairs = [("state", state) for state in self.states]
        if self.name:
            pairs.append(("name", self.name))
        if self.since is not None:
            pairs.append(("since", f"{self.since:.6f}"))
        if self.limit is not None:
            pairs.append(("limit", str(self.limit)))
        if self.all_users:
            pairs.append(("all_users", "true"))
        if self.array:
            pairs.append(("array", self.array))
        return f"?{urlencode(pairs)}" if pairs else ""
