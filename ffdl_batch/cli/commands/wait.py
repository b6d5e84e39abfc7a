"""``ffdl wait``."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from ffdl_batch.cli.arrays import exit_code_of, is_array, say
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import detachable
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.cli.render.job_end import report_not_kept


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), metavar="SECONDS", help="Give up after so long.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per job.")
def wait(job_ids: Sequence[str], timeout_s: float | None, as_json: bool) -> int:
    """Wait until jobs, or all jobs of an array, have ended; exits with the job's exit code (the largest of several),
    124 after --timeout."""
    from ffdl_batch.client.api import job_exit_code

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    code = 0
    with open_client() as client, detachable(job_ids, f"ffdl wait {' '.join(job_ids)}"):
        for job_id in job_ids:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if is_array(job_id):
                array = client.arrays.wait(job_id, left)
                code = max(code, exit_code_of(client.arrays.elements(job_id)))
                if as_json:
                    print_json({"array": array})
                else:
                    click.echo(say(array))
                continue
            job = client.wait(job_id, left)
            code = max(code, job_exit_code(job))
            if as_json:
                print_json({"job": job})
            else:
                click.echo(f"{job.id} {job.state}")
                report_not_kept(job)
    return code
