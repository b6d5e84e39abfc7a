"""``ffdl cancel``, FfDL's ``delete``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.arrays import is_array, say
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import complain
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.cli.render.outages import WISHED, tell_outages

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.domain.job.views import ArrayView


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per job.")
def cancel(job_ids: Sequence[str], as_json: bool) -> int:
    """End jobs, or all jobs of an array, also those that are HALTED. Records, logs and what was stored stay.

    A job that has COMPLETED or FAILED is left as it is, which is said on standard error.
    """
    from ffdl_batch.client import RequestRefused
    from ffdl_batch.client.api import is_ended
    from ffdl_batch.domain.job_state import JobState

    code = 0
    wished: set[str] = set()
    with open_client() as client:
        for job_id in job_ids:
            try:
                if is_array(job_id):
                    array = _cancel_array(client, job_id, as_json=as_json)
                    wished |= set() if array.ended else {array.backend}
                    continue
                job = client.cancel(job_id)
                wished |= set() if is_ended(job) else {job.backend}
            except RequestRefused as error:  # one wrong id must not keep the others running
                complain(str(error))
                code = code or error.problem.exit_code
                continue
            if as_json:
                print_json({"job": job})
            else:
                click.echo(f"{job.id} {job.state}" if is_ended(job) else f"{job.id} {job.state}, cancel requested")
            if is_ended(job) and job.state != JobState.CANCELLED:
                complain(f"{job.id} had ended already, as {job.state}; nothing was cancelled")
        tell_outages(client.outages, WISHED, wished)
    return code


def _cancel_array(client: Client, array_id: str, *, as_json: bool) -> ArrayView:
    array = client.arrays.cancel(array_id)
    if as_json:
        print_json({"array": array})
    else:
        click.echo(say(array, "" if array.ended else "cancel requested"))
    return array
