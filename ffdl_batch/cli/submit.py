"""``ffdl-submit``: sbatch for manifests.

Speaks like sbatch: the same option letters, ``Submitted batch job ...`` on standard output, everything else on
standard error. Nothing of the manifest is checked here; the daemon says what is wrong with it, with its lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ffdl_batch import __version__
from ffdl_batch.cli.environment import FromEnvironment, absolute_output, is_flag_set, read_environment
from ffdl_batch.cli.job_options import JOB_OPTIONS
from ffdl_batch.cli.outcome import complain, detachable, run
from ffdl_batch.cli.sbatch_refused import explain_refusal
from ffdl_batch.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.submission import Wanted
    from ffdl_batch.domain.views import Submission, SubmissionResult

AnyFunction = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Manner:
    """How the command behaves, apart from the job."""

    as_json: bool = False
    parsable: bool = False
    quiet: bool = False
    verbose: int = 0
    wait: bool = False

    def tell(self, text: str) -> None:
        """For -v."""
        if self.verbose and not self.quiet:
            complain(text)

    def warn(self, text: str) -> None:
        """For everybody but -Q. A finding says its own severity after its place; other texts get the word."""
        if not self.quiet:
            complain(text if ": warning: " in text or ": note: " in text else f"warning: {text}")


class SbatchLike(click.Command):
    """Refuses sbatch's other options by name, with what to use instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; an option that click does not know may be one of sbatch's."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            sentence = explain_refusal(error.option_name)
            if sentence is None:
                raise
            raise click.UsageError(sentence, ctx) from None
        except click.BadOptionUsage as error:
            if error.option_name in ("--requeue", "requeue"):
                raise click.UsageError(
                    "--requeue takes no value here: whether a requeue is expedited is the administrators' to set", ctx
                ) from None
            raise


def job_options(function: AnyFunction) -> AnyFunction:
    """Declare every option of :data:`JOB_OPTIONS`."""
    for option in reversed(JOB_OPTIONS):
        names = [f"-{option.short}"] if option.short else []
        attributes: dict[str, Any] = {"help": option.help}
        attributes |= {"metavar": option.metavar} if option.metavar else {"is_flag": True}
        function = click.option(*names, f"--{option.name}", option.parameter, **attributes)(function)
    return function


