"""One line about each scheduler that does not answer, and about a database that takes nothing, on standard error,
whatever a command printed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from ffdl_batch.cli.exit_handling import complain
from ffdl_batch.cli.render.formatting import format_time

if TYPE_CHECKING:
    from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseTrouble

SEEN = "jobs go on, states are as last seen"
"""For a command that shows jobs."""
WISHED = "the request is noted: what runs obeys as soon as it hears, and the scheduler is told when it answers"
"""For a command that wishes something of them."""
KEPT = "jobs are kept, and handed over when it answers"
"""For a command that submits them."""
_ENDS = "jobs go on; how those ended that the scheduler has forgotten is told when it answers"
"""Of an accounting, for a command that shows jobs. No other command depends on one."""

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def tell_outages(outages: Iterable[BackendHealth], meaning: str, backends: AbstractSet[str]) -> None:
    """Say since when and why each of `outages` does not answer, and what that means for the reader, whose jobs live on
    `backends` ("" among them = nobody knows where). An outage of another backend is nothing to the reader."""
    for one in outages:
        if backends.isdisjoint({one.accounts_for or one.name, ""}) or (one.accounts_for and meaning != SEEN):
            continue
        complain(f"{one.name} {describe_outage(one, time.time())}; {_ENDS if one.accounts_for else meaning}")


def tell_trouble(trouble: DatabaseTrouble | None) -> None:
    """Say, where there is one, that states of jobs stand still, since when and why."""
    if trouble is not None:
        complain(f"{describe_trouble(trouble, time.time())}; {SEEN}")


def describe_trouble(trouble: DatabaseTrouble, now: float) -> str:
    """``since 12:34:56 (4 min) the database ... cannot be used: <cause and cure>``."""
    return f"since {_describe_moment(trouble.since, now)} {trouble.detail}"


def describe_outage(one: BackendHealth, now: float) -> str:
    """``unreachable since 12:34:56 (4 min): <cause>``; "" where the backend answers. An outage that the daemon has
    known since its own start may be older."""
    if one.unreachable_since is None:
        return ""
    since = "since before" if one.maybe_before else "since"
    return f"unreachable {since} {_describe_moment(one.unreachable_since, now)}: {one.detail}"


def _describe_moment(since: float, now: float) -> str:
    age_s = max(0.0, now - since)
    moment = format_time(since) if age_s >= _DAY_S else format_time(since).partition("T")[2]
    return f"{moment} ({_format_age(age_s)})"


def _format_age(seconds: float) -> str:
    """The largest unit alone: nobody asks for more."""
    for unit_s, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {name}"
    return f"{int(seconds)} s"
