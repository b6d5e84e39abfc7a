"""``ffdl rm``: remove jobs that have ended, with their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.arrays import elements_of, is_array
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import print_json, read_moment
from ffdl_batch.domain.number_text import counted, size_text
from ffdl_batch.exit_handling import complain

if TYPE_CHECKING:
    from ffdl_batch.client import Client

_REMOVABLE = ("COMPLETED", "FAILED", "CANCELLED")


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[ID...]")
@click.option(
    "--older-than",
    "ended_before",
    metavar="MOMENT",
    callback=read_moment,
    help="Remove all jobs that ended before then: 30d, 2027-01-20.",
)
@click.option("--dry-run", is_flag=True, help="Print which jobs would be removed, and remove nothing.")
@json_option("Print JSON, one line per job.")
def remove(job_ids: Sequence[str], ended_before: float | None, dry_run: bool, as_json: bool) -> int:
    """Remove jobs, or the jobs of an array, with their logs, checkpoints and results in the jobs' directories.

    Results in data stores are kept, and usage reports still count the jobs. Jobs that run, that are HALTED, or whose
    results are not stored yet are not removed; a message on standard error says why, and the exit code is 1.

    The setting retention.days removes jobs like --older-than, without a command.
    """
    from ffdl_batch.client import RequestRefused

    if bool(job_ids) == (ended_before is not None):
        raise click.UsageError("name jobs, or give --older-than")
    code, count, total = 0, 0, 0
    with open_client() as client:
        for job_id in _chosen(client, job_ids, ended_before):
            try:
                job = client.remove(job_id, dry_run=dry_run)
            except RequestRefused as error:  # one job that must stay does not protect the others
                complain(str(error))
                code = code or error.problem.exit_code
                continue
            count, total = count + 1, total + (job.disk_bytes or 0)
            if as_json:
                print_json({"job": job})
            else:
                size = "an unknown size" if job.disk_bytes is None else size_text(job.disk_bytes)
                click.echo(f"{job.id} {'would be removed' if dry_run else 'removed'}, {size}")
    if count != 1:
        complain(f"{counted(count, 'job')} {'would be removed' if dry_run else 'removed'}, {size_text(total)}")
    return code


def _chosen(client: Client, job_ids: Sequence[str], ended_before: float | None) -> Iterator[str]:
    """Yield the ids of the jobs, with each array replaced by its jobs."""
    from ffdl_batch.client.api import JobFilter
    from ffdl_batch.client.handles import MAX_LISTED

    if ended_before is not None:
        found = client.list(JobFilter(_REMOVABLE, limit=MAX_LISTED, ended_before=ended_before))
        if len(found) == MAX_LISTED:
            complain(f"there may be more than {MAX_LISTED} jobs; run the command again for the others")
        yield from (job.id for job in found)
    for job_id in job_ids:
        yield from (job.id for job in elements_of(client, job_id)) if is_array(job_id) else [job_id]
