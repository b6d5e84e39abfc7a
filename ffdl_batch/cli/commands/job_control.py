"""``ffdl halt``, ``resume``, ``cancel`` and ``wait``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.arrays import describe_array, exit_code_of, is_array, resumable_jobs
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.options.selection import read_states
from ffdl_batch.cli.options.submission import Manner
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.cli.render.job_messages import REQUESTED, print_outages, report_end, report_not_kept
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import complain, detachable
from ffdl_batch.option_types import Number, WholeNumber

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.domain.job.views import ArrayView, JobView


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--wait", "with_wait", is_flag=True, help="Wait until the jobs are HALTED and their GPUs are free.")
@json_option("Print JSON, one line per job.")
def halt(job_ids: Sequence[str], with_wait: bool, as_json: bool) -> int:
    """Stop jobs, or all jobs of an array, after a checkpoint. They become HALTED; `ffdl resume` continues them.

    Learners that do not react are killed after their grace period, and the job's message says so. Jobs that have ended
    do not change. With --wait, the exit code of a job that does not become HALTED is the exit code of this command.
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
            except RequestRefused as error:  # a wrong id must not protect the other jobs
                complain(str(error))
                code = code or error.problem.exit_code
        living = {job.backend for job in halted if job.ended_at is None}
        print_outages(client.outages, REQUESTED, living.union(array.backend for array in arrays if not array.ended))
        if with_wait:
            with detachable(job_ids, f"ffdl halt --wait {' '.join(job_ids)}"):
                for job in halted:
                    ended = client.wait(job.id)
                    code = max(code, _exit_code(ended))
                    _report(ended, as_json=as_json)
                for array in arrays:
                    _print_array(client.arrays.wait(array.id), "", as_json=as_json)
                    code = max([code, *map(_exit_code, client.arrays.elements(array.id))])
        else:
            for array in arrays:
                _print_array(array, "halt requested", as_json=as_json)
            for job in halted:
                _report(job, as_json=as_json)
    return code


def _print_array(array: ArrayView, request: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"array": array})
    else:
        click.echo(describe_array(array, "" if array.ended else request))


def _print_job(job: JobView, note: str = "", *, as_json: bool) -> None:
    if as_json:
        print_json({"job": job})
    else:
        click.echo(f"{job.id} {job.state}{note}")


def _exit_code(job: JobView) -> int:
    from ffdl_batch.client.api import job_exit_code
    from ffdl_batch.domain.job_state import JobState

    return 0 if job.state == JobState.HALTED else job_exit_code(job)


def _report(job: JobView, *, as_json: bool) -> None:
    from ffdl_batch.client.api import is_ended
    from ffdl_batch.domain.job_state import JobState, RequestedAction

    ended = is_ended(job)
    _print_job(job, "" if ended else f", {job.requested_action} requested", as_json=as_json)
    if as_json:
        return
    if ended:
        if job.message:
            complain(f"{job.id}: {job.message}")
    elif job.requested_action == RequestedAction.CANCEL:
        complain(f"{job.id}: it is being cancelled, and a halt does not take that back")
    elif job.pending_reason and job.state not in (JobState.QUEUED, JobState.DEPLOYING):
        complain(f"{job.id}: {job.pending_reason}")


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("-G", "--gpus", type=Number(0), metavar="N", help="GPUs of each learner, from this attempt on.")
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit of each attempt, from this one on.")
@click.option(
    "--learners", type=WholeNumber(1), metavar="N", help="Number of learners of an elastic job, from this attempt on."
)
@click.option(
    "--batch",
    type=WholeNumber(1),
    metavar="N",
    help="Batch of an elastic job (samples per step on all GPUs), from this attempt on.",
)
@click.option("-W", "--wait", "with_wait", is_flag=True, help="Wait for the end and exit with the job's exit code.")
@json_option("Print JSON, one line per job.")
def resume(  # noqa: PLR0913  (one parameter per option)
    *,
    job_ids: Sequence[str],
    gpus: float | None,
    time_limit: str | None,
    learners: int | None,
    batch: int | None,
    with_wait: bool,
    as_json: bool,
) -> int:
    """Continue jobs that are HALTED or FAILED, or those of an array, in a new attempt from their checkpoints.

    The learners find their $CHECKPOINT_DIR as they left it, and RESUME=1. The retry budgets (batch.retry) are reset.
    The job is checked as at submission, with the same warnings and errors.
    """
    from ffdl_batch.client import RequestRefused
    from ffdl_batch.client.api import job_exit_code

    code, manner = 0, Manner(as_json=as_json, wait=with_wait)
    resumed: list[str] = []
    with open_client() as client:
        for job_id in resumable_jobs(client, job_ids):
            try:
                job = client.resume(job_id, gpus=gpus, time=time_limit, learners=learners, global_batch=batch)
            except RequestRefused as error:  # a wrong id must not stop the other jobs
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
                    _print_job(job, as_json=as_json)
                    report_end(job, ended_with)
    return code


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--wait", "with_wait", is_flag=True, help="Wait until the jobs have ended and their GPUs are free.")
@json_option("Print JSON, one line per job.")
def cancel(job_ids: Sequence[str], with_wait: bool, as_json: bool) -> int:
    """Cancel jobs, or all jobs of an array, including HALTED ones. Records, logs and stored results are kept.

    Jobs that have COMPLETED or FAILED do not change, and a message on standard error says so.
    """
    from ffdl_batch.client import RequestRefused

    code = 0
    requested: set[str] = set()
    pending: list[str] = []
    with open_client() as client:
        for job_id in job_ids:
            try:
                ended, backend = _cancel(client, job_id, is_silent=with_wait, as_json=as_json)
            except RequestRefused as error:  # a wrong id must not protect the other jobs
                complain(str(error))
                code = code or error.problem.exit_code
                continue
            requested |= set() if ended else {backend}
            pending.append(job_id)
        print_outages(client.outages, REQUESTED, requested)
        if with_wait:
            with detachable(job_ids, f"ffdl cancel --wait {' '.join(job_ids)}"):
                for job_id in pending:
                    if is_array(job_id):
                        _print_array(client.arrays.wait(job_id), "", as_json=as_json)
                    else:
                        _print_job(client.wait(job_id), as_json=as_json)
    return code


