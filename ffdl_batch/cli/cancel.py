"""``ffdl cancel``, FfDL's ``delete``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.outcome import complain
from ffdl_batch.cli.present import print_json


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per job.")
def cancel(job_ids: Sequence[str], as_json: bool) -> int:
    """End jobs. Records, logs and what was stored stay; a job that has ended is left as it is."""
    from ffdl_batch.client import RequestRefused
    from ffdl_batch.client.api import is_ended

    code = 0
    with open_client() as client:
        for job_id in job_ids:
            try:
                job = client.cancel(job_id)
            except RequestRefused as error:  # one wrong id must not keep the others running
                complain(str(error))
                code = code or error.problem.exit_code
                continue
            if as_json:
                print_json({"job": job})
            else:
                click.echo(f"{job.id} {job.state}" if is_ended(job) else f"{job.id} {job.state}, cancel requested")
    return code
