"""``ffdl advise``: advise on the resources of a manifest, based on earlier jobs like it."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.options.submission import Manner, build_submissions, collect_options, reference_options
from ffdl_batch.cli.render.advice import print_advice
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.domain.metrics.advice import Advice

_ALLOW_FILE, _ALLOW_REFERENCES = reference_options()
_MINUTES = 10


@click.command(epilog="Example: ffdl advise manifest.yml")
@click.argument("manifest", type=click.Path(path_type=str, readable=False))
@click.option("--backend", metavar="NAME", envvar="FFDL_BACKEND", help="Backend: slurm, local, kubernetes.")
@click.option(
    "--profile", is_flag=True, help="Print commands for short runs that measure the throughput at several sizes."
)
@_ALLOW_FILE
@_ALLOW_REFERENCES
@json_option()
def advise(*, manifest: str, profile: bool, as_json: bool, **given: Any) -> None:
    """Print sizes that the job could have, with predicted time and cost, and advise on memory, time limit and
    checkpoint interval.

    The advice is based on your newest jobs with the same name, framework, backend and GPU type: their run times, memory
    and GPU use, and the throughput that they reported. The recommended size is the fastest one that costs at most 25 %
    more than the cheapest.
    """
    wanted = collect_options(given, os.environ, Manner())
    (submission,) = build_submissions([manifest], "", wanted)
    with open_client() as client:
        found = client.advise(submission)
    if as_json:
        print_json({"manifest": submission.manifest_name, "advice": found})
    elif profile:
        _print_profile(found, manifest)
    else:
        print_advice(found)


def _print_profile(found: Advice, manifest: str) -> None:
    """Print a command for each size. All of them keep the name of the job, so that advice can use the runs."""
    if not found.profile:
        raise click.UsageError(
            "--profile needs the extra elastic in the environment of the daemon; install it: "
            "pip install 'ffdl-batch[elastic]'"
        )
    for form in found.profile:
        gpus = ("--gpus", f"{form.gpus:g}") if form.gpus else ()
        size = ("--backend", found.backend, "--learners", str(form.learners), *gpus, "--time", str(_MINUTES))
        click.echo(f"{shlex.join(('ffdl-submit', *size, manifest))} MODEL")
