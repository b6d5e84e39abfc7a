"""``ffdl list``: list jobs as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_time, print_json, print_table, read_moment
from ffdl_batch.cli.render.job_messages import SEEN, print_database_outage, print_outages
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import complain
from ffdl_batch.option_types import WholeNumber

if TYPE_CHECKING:
    from ffdl_batch.domain.job.views import JobView

_COLUMNS = ("ID", "NAME", "FRAMEWORK", "STATE", "SUBMITTED", "ENDED", "NODES(REASON)")
_NAME_WIDTH = 28


@click.command("list", context_settings={"help_option_names": ["--help"]})
@click.option(
    "-t", "--state", "states", multiple=True, metavar="STATES", help="List only these states, such as PENDING,QUEUED."
)
@click.option("-n", "--name", default="", help="List only jobs with this name.")
@click.option(
    "-S",
    "--since",
    metavar="MOMENT",
    callback=read_moment,
    help="List only jobs submitted since then: 2h, 2027-01-20, yesterday.",
)
@click.option("--array", default="", metavar="ID", help="List only the jobs of this array, by index.")
@click.option(
    "-l", "--limit", type=WholeNumber(1, 9999), default=100, show_default=True, help="Maximum number of jobs."
)
@click.option("-a", "--all-users", is_flag=True, help="List jobs of all users; for administrators.")
@click.option("-h", "--noheader", is_flag=True, help="Print no header.")
@json_option()
def list_jobs(  # noqa: PLR0913  (one parameter per option)
    *,
    states: Sequence[str],
    name: str,
    since: float | None,
    array: str,
    limit: int,
    all_users: bool,
    noheader: bool,
    as_json: bool,
) -> None:
    """List jobs, newest first. Times are local."""
    from ffdl_batch.client.api import JobFilter
    from ffdl_batch.client.handles import MAX_LISTED

    is_default = click.get_current_context().get_parameter_source("limit") is ParameterSource.DEFAULT
    if array and is_default:
        limit = MAX_LISTED
    which = JobFilter(read_states(states), name, since, min(limit + 1, MAX_LISTED), all_users, array)
    with open_client() as client:
        found = client.list(which)
        if array and not found:
            client.arrays.get(array)  # raises if there is no such array
        outages, database_outage = client.outages, client.database_outage
    jobs = found[:limit]
    if len(found) > limit and is_default:  # one more than the limit was requested
        complain(f"there are more than {counted(limit, 'job')}; list more with -l, or select with -t and -S")
    print_outages(outages, SEEN, {job.backend for job in jobs if job.ended_at is None})
    print_database_outage(database_outage)
    if as_json:
        print_json({"jobs": jobs, "outages": outages, "database_outage": database_outage})
        return
    columns = (*_COLUMNS[:1], "USER", *_COLUMNS[1:]) if all_users else _COLUMNS
    print_table(columns, [_row(job, with_user=all_users) for job in jobs], header=not noheader)


def read_states(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the states of ``-t A,b -t c``; none for 'all', which means no restriction, as in squeue."""
    from ffdl_batch.domain.job_state import JobState

    names = [word.strip().upper() for text in texts for word in text.split(",") if word.strip()]
    if "ALL" in names:
        return ()
    known = [state.value for state in JobState]
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"{quoted(name)} is not a state; states are {', '.join(known)}", param_hint="--state"
            )
    return tuple(dict.fromkeys(names))


def _row(job: JobView, *, with_user: bool) -> list[str]:
    framework = f"{job.framework}:{job.framework_version}" if job.framework_version else job.framework
    row = [
        job.id,
        _short_name(job),
        framework if len(framework) <= _NAME_WIDTH else framework[: _NAME_WIDTH - 1] + "+",
        job.state,
        format_time(job.submitted_at),
        format_time(job.ended_at),
        place_or_reason(job),
    ]
    return [row[0], job.user, *row[1:]] if with_user else row


def _short_name(job: JobView) -> str:
    """Return the name cut to its column. The index of an array's element is not cut off."""
    kept = f"[{job.array_index}]" if job.array else ""
    return job.name if len(job.name) <= _NAME_WIDTH else f"{job.name[: _NAME_WIDTH - 1 - len(kept)]}+{kept}"


def place_or_reason(job: JobView) -> str:
    """Return the nodes, or in brackets the pending reason, the error, or the message of a halt, as in squeue."""
    if job.ended_at is None and (waits := _waits_for(job)):
        return f"({'; '.join(waits)})"
    if job.error_code not in ("", "000"):
        return f"({job.error_code} {job.message})" if job.message else f"({job.error_code})"
    if job.state == "HALTED" and job.message:
        return f"({job.message})"
    return job.nodes


def _waits_for(job: JobView) -> list[str]:
    """Return what the job waits for: the user's request, the scheduler's answer, or its pending reason."""
    waits = [f"{job.requested_action} requested"] if job.requested_action not in ("", "none") else []
    if job.uncertain_since is not None:
        waits.append(job.pending_reason or "waiting for the scheduler's answer")
    elif job.pending_reason and not waits:
        waits.append(job.pending_reason)
    return waits