def shared_options(function: AnyFunction) -> AnyFunction:
    """What `submit` and `plan` both take, after the files."""
    decorators = (
        click.argument("files", nargs=-1, type=click.Path(path_type=str), metavar="MANIFEST... MODEL"),
        job_options,
        click.option("--export", metavar="NAMES", help="Variables for the learners: NONE, ALL, NAME, NAME=value, ..."),
        click.option("--backend", metavar="NAME", envvar="FFDL_BACKEND", help="Backend, as slurm or local."),
        click.option("--strict", is_flag=True, envvar="FFDL_STRICT", help="Unknown keys of the manifest are errors."),
        click.option("-Q", "--quiet", is_flag=True, help="Print errors only."),
        click.option("-v", "--verbose", count=True, help="Say what is being done."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@click.command(cls=SbatchLike, context_settings={"help_option_names": ["-h", "--help"]})
@shared_options
@click.option("--parsable", is_flag=True, help="Print the bare id.")
@click.option("-W", "--wait", is_flag=True, help="Wait for the end and exit with the job's exit code.")
@click.option("--dry-run", "--dryrun", is_flag=True, help="Print what would be sent, and send nothing.")
@click.option("--test-only", is_flag=True, help="Ask the scheduler when the job would start, and submit nothing.")
@click.version_option(__version__, "-V", "--version", message="ffdl-submit %(version)s")
def submit(files: Sequence[str], dry_run: bool, test_only: bool, **given: Any) -> int:
    """Submit manifests that share one model (a directory or a zip archive, the last argument).

    Options win over the manifest, and the manifest over FFDL_* and SBATCH_* variables.
    """
    from ffdl_batch.client import Client

    manner = _manner(given)
    wanted = collect_options(given, os.environ, manner)
    manifests, model = split_files(files)
    with Client() as client:
        if dry_run or test_only:
            from ffdl_batch.cli.plan import print_plans

            return print_plans(client, manifests, model, wanted, trial=test_only, manner=manner)
        results = _submit(client, manifests, model, wanted, manner)
        code = _report(results, manifests, manner)
        ids = [result.id for result in results if result.id]
        return max(code, _wait(client, ids)) if manner.wait and ids else code


def split_files(files: Sequence[str]) -> tuple[Sequence[str], str]:
    """The manifests and the model."""
    if len(files) < 2:
        what = "the model's directory or zip archive is missing" if files else "a manifest and a model are needed"
        raise click.UsageError(f"{what}: ffdl-submit [OPTIONS] MANIFEST... MODEL")
    if list(files).count("-") > 1 or files[-1] == "-":
        raise click.UsageError("standard input (-) can be one manifest, and not the model")
    return files[:-1], files[-1]


def collect_options(given: Mapping[str, Any], environ: Mapping[str, str], manner: Manner) -> Wanted:
    """Options of the command line and of the environment, and the variables that --export selects."""
    from ffdl_batch.client.export import ExportError, select_variables
    from ffdl_batch.client.submission import Wanted

    options: dict[str, str] = {}
    for option in JOB_OPTIONS:
        value = given.get(option.parameter)
        if value is not None and value is not False:
            options[option.name] = "" if value is True else str(value)
    if "requeue" in options and "no-requeue" in options:
        raise click.UsageError("--requeue and --no-requeue exclude each other")
    if "output" in options:
        options["output"] = absolute_output(options["output"])
    found: FromEnvironment = read_environment(environ)
    for warning in found.warnings:
        manner.warn(warning)
    export = given.get("export") or environ.get("FFDL_EXPORT") or environ.get("SBATCH_EXPORT") or "NONE"
    try:
        exported = select_variables(export, environ)
    except ExportError as error:
        raise click.UsageError(f"--export={export}: {error}") from None
    for name in exported.unset:
        manner.warn(f"--export: {name} is not set and is left out")
    if given.get("export"):  # the names alone: where a value comes from is recorded, and values may be secret
        options["export"] = ",".join(sorted(exported.values))
    return Wanted(options, found.options, exported.values, given.get("backend") or "", bool(given.get("strict")))


def _manner(given: Mapping[str, Any]) -> Manner:
    debug = os.environ.get("SBATCH_DEBUG", "")
    return Manner(
        as_json=given["as_json"],
        parsable=given["parsable"],
        quiet=given["quiet"],
        verbose=given["verbose"] or (int(debug) if debug.isdigit() else 0),
        wait=given["wait"] or is_flag_set(os.environ.get("SBATCH_WAIT")),
    )


def build_submissions(manifests: Sequence[str], digest: str, wanted: Wanted) -> list[Submission]:
    """Read every manifest; nothing is sent unless all of them can be read."""
    from ffdl_batch.client.manifest import read_manifest
    from ffdl_batch.client.submission import build_submission

    return [build_submission(read_manifest(manifest), digest, wanted) for manifest in manifests]


def _submit(
    client: Client, manifests: Sequence[str], model: str, wanted: Wanted, manner: Manner
) -> Sequence[SubmissionResult]:
    from dataclasses import replace

    submissions = build_submissions(manifests, "", wanted)
    digest = client.upload(Path(model), manner.tell)
    manner.tell(f"sending {len(submissions)} submissions")
    return client.send([replace(submission, archive=digest) for submission in submissions])


def _report(results: Sequence[SubmissionResult], manifests: Sequence[str], manner: Manner) -> int:
    """Ids to standard output, everything else to standard error; the first refusal's exit code."""
    from ffdl_batch.cli.present import print_json
    from ffdl_batch.client.errors import describe

    code = 0
    for result, manifest in zip(results, manifests, strict=True):
        if manner.as_json:
            print_json({"manifest": manifest, "result": result})
        elif result.id and not manner.quiet:
            click.echo(result.id if manner.parsable else f"Submitted batch job {result.id}")
        for warning in result.warnings:
            manner.warn(warning)
        if result.network and not result.problem:
            manner.tell(f"{result.id}: network isolation {result.network}")
        if result.problem:
            complain(describe(result.problem))
            code = code or result.problem.exit_code or ExitCode.FAILED
    refused = sum(1 for result in results if result.problem)
    if refused and len(results) > 1:
        complain(f"{refused} of {len(results)} manifests were refused; the others are submitted")
    return code


def _wait(client: Client, ids: Sequence[str]) -> int:
    """The largest of the jobs' exit codes, as sbatch --wait for an array."""
    from ffdl_batch.client.api import job_exit_code

    with detachable(ids, f"ffdl wait {' '.join(ids[:3])}{' ...' if len(ids) > 3 else ''}"):
        ended = [client.wait(job_id) for job_id in ids]
    for job in ended:
        if job.error_code != "000":
            complain(f"{job.id}: {job.state}: {job.error_code} {job.message}")
    return max(job_exit_code(job) for job in ended)


def main() -> NoReturn:
    """The console script ``ffdl-submit``."""
    run(submit, "ffdl-submit")
