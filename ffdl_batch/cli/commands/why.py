"""``ffdl why``: why a job is pending, and what would start sooner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.arrays import is_array
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.newest_job import newest_job
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.cli.render.job_messages import print_database_outage
from ffdl_batch.cli.render.plan import print_why
from ffdl_batch.exit_handling import complain

if TYPE_CHECKING:
    from ffdl_batch.client import Client

_WAITS = frozenset({"PENDING", "DEPLOYING", "QUEUED"})


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[ID...]")
@click.option("--alternatives/--no-alternatives", default=True, show_default=True,
              help="Ask the scheduler what would start sooner, without a submission.")  # fmt: skip
@json_option("Print JSON, one line per job.")
def why(job_ids: Sequence[str], alternatives: bool, as_json: bool) -> int:
    """Explain why a job is pending: the evidence, what you can do, when it may start, and what would start sooner.

    Without an ID, explain the newest job. For a job that is not pending, show what it does. Example: ffdl why
    training-0a1b2c3d4
    """
    from ffdl_batch.client import UnknownJob

    code = 0
    with open_client() as client:
        for number, given in enumerate(job_ids or [newest_job(client)]):
            try:
                job_id = _first_waiting(client, given) if is_array(given) else given
                view = client.why(job_id, alternatives=alternatives)
            except UnknownJob as error:
                complain(str(error))
                code = error.problem.exit_code
                continue
            if as_json:
                print_json({"why": view})
                continue
            if number:
                click.echo()
            print_why(view)
        print_database_outage(client.database_outage)
    return code


def _first_waiting(client: Client, array: str) -> str:
    """Return the element of an array to explain: the first pending one, or else the first one."""
    elements = client.arrays.elements(array)
    waiting = [job for job in elements if job.state in _WAITS]
    if waiting:
        complain(f"{array}: {len(waiting)} of {len(elements)} elements wait; this is about the first of them")
    chosen = (waiting or elements)[:1]
    return chosen[0].id if chosen else array