def _cancel(client: Client, job_id: str, *, is_silent: bool, as_json: bool) -> tuple[bool, str]:
    """Request the cancellation of a job or an array, and print its state unless `is_silent`. Return whether it has
    ended, and its backend. Raises RequestRefused."""
    from ffdl_batch.client.api import is_ended
    from ffdl_batch.domain.job_state import JobState

    if is_array(job_id):
        array = client.arrays.cancel(job_id)
        if not is_silent:
            _print_array(array, "cancel requested", as_json=as_json)
        return array.ended, array.backend
    job = client.cancel(job_id)
    if not is_silent:
        _print_job(job, "" if is_ended(job) else ", cancel requested", as_json=as_json)
    if is_ended(job) and job.state != JobState.CANCELLED:
        complain(f"{job.id} had ended already, as {job.state}; nothing was cancelled")
    return is_ended(job), job.backend


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--timeout", "timeout_s", type=Number(0), metavar="SECONDS", help="Maximum time to wait.")
@click.option(
    "--for", "wanted", metavar="STATES", help="Wait until each job is in one of these states, such as RUNNING, or ends."
)
@json_option("Print JSON, one line per job.")
def wait(job_ids: Sequence[str], timeout_s: float | None, wanted: str | None, as_json: bool) -> int:
    """Wait until jobs, or all jobs of an array, have ended.

    The exit code is that of the job, the largest one of several jobs, or 124 after --timeout. With --for, it is 0 if
    each job was in one of the states.
    """
    from ffdl_batch.client.api import job_exit_code

    states = () if wanted is None else read_states([wanted], "--for")
    if wanted is not None and not states:
        raise click.BadParameter("name the states, such as RUNNING", param_hint="--for")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    code = 0
    with open_client() as client, detachable(job_ids, f"ffdl wait {' '.join(job_ids)}"):
        for job_id in job_ids:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if states:
                members = [job.id for job in client.arrays.elements(job_id)] if is_array(job_id) else [job_id]
                for member in members:
                    code = max(code, _await_state(client, member, states, deadline))
                    _print_job(client.get(member), as_json=as_json)
                continue
            if is_array(job_id):
                array = client.arrays.wait(job_id, left)
                code = max(code, exit_code_of(client.arrays.elements(job_id)))
                _print_array(array, "", as_json=as_json)
                continue
            job = client.wait(job_id, left)
            code = max(code, job_exit_code(job))
            _print_job(job, as_json=as_json)
            if not as_json:
                report_not_kept(job)
    return code


def _await_state(client: Client, job_id: str, states: Sequence[str], deadline: float | None) -> int:
    """Wait until the job is in one of the states, and return 0; its exit code, or 1, if it ends before. Raises
    WaitTimedOut."""
    from ffdl_batch.client.api import job_exit_code

    after = max((event.seq for event in client.events(job_id)), default=0)
    if client.get(job_id).state in states:
        return 0
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    for event in client.events(job_id, follow=True, after=after, timeout_s=left):
        if event.state in states:
            return 0
    return job_exit_code(client.get(job_id)) or int(ExitCode.FAILED)
