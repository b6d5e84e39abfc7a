"""``ffdl-submit``: sbatch for manifests.

It behaves like sbatch: the same option letters, ``Submitted batch job ...`` on standard output, everything else on
standard error. It does not check the manifest. The daemon checks it, and reports errors with their lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ffdl_batch import __version__
from ffdl_batch.cli.arrays import is_array
from ffdl_batch.cli.connection import find_daemon_log, host_option, open_client
from ffdl_batch.cli.options.submission import (
    Manner,
    SbatchLike,
    build_submissions,
    collect_options,
    shared_options,
    split_files,
)
from ffdl_batch.cli.options.wrapped_command import wrap_options, wrapped_manifest
from ffdl_batch.cli.render.job_messages import KEPT, print_outages
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted, whole_number
from ffdl_batch.domain.sbatch.values import is_flag_set
from ffdl_batch.exit_handling import complain, detachable, run

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.domain.job.submission import Submission, SubmissionResult
    from ffdl_batch.domain.job.views import JobView


@click.command(cls=SbatchLike, context_settings={"help_option_names": ["-h", "--help"]})
@shared_options(metavar="[MANIFEST...] [MODEL]")
@wrap_options
@host_option
@click.option("--parsable", is_flag=True, help="Print only the id.")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job ends, then exit as with --wait.")
@click.option("-W", "--wait", is_flag=True, help="Wait until the job ends, and exit with its exit code.")
@click.option("--dry-run", "--dryrun", is_flag=True, help="Print what would be sent, but send nothing.")
@click.option("--test-only", is_flag=True, help="Ask the scheduler when the job would start, but submit nothing.")
@click.version_option(__version__, "-V", "--version", message="ffdl-submit %(version)s")
def submit(files: Sequence[str], dry_run: bool, test_only: bool, **given: Any) -> int:
    """Submit manifests that share one model (a directory or a zip archive, the last argument).

    A manifest with batch.array or batch.sweep, or with --array on the command line, is an array: one job for each
    element.

    With --wrap, a command takes the place of the manifest: ffdl-submit --wrap 'python3 train.py' -G 1

    Options override the manifest, and the manifest overrides FFDL_* and SBATCH_* variables.
    """
    manner = _manner(given)
    wanted = collect_options(given, os.environ, manner)
    wrapped = wrapped_manifest(given)
    manifests, model = split_files(files, wrapped)
    if manner.follow and len(manifests) > 1:
        raise click.UsageError("--follow needs one manifest; for several, use --wait")
    submissions = build_submissions(manifests, "", wanted, wrapped)
    with open_client(quiet=manner.quiet) as client:
        if dry_run or test_only:
            from ffdl_batch.cli.render.plan import print_plans

            return print_plans(client, submissions, model, trial=test_only, manner=manner)
        return _submit_all(client, submissions, manifests, model, manner)


def _submit_all(
    client: Client, submissions: Sequence[Submission], manifests: Sequence[str], model: str, manner: Manner
) -> int:
    results = _submit(client, submissions, model, manner)
    code = _report(results, manifests, manner)
    if not manner.quiet:
        print_outages(client.outages, KEPT, {result.backend for result in results if result.id})
    ids = [result.id for result in results if result.id]
    if manner.follow:
        _follow(client, ids, manner)
    return max(code, _wait(client, ids, manner)) if manner.wait and ids else code


def _manner(given: Mapping[str, Any]) -> Manner:
    debug = os.environ.get("SBATCH_DEBUG", "")
    return Manner(
        as_json=given["as_json"],
        parsable=given["parsable"],
        quiet=given["quiet"],
        verbose=given["verbose"] or (whole_number(debug, 9) or 0),
        wait=given["wait"] or given["follow"] or is_flag_set(os.environ.get("SBATCH_WAIT")),
        follow=given["follow"],
    )


def _submit(
    client: Client, submissions: Sequence[Submission], model: str, manner: Manner
) -> Sequence[SubmissionResult]:
    from dataclasses import replace

    digest = client.upload(Path(model), manner.print_verbose, manner.warn)
    manner.print_verbose(f"sending {len(submissions)} submissions")
    return client.send([replace(submission, archive=digest) for submission in submissions])


def _report(results: Sequence[SubmissionResult], manifests: Sequence[str], manner: Manner) -> int:
    """Print ids on standard output, everything else on standard error. Return the exit code of the first refusal."""
    from ffdl_batch.cli.render.formatting import print_json
    from ffdl_batch.client.errors import describe

    code = 0
    for result, manifest in zip(results, manifests, strict=True):
        if manner.as_json:
            print_json({"manifest": manifest, "result": result})
        elif result.id and not manner.quiet:
            click.echo(result.id if manner.parsable else f"Submitted batch job {result.id}")
            _print_elements(result, manner)
        for warning in result.warnings:
            manner.warn(warning)
        if result.network and not result.problem:
            manner.print_verbose(f"{result.id}: network isolation {result.network}")
        if result.problem:
            complain(describe(result.problem))
            code = code or result.problem.exit_code or ExitCode.FAILED
    refused = sum(1 for result in results if result.problem)
    if refused and len(results) > 1:
        complain(f"{refused} of {len(results)} manifests were refused; the others are submitted")
    return code


def _print_elements(result: SubmissionResult, manner: Manner) -> None:
    """Print the number of jobs of an array, and with -v their ids."""
    if result.elements:
        complain(
            f"{result.id} is an array of {counted(len(result.elements), 'job')}; "
            f"to list them: ffdl list --array {result.id}"
        )
    for job_id in result.elements:
        manner.print_verbose(job_id)


def _follow(client: Client, ids: Sequence[str], manner: Manner) -> None:
    from ffdl_batch.cli.commands.logs import follow_log

    for job_id in ids:
        with detachable([job_id], f"ffdl logs -f {job_id}"):
            follow_log(client, job_id, as_json=manner.as_json)


def _wait(client: Client, ids: Sequence[str], manner: Manner) -> int:
    """Wait for the jobs, over all attempts. Return the largest exit code, as sbatch --wait does for an array."""
    from ffdl_batch.cli.render.formatting import print_json
    from ffdl_batch.cli.render.job_messages import report_end
    from ffdl_batch.client.api import job_exit_code

    code = 0
    with detachable(ids, f"ffdl wait {' '.join(ids[:3])}{' ...' if len(ids) > 3 else ''}"):
        for job_id in ids:
            for job in _ended(client, job_id):
                ended_with = job_exit_code(job)
                code = max(code, ended_with)
                if manner.as_json:
                    print_json({"job": job})
                report_end(job, ended_with)
    return code


def _ended(client: Client, job_id: str) -> Sequence[JobView]:
    """Wait for the job, or the jobs of the array, and return them."""
    if not is_array(job_id):
        return [client.wait(job_id)]
    client.arrays.wait(job_id)
    return client.arrays.elements(job_id)


def main() -> NoReturn:
    """Run the console script ``ffdl-submit``."""
    run(submit, "ffdl-submit", find_log=find_daemon_log)
