"""``ffdl list``: list jobs as a table."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.core import ParameterSource

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.options.selection import read_states
from ffdl_batch.cli.render.formatting import print_json, read_moment
from ffdl_batch.cli.render.job_list import print_jobs
from ffdl_batch.cli.render.job_messages import SEEN, print_database_outage, print_outages
from ffdl_batch.domain.number_text import counted
from ffdl_batch.exit_handling import complain
from ffdl_batch.option_types import WholeNumber


@click.command("list")
@click.option(
    "-t",
    "-s",
    "--state",
    "--states",
    "states",
    multiple=True,
    metavar="STATES",
    help="List only these states, such as PENDING,QUEUED. RUNNING (R) and PD stand for several states, as in squeue.",
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
@click.option("--me", is_flag=True, help="List only your own jobs, as without this option.")
@click.option("-a", "--all-users", is_flag=True, help="List jobs of all users; for administrators.")
@click.option("--disk", is_flag=True, help="Show the disk space of each job's directory; measuring may take a minute.")
@click.option("--wide", is_flag=True, help="Print all columns, also if lines do not fit the terminal.")
@click.option("--noheader", is_flag=True, help="Print no header.")
@json_option()
def list_jobs(  # noqa: PLR0913  (one parameter per option)
    *,
    states: Sequence[str],
    name: str,
    since: float | None,
    array: str,
    limit: int,
    me: bool,
    all_users: bool,
    disk: bool,
    wide: bool,
    noheader: bool,
    as_json: bool,
) -> None:
    """List jobs, newest first. Times are local.

    TIME is the elapsed time of the latest run. On a terminal, columns that do not fit are left out.
    """
    if me and all_users:
        raise click.UsageError("--me and --all-users exclude each other")
    from ffdl_batch.client.api import JobFilter
    from ffdl_batch.client.handles import MAX_LISTED

    is_default = click.get_current_context().get_parameter_source("limit") is ParameterSource.DEFAULT
    if array and is_default:
        limit = MAX_LISTED
    which = JobFilter(
        read_states(states, "--state"), name, since, min(limit + 1, MAX_LISTED), all_users, array, disk=disk
    )
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
    hidden = [head for head, is_wanted in (("USER", all_users), ("DISK", disk)) if not is_wanted]
    print_jobs(jobs, hidden=hidden, header=not noheader, wide=wide)
