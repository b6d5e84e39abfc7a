"""One line about each scheduler that does not answer, on standard error, whatever a command printed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ffdl_batch.cli.outcome import complain
from ffdl_batch.cli.present import format_time, printable

if TYPE_CHECKING:
    from ffdl_batch.domain.views import BackendHealth

SEEN = "jobs go on, states are as last seen"
"""For a command that shows jobs."""
WISHED = "the request is noted: what runs obeys now, the scheduler is told when it answers"
"""For a command that wishes something of them."""
KEPT = "jobs are kept, and handed over when it answers"
"""For a command that submits them."""

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def tell_outages(outages: Iterable[BackendHealth], meaning: str) -> None:
    """Say since when and why each of `outages` does not answer, and what that means for the reader."""
    for one in outages:
        complain(f"{one.name} {describe_outage(one, time.time())}; {meaning}")


def describe_outage(one: BackendHealth, now: float) -> str:
    """``unreachable since 12:34:56 (4 min): <cause>``; "" where the backend answers."""
    if one.unreachable_since is None:
        return ""
    since, age_s = one.unreachable_since, max(0.0, now - one.unreachable_since)
    moment = format_time(since) if age_s >= _DAY_S else format_time(since).partition("T")[2]
    return f"unreachable since {moment} ({_format_age(age_s)}): {printable(one.detail)}"


def _format_age(seconds: float) -> str:
    """The largest unit alone: nobody asks for more."""
    for unit_s, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {name}"
    return f"{int(seconds)} s"
