"""``ffdl bench``: measure with short runs of your own jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.submission import Manner, SbatchLike, collect_options, shared_options
from ffdl_batch.cli.render.formatting import print_json, read_span
from ffdl_batch.cli.trial_runs import model_beside, trial_runs, trial_submission
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.option_types import Number

if TYPE_CHECKING:
    from ffdl_batch.cli.commands.bench.sharing import Candidate
    from ffdl_batch.client import Client
    from ffdl_batch.client.submissions.submission_builder import Wanted
    from ffdl_batch.config import Settings

PREFIX = "bench-"
_USAGE = "ffdl bench share A.yml B.yml --model DIR"


@click.group()
def bench() -> None:
    """Measure with short runs of your own jobs."""


@bench.command(cls=SbatchLike, epilog="Example: ffdl bench share resnet.yml lstm.yml --share 0.5")
@click.option(
    "--share",
    "shares",
    metavar="SHARE",
    multiple=True,
    default=("0.5",),
    help="Share of each job: a fraction of a GPU, or a MIG type such as 1g.10gb. Repeat it to set the second job's "
    "share.  [default: 0.5]",
)
@click.option(
    "--model",
    "models",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=str, readable=False),
    help="Directory or zip archive with the training code of both jobs. Repeat it to set that of the second job.  "
    "[default: `model` next to each manifest]",
)
@click.option(
    "--seconds",
    type=Number(1, 86400),
    default=60.0,
    metavar="N",
    help="Seconds to measure each run after its first report.  [default: 60]",
)
@click.option(
    "--timeout",
    metavar="SPAN",
    default="10m",
    callback=read_span,
    help="Maximum time from PROCESSING to the first throughput report.  [default: 10m]",
)
@click.option("--queue-timeout", metavar="SPAN", callback=read_span, help="Maximum time to wait for a run to start.")
@shared_options(metavar="MANIFEST MANIFEST")
def share(
    *,
    files: Sequence[str],
    shares: Sequence[str],
    models: Sequence[str],
    seconds: float,
    timeout: float,
    queue_timeout: float | None,
    **given: Any,
) -> int:
    """Measure whether two jobs should share a GPU: compare their throughput and cost together and alone.

    Both jobs first run at once on shares of one GPU, then each runs alone on a whole GPU. Without MIG, all runs use
    the same node. The runs are named bench-NAME. The command cancels them after the measurement, and on Ctrl-C or
    SIGTERM. Your other jobs are not affected.

    Each job must have one learner and at most one GPU. The learner must print ffdl-throughput lines, and must train for
    longer than the measurement. Jobs without GPUs share CPUs. Only the first element of an array runs.

    Prices come from [rates] in the configuration on this machine.

    Exit code 0: measured, whether or not sharing pays; 1: a run failed, or the jobs did not get the same GPU; 75: a run
    was interrupted; 124: a timeout expired.
    """
    from ffdl_batch.cli.commands.bench.sharing import Limits, SharedRun, parse_shares
    from ffdl_batch.cli.commands.config import settings_or_stop
    from ffdl_batch.cli.render.sharing import print_comparison

    manner = Manner(as_json=given["as_json"], quiet=given["quiet"], verbose=given["verbose"])
    settings = settings_or_stop()
    wanted = collect_options(given, os.environ, manner)
    note = (lambda _: None) if manner.quiet else complain
    limits = Limits(seconds, timeout, queue_timeout)
    with open_client(quiet=manner.quiet) as client:
        candidates = _candidates(client, files, models, wanted, manner)
        chosen = parse_shares(shares, candidates, settings.rates)
        _check_slots(candidates, settings)
        with trial_runs(client, manner) as runs:
            found = SharedRun(client, runs, limits, settings.rates, note).compare(candidates, chosen)
    if manner.as_json:
        print_json({"sharing": found})
    else:
        print_comparison(found)
    return int(ExitCode.OK if found.gain is not None else ExitCode.FAILED)


def _check_slots(candidates: Sequence[Candidate], settings: Settings) -> None:
    """Raise Stop if the configuration lets the backend run only one job at once, so that the second one never
    starts."""
    default = settings.effective_backend(os.environ)[0]
    for backend in sorted({one.submission.backend or default for one in candidates}):
        if settings.backend_settings(backend).get("max_jobs") == 1:
            files = ", ".join(settings.backend_origins(backend))
            raise Stop(
                ExitCode.UNAVAILABLE,
                f"{files}: with backend.{backend}.max_jobs = 1, the two jobs cannot run at once; set it to 2 or more",
            )


def _candidates(
    client: Client, files: Sequence[str], models: Sequence[str], wanted: Wanted, manner: Manner
) -> tuple[Candidate, Candidate]:
    """Return the two jobs, with their models uploaded."""
    if len(files) != 2:
        raise click.UsageError(f"two manifests are needed: {_USAGE}")
    if len(models) > 2:
        raise click.UsageError(f"at most two models are allowed: {_USAGE}")
    places = [Path(one) for one in models] or [model_beside(one, _USAGE) for one in files]
    names = files if files[0] != files[1] else [f"{files[0]} ({number})" for number in (1, 2)]
    read = [_candidate(file, name, wanted) for file, name in zip(files, names, strict=True)]
    digests = [client.upload(place, manner.print_verbose) for place in places]
    first, second = (
        replace(one, submission=replace(one.submission, archive=digest))
        for one, digest in zip(read, [digests[0], digests[-1]], strict=True)
    )
    return first, second


def _candidate(file: str, name: str, wanted: Wanted) -> Candidate:
    from ffdl_batch.cli.commands.bench.sharing import Candidate
    from ffdl_batch.domain.job.metric_collection import collecting_of

    submission, spec = trial_submission(file, wanted, PREFIX)
    if spec is None:
        raise Stop(ExitCode.BAD_MANIFEST, f"{file} has errors; to see them: ffdl validate {file}")
    resources, batch = spec.resources, spec.batch
    why = ""
    if resources.learners > 1:
        why = f"it has {resources.learners} learners, but only jobs with one learner can share a GPU"
    elif resources.gpus > 1:
        why = f"it requests {resources.gpus:g} GPUs, but only jobs with one GPU can share it; "
        why += "use a copy of the manifest with gpus: 1"
    elif batch.elasticity is not None:
        why = "it is elastic, so its size could change during the measurement; "
        why += "use a copy of the manifest without batch.elastic"
    elif any(count and kind.partition(":")[0] in ("shard", "mps") for kind, count in resources.gres.items()):
        why = "batch.gres requests shares, but --share sets them; use a copy of the manifest with gpus: 1 instead"
    elif collecting_of(spec.metrics) is None:
        why = "its throughput is not collected; add evaluation_metrics: {type: regex_extractor}"
    if why:
        raise Stop(ExitCode.BAD_MANIFEST, f"{file}: {why}")
    return Candidate(name, submission, resources.gpus > 0, resources.gpu_type, resources.cpus, batch.nodelist)
