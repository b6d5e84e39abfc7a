"""Report how a job ended, and which schedulers and databases do not answer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from ffdl_batch.cli.render.formatting import format_time
from ffdl_batch.exit_handling import complain

if TYPE_CHECKING:
    from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseOutage
    from ffdl_batch.domain.job.views import JobView


def report_not_kept(job: JobView) -> None:
    """Report links and other things in the results that were not stored, or not as they are."""
    from ffdl_batch.domain.outcome.controller_events import NOT_KEPT

    for warning in job.warnings:
        if warning.startswith(NOT_KEPT):
            complain(f"{job.id}: {warning}")


def report_end(job: JobView, exit_code: int) -> None:
    """Print how the job ended, its last line, and how to see more. Print nothing for a completed job."""
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


SEEN = "jobs continue; states are the last known ones"
"""The consequence for a command that shows jobs."""
REQUESTED = "the request is stored: running jobs get it now, the scheduler gets it when it answers"
"""The consequence for a command that sends requests to jobs."""
KEPT = "jobs are stored, and submitted to it when it answers"
"""The consequence for a command that submits jobs."""
_ENDS = "jobs continue; how jobs ended that the scheduler no longer knows is not known until it answers"
"""The consequence of an outage of an accounting, for a command that shows jobs. Other commands do not need one."""

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def print_outages(outages: Iterable[BackendHealth], meaning: str, backends: AbstractSet[str]) -> None:
    """Print since when and why each of `outages` does not answer, and what that means for jobs on `backends` ("" =
    unknown). Outages of other backends are not printed."""
    for one in outages:
        if backends.isdisjoint({one.accounts_for or one.name, ""}) or (one.accounts_for and meaning != SEEN):
            continue
        complain(f"{one.name} {describe_outage(one, time.time())}; {_ENDS if one.accounts_for else meaning}")


def print_database_outage(outage: DatabaseOutage | None) -> None:
    """Print since when and why the states of jobs do not change, if there is an outage."""
    if outage is not None:
        complain(f"{describe_database_outage(outage, time.time())}; {SEEN}")


def describe_database_outage(outage: DatabaseOutage, now: float) -> str:
    """Return ``since 12:34:56 (4 min) the database ... cannot be used: <cause and cure>``."""
    return f"since {_describe_moment(outage.since, now)} {outage.detail}"


def describe_outage(one: BackendHealth, now: float) -> str:
    """Return ``unreachable since 12:34:56 (4 min): <cause>``; "" if the backend answers. An outage that the daemon has
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
