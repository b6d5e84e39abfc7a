"""Options and files of commands that submit or plan, and the submissions that they result in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.connection import given_host
from ffdl_batch.cli.options.job_options import (
    JOB_OPTIONS,
    MAY_STAND_ALONE,
    FromEnvironment,
    absolute_output,
    read_environment,
)
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.options.wrapped_command import model_of
from ffdl_batch.domain.sbatch.option_table import BY_LETTER, BY_NAME
from ffdl_batch.domain.sbatch.values import one_events
from ffdl_batch.exit_handling import complain
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.option_types import TrueOrFalse

if TYPE_CHECKING:
    from ffdl_batch.client.submissions.submission_builder import Wanted
    from ffdl_batch.client.submissions.submit_options import AllowedReferences
    from ffdl_batch.domain.job.submission import Submission

AnyFunction = Callable[..., object]
_SEVERITY = re.compile(r"(^|: )(warning|note): ")


@dataclass(frozen=True, slots=True)
class Manner:
    """How a command prints and waits."""

    as_json: bool = False
    parsable: bool = False
    quiet: bool = False
    verbose: int = 0
    wait: bool = False
    follow: bool = False

    def print_verbose(self, text: str) -> None:
        """Print a message with -v."""
        if self.verbose and not self.quiet:
            complain(text)

    def warn(self, text: str) -> None:
        """Print a warning, except with -Q. "warning:" is added unless the text has its own severity."""
        if not self.quiet:
            complain(text if _SEVERITY.search(text) else f"warning: {text}")


class SbatchLike(click.Command):
    """A command that refuses other options of sbatch by name, and names what to use instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; an option that click does not know may be one of sbatch. Some options may have no value,
        and click would take the next word for it."""
        end = args.index("--") if "--" in args else len(args)
        alone = [f"{word}=" if word in MAY_STAND_ALONE else word for word in args[:end]]
        try:
            return super().parse_args(ctx, [*alone, *args[end:]])
        except click.NoSuchOption as error:
            sentence = explain_refusal(error.option_name)
            if sentence is None:
                raise
            raise click.UsageError(sentence, ctx) from None


def explain_refusal(given: str) -> str | None:
    """Return why an option of sbatch, as it was given (``--nodes``, ``-N``), is refused; None if sbatch has none."""
    is_long = given.startswith("--")
    row = BY_NAME.get(given[2:].partition("=")[0]) if is_long else BY_LETTER.get(given[1:2])
    if row is None or not row.refusal:
        return None
    shown = f"--{row.name}" if is_long else f"{given[:2]} (--{row.name})"
    return f"sbatch's {shown} is not supported: {row.refusal}"


def job_options(function: AnyFunction) -> AnyFunction:
    """Declare every option of :data:`JOB_OPTIONS`."""
    for option in reversed(JOB_OPTIONS):
        names = [f"-{option.letter}"] if option.letter else []
        attributes: dict[str, Any] = {"help": option.help, "multiple": option.repeats}
        attributes |= {"metavar": option.metavar} if option.metavar else {"is_flag": True}
        function = click.option(*names, f"--{option.name}", option.parameter, **attributes)(function)
    return function


def placement_options(function: AnyFunction) -> AnyFunction:
    """Declare the options for the backend, the resources and the variables of a job."""
    for option in (
        click.option("--backend", metavar="NAME", envvar="FFDL_BACKEND", help="Backend: slurm, local, kubernetes."),
        click.option("--export", metavar="NAMES", help="Variables for the learners: NONE, ALL, NAME, NAME=value, ..."),
        job_options,
    ):
        function = option(function)
    return function


def reference_options() -> tuple[Callable[[AnyFunction], AnyFunction], ...]:
    """Return the options for :func:`allowed_references`."""
    return (
        click.option(
            "--allow-file",
            "allow_files",
            metavar="PATH",
            multiple=True,
            type=click.Path(exists=True),
            help="Allow the manifest to name this file, or the files in this directory. Repeatable.",
        ),
        click.option(
            "--allow-references",
            is_flag=True,
            help="Accept references to variables, files and secrets in a manifest that belongs to another user.",
        ),
    )


def allowed_references(given: Mapping[str, Any]) -> AllowedReferences:
    """Return the references that the options of :func:`reference_options` allow."""
    from ffdl_batch.client.submissions.submit_options import AllowedReferences

    return AllowedReferences(tuple(given["allow_files"]), bool(given["allow_references"]))


def shared_options(*, metavar: str = "MANIFEST... MODEL") -> Callable[[AnyFunction], AnyFunction]:
    """Declare the options of every command that submits or plans."""
    decorators: tuple[Callable[[AnyFunction], AnyFunction], ...] = (
        # click would report a file that cannot be read as wrong usage. It is reported when it is read.
        click.argument("files", nargs=-1, type=click.Path(path_type=str, readable=False), metavar=metavar),
        placement_options,
        click.option(
            "--strict",
            is_flag=True,
            type=TrueOrFalse(),
            envvar="FFDL_STRICT",
            help="Treat unknown keys of the manifest as errors.",
        ),
        *reference_options(),
        click.option("-Q", "--quiet", is_flag=True, help="Print errors only."),
        click.option("-v", "--verbose", count=True, help="Print what is done."),
        json_option(),
    )

    def decorate(function: AnyFunction) -> AnyFunction:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def split_files(files: Sequence[str], wrapped: str = "") -> tuple[Sequence[str], str]:
    """Return the manifests and the model. `wrapped` is the text of the manifest for --wrap."""
    if wrapped:
        return ["--wrap"], model_of(files)
    if len(files) < 2:
        what = "the model (a directory or zip archive) is missing" if files else "a manifest and a model are needed"
        raise click.UsageError(f"{what}: {click.get_current_context().command_path} [OPTIONS] MANIFEST... MODEL")
    if list(files).count("-") > 1 or files[-1] == "-":
        raise click.UsageError("standard input (-) can be one manifest, but not the model")
    return files[:-1], files[-1]


def collect_options(given: Mapping[str, Any], environ: Mapping[str, str], manner: Manner) -> Wanted:
    """Return the options of the command line and of the environment, and the variables that --export selects."""
    from ffdl_batch.client.connection.daemon_start import Dialling
    from ffdl_batch.client.submissions.exported_variables import ExportError, select_variables
    from ffdl_batch.client.submissions.submission_builder import Wanted
    from ffdl_batch.client.submissions.submit_options import OWN_DIRECTORY

    options: dict[str, str] = {}
    for option in JOB_OPTIONS:
        value = given.get(option.parameter)
        if option.repeats and value:
            options[option.name] = ",".join(map(one_events, value))
        elif value is not None and value is not False and not option.repeats:
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
        manner.warn(f"--export: {name} is not set, so it is left out")
    if given.get("export"):  # the names alone: where a value comes from is recorded, and values may be secret
        options["export"] = ",".join(sorted(exported.values))
    return Wanted(
        options,
        found.options,
        exported.values,
        given.get("backend") or "",
        bool(given.get("strict")),
        allowed=allowed_references(given) if "allow_files" in given else OWN_DIRECTORY,
        cluster=Dialling(host=given_host()).cluster(),
    )


def build_submissions(manifests: Sequence[str], digest: str, wanted: Wanted, wrapped: str = "") -> list[Submission]:
    """Return a submission for each manifest, or for `wrapped`, the text of a manifest that no user wrote.

    Raises if any cannot be read. Disables core dumps, because the submissions contain secrets."""
    from ffdl_batch.client.submissions.manifest_source import read_manifest
    from ffdl_batch.client.submissions.submission_builder import build_submission
    from ffdl_batch.host.core_dumps import forbid_core_dumps

    forbid_core_dumps()
    if wrapped:
        return [build_submission(replace(read_manifest(wrapped), name=""), digest, wanted)]
    # As paths: Python callers may pass a text of several lines, and a file name must not be taken for a text.
    return [build_submission(read_manifest(Path(manifest)), digest, wanted) for manifest in manifests]
