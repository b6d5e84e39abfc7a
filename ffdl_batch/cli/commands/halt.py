"""``ffdl halt``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.arrays import is_array, say
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import complain, detachable
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.cli.render.outages import WISHED, tell_outages

if TYPE_CHECKING:
    from ffdl_batch.domain.job.views import ArrayView, JobView


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--wait", "with_wait", is_flag=True, help="Wait until the jobs are HALTED and their GPUs are free.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per job.")
def halt(job_ids: Sequence[str], with_wait: bool, as_json: bool) -> int:
    """Have jobs, or all jobs of an array, write a checkpoint and end as HALTED; `ffdl resume` goes on from there.

    A learner that does not react is ended after its grace period, and the job's message says so. A job that has ended
    is left as it is. With --wait, a job that ended otherwise than HALTED gives its own exit code.
    """
    from ffdl_batch.client import RequestRefused

    code = 0
    halted: list[JobView] = []
    arrays: list[ArrayView] = []
    with open_client() as client:
        for job_id in job_ids:
            try:
                if is_array(job_id):
                    arrays.append(client.arrays.halt(job_id))
                    continue
                halted.append(client.halt(job_id))
            except RequestRefused as error:  # one wrong id must not keep the others running
                complain(str(error))
                code = code or error.problem.exit_code
        living = {job.backend for job in halted if job.ended_at is None}
        tell_outages(client.outages, WISHED, living.union(array.backend for array in arrays if not array.ended))
        if with_wait:
            with detachable(job_ids, f"ffdl halt --wait {' '.join(job_ids)}"):
                for job in halted:
                    ended = client.wait(job.id)
                    code = max(code, _exit_code(ended))
                    _report(ended, as_json=as_json)
                for array in arrays:
                    _report_array(client.arrays.wait(array.id), as_json=as_json)
                    code = max([code, *map(_exit_code, client.arrays.elements(array.id))])
        else:
            for array in arrays:
                _report_array(array, as_json=as_json)
            for job in halted:
                _report(job, as_json=as_json)
    return code


def _report_array(array: ArrayView, *, as_json: bool) -> None:
    if as_json:
        print_json({"array": array})
    else:
        click.echo(say(array, "" if array.ended else "halt requested"))


def _exit_code(job: JobView) -> int:
    from ffdl_batch.client.api import job_exit_code
    from ffdl_batch.domain.job_state import JobState

    return 0 if job.state == JobState.HALTED else job_exit_code(job)


def _report(job: JobView, *, as_json: bool) -> None:
    from ffdl_batch.client.api import is_ended
    from ffdl_batch.domain.job_state import JobState, Wish

    if as_json:
        print_json({"job": job})
    elif is_ended(job):
        click.echo(f"{job.id} {job.state}")
        if job.message:
            complain(f"{job.id}: {job.message}")
    else:
        click.echo(f"{job.id} {job.state}, {job.wish} requested")
        if job.wish == Wish.CANCEL:
            complain(f"{job.id}: it is being cancelled, and a halt does not take that back")
        elif job.pending_reason and job.state not in (JobState.QUEUED, JobState.DEPLOYING):
            complain(f"{job.id}: {job.pending_reason}")
