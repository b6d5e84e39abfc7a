"""``ffdl resume``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ffdl_batch.cli.arrays import resumable_jobs
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import complain, detachable
from ffdl_batch.cli.options.submission import Manner
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.cli.render.job_end import report_end


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("-G", "--gpus", type=click.FloatRange(0), metavar="N", help="GPUs of each learner from now on.")
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit of each attempt from now on.")
@click.option("-W", "--wait", "with_wait", is_flag=True, help="Wait for the end and exit with the job's exit code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per job.")
def resume(
    *, job_ids: Sequence[str], gpus: float | None, time_limit: str | None, with_wait: bool, as_json: bool
) -> int:
    """Go on with jobs, or those of an array, that are HALTED or FAILED: a new attempt of the same job, from its
    checkpoints.

    The learners find their $CHECKPOINT_DIR as they left it, and RESUME=1. Budgets of batch.retry start anew. What a
    submission would be warned of, or refused for, is said here, too.
    """
    from ffdl_batch.client import RequestRefused
    from ffdl_batch.client.api import job_exit_code

    code, manner = 0, Manner(as_json=as_json, wait=with_wait)
    resumed: list[str] = []
    with open_client() as client:
        for job_id in resumable_jobs(client, job_ids):
            try:
                job = client.resume(job_id, gpus=gpus, time=time_limit)
            except RequestRefused as error:  # one wrong id must not hold up the others
                complain(str(error))
                code = code or error.problem.exit_code
                continue
            resumed.append(job.id)
            if not as_json:
                click.echo(f"{job.id} {job.state}, resumed")
            elif not with_wait:
                print_json({"job": job})
            for warning in job.warnings:
                manner.warn(warning)
        if with_wait:
            with detachable(resumed, f"ffdl wait {' '.join(resumed)}"):
                for job_id in resumed:
                    job = client.wait(job_id)
                    ended_with = job_exit_code(job)
                    code = max(code, ended_with)
                    if as_json:
                        print_json({"job": job})
                    else:
                        click.echo(f"{job.id} {job.state}")
                    report_end(job, ended_with)
    return code
