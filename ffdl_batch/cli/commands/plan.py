"""``ffdl plan``: what a submission would send."""

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
from ffdl_batch.cli.render.plan import print_outlooks, print_plans


@click.command(cls=SbatchLike, context_settings={"help_option_names": ["-h", "--help"]})
@shared_options()
@click.option(
    "--test-only",
    "--server",
    is_flag=True,
    help="Also ask the scheduler, or the API server, whether it takes the job, and when it would start.",
)
@click.option(
    "--why/--no-why",
    default=None,
    help="Print the capacity for it, and on Slurm its start and what would start sooner. Default for one manifest.",
)
@click.option("--only-why", is_flag=True, help="Say that alone, without what would be sent.")
def plan(files: Sequence[str], test_only: bool, why: bool | None, only_why: bool, **given: Any) -> int:
    """Print what a submission would send (script, files, commands, environment), and what awaits it. Sends nothing."""

    manner = Manner(as_json=given["as_json"], quiet=given["quiet"], verbose=given["verbose"])
    wanted = collect_options(given, os.environ, manner)
    manifests, model = split_files(files)
    if only_why and (test_only or why is False):
        raise click.UsageError(
            f"--only-why asks for no plan; leave out {'--server, or --test-only' if test_only else '--no-why'}"
        )
    why = len(manifests) == 1 if why is None else why
    submissions = build_submissions(manifests, "", wanted)
    with open_client(quiet=manner.quiet) as client:
        if only_why:
            return print_outlooks(client, submissions, model, manner=manner)
        return print_plans(client, submissions, model, trial=test_only, manner=manner, in_full=True, why=why)
