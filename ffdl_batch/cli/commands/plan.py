"""``ffdl plan``: show what a submission would send."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.submission import (
    Manner,
    SbatchLike,
    build_submissions,
    collect_options,
    shared_options,
    split_files,
)
from ffdl_batch.cli.options.wrapped_command import wrap_options, wrapped_manifest
from ffdl_batch.cli.render.plan import print_outlooks, print_plans


@click.command(cls=SbatchLike)
@shared_options(metavar="[MANIFEST...] [MODEL]")
@wrap_options
@click.option(
    "--test-only",
    "--server",
    is_flag=True,
    help="Also ask the scheduler, or the API server, whether it accepts the job, and when the job would start.",
)
@click.option(
    "--why/--no-why",
    default=None,
    help="Print the capacity for the job, and on Slurm its start and faster alternatives. Default for one manifest.",
)
@click.option("--only-why", is_flag=True, help="Print only this, without the plan.")
def plan(files: Sequence[str], test_only: bool, why: bool | None, only_why: bool, **given: Any) -> int:
    """Print what a submission would send (script, files, commands, environment), and when it may start. Sends
    nothing."""
    manner = Manner(as_json=given["as_json"], quiet=given["quiet"], verbose=given["verbose"])
    wanted = collect_options(given, os.environ, manner)
    wrapped = wrapped_manifest(given)
    manifests, model = split_files(files, wrapped)
    if only_why and (test_only or why is False):
        raise click.UsageError(
            f"--only-why prints no plan; leave out {'--server, or --test-only' if test_only else '--no-why'}"
        )
    why = len(manifests) == 1 if why is None else why
    submissions = build_submissions(manifests, "", wanted, wrapped)
    with open_client(quiet=manner.quiet) as client:
        if only_why:
            return print_outlooks(client, submissions, model, manner=manner)
        return print_plans(client, submissions, model, trial=test_only, manner=manner, in_full=True, why=why)
