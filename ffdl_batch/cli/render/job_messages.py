"""Report how a job ended, and which schedulers or databases do not answer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from ffdl_batch.cli.exit_handling import complain
from ffdl_batch.cli.render.formatting import format_time
from ffdl_batch.domain.outcome.controller_events import NOT_KEPT

if TYPE_CHECKING:
    from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseOutage
    from ffdl_batch.domain.job.views import JobView


def report_not_kept(job: JobView) -> None:
    """Report links and other things in the results that were not stored, or not as they are."""
    for warning in job.warnings:
        if warning.startswith(NOT_KEPT):
            complain(f"{job.id}: {warning}")


def report_end(job: JobView, exit_code: int) -> None:
    """How the job ended, its last words, and where the rest is; nothing of one that is done."""
    if job.error_code != "000":
        complain(f"{job.id}: {job.state}: {job.error_code} {job.message}")
    elif exit_code and job.message:
        complain(f"{job.id}: {job.state}: {job.message}")
    report_not_kept(job)
    if job.error_code == "000":
        return
    last = next((line for line in reversed(job.log_tail) if line.strip()), "")
    if last:
        complain(f"{job.id}: its last line: {last}")
    complain(f"{job.id}: the whole output: ffdl logs {job.id}; everything else: ffdl show {job.id}")


SEEN = "jobs go on, states are as last seen"
"""For a command that shows jobs."""
WISHED = "the request is noted: what runs obeys as soon as it hears, and the scheduler is told when it answers"
"""For a command that requests something of jobs."""
KEPT = "jobs are kept, and handed over when it answers"
"""For a command that submits them."""
_ENDS = "jobs go on; how those ended that the scheduler has forgotten is told when it answers"
"""Of an accounting, for a command that shows jobs. No other command depends on one."""

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def print_outages(outages: Iterable[BackendHealth], meaning: str, backends: AbstractSet[str]) -> None:
    """Say since when and why each of `outages` does not answer, and what that means for the reader, whose jobs live on
    `backends` ("" among them = unknown). An outage of another backend is nothing to the reader."""
    for one in outages:
        if backends.isdisjoint({one.accounts_for or one.name, ""}) or (one.accounts_for and meaning != SEEN):
            continue
        complain(f"{one.name} {describe_outage(one, time.time())}; {_ENDS if one.accounts_for else meaning}")


def print_database_outage(outage: DatabaseOutage | None) -> None:
    """Say, where there is one, that states of jobs stand still, since when and why."""
    if outage is not None:
        complain(f"{describe_database_outage(outage, time.time())}; {SEEN}")


def describe_database_outage(outage: DatabaseOutage, now: float) -> str:
    """``since 12:34:56 (4 min) the database ... cannot be used: <cause and cure>``."""
    return f"since {_describe_moment(outage.since, now)} {outage.detail}"


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
    """Return the age in its largest unit alone."""
    for unit_s, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {name}"
    return f"{int(seconds)} s"
