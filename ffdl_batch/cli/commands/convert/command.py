"""``ffdl convert``: convert job scripts into manifests, and manifests into scripts or objects. Needs no daemon."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.options.output import FORMATS, check_written, writing
from ffdl_batch.cli.render.formatting import read_moment
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import Stop
from ffdl_batch.output import data_output

if TYPE_CHECKING:
    from ffdl_batch.domain.conversion import Conversion, Source
    from ffdl_batch.domain.findings import Finding
    from ffdl_batch.domain.job.spec import JobSpec
    from ffdl_batch.ports.conversion import ReadsScripts

_MOST = 4 << 20
"""Bytes of a script; sbatch's own limit (max_script_size of slurm.conf) is 4 MiB by default."""
_DEFAULT_IMAGE = "custom"


def _check_to(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check that a writer for this format is installed. Callback of --to."""
    if value is not None:
        from ffdl_batch.plugins import writer_names

        if value not in (known := writer_names()):
            message = (
                f"{quoted(value)} is not a format that can be written: {', '.join(known) or 'no writer is installed'}"
            )
            raise click.BadParameter(message, context, parameter)
    return value


@click.command()
@click.argument("file", metavar="FILE", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
@click.option(
    "-o", "--output", default="-", metavar="FILE", callback=check_written, help="Output file; - is standard output."
)
@click.option(
    "--model-dir",
    metavar="DIR",
    help="Directory with the training code, as MODEL of ffdl-submit. The script is copied there if the manifest "
    "needs it.",
)
@click.option("--options", default="", metavar="TEXT", help="Command-line options of sbatch, such as '-N2 -t 30'.")
@click.option("--image", default=_DEFAULT_IMAGE, metavar="IMAGE", help="Image to run in if the file names none.")
@click.option(
    "--report", type=click.Choice(["text", "json", "none"]), default="text", help="Report on each line of the script."
)
@click.option("--check", is_flag=True, help="Convert the manifest back, and show the differences of the scripts.")
@click.option("--strict", is_flag=True, help="Exit with 1 if something was dropped.")
@click.option(
    "--to", metavar="FORMAT", callback=_check_to, help="Convert a manifest into this format: slurm, kubernetes, sbatch."
)
@click.option("--history", is_flag=True, help="Instead of FILE: report where past jobs would run.")
@click.option("--user", default="", metavar="NAME", help="--history: jobs of this user.  [default: your own]")
@click.option("--account", default="", metavar="NAME", help="--history: jobs of all users of this account.")
@click.option(
    "--since", metavar="TIME", default="30d", callback=read_moment, help="--history: from this day on.  [default: 30d]"
)
@click.option(
    "--backend", "backends", multiple=True, metavar="NAME", help="--history: backends to consider; repeatable."
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="--history: format of the report.")
def convert(  # noqa: PLR0913, PLR0917  (click's signature)
    file: str | None,
    arguments: tuple[str, ...],
    output: str,
    model_dir: str | None,
    options: str,
    image: str,
    report: str,
    check: bool,
    strict: bool,
    to: str | None,
    history: bool,
    user: str,
    account: str,
    since: float,
    backends: tuple[str, ...],
    form: str,
) -> int:
    """Convert the sbatch script FILE, which runs with the ARGUMENTs, into a manifest.

    FILE can also be a Job, PyTorchJob, MPIJob or TrainJob of Kubernetes, a task of SkyPilot or dstack, or a manifest of
    Watson Machine Learning.

    Every directive and line is reported as mapped, approximated or dropped, with the reason. SBATCH_* variables apply
    as for sbatch. ARGUMENTs that begin with - must follow --. If the body of the script is not understood, the manifest
    runs the whole script. With --to, FILE is a manifest, which is converted into a script or objects that do not need
    ffdl. With --history, report where past jobs would run, with what loss, and at what cost.

    \b
    Example:
      ffdl convert train.sbatch -o manifest.yml && ffdl-submit manifest.yml .
      ffdl convert pytorchjob.yaml -o manifest.yml
      ffdl convert manifest.yml --to slurm -o alone.sbatch
      ffdl convert --history --account vision --since 2026-10-01
    """
    if history:
        if file is not None:
            raise click.UsageError("--history takes no FILE")
        from ffdl_batch.cli.commands.convert.history import print_history_report

        return print_history_report(
            user=user, account=account, since=since, backends=backends, form=form, output=output
        )  # fmt: skip
    if file is None:
        raise click.UsageError("name the FILE to convert, or use --history")
    text = _read(file)
    if to is not None:
        _export(to, text, file, output, report)
        return ExitCode.OK
    from ffdl_batch.domain.conversion import Source

    source = Source(text, _name(file), _split(options), arguments, dict(os.environ), image)
    reader, conversion = _convert(source, file)
    manifest = _manifest_text(conversion, file, has_body=text.startswith("#!"))
    spec = _spec_made(conversion, manifest, file)
    if model_dir is not None and conversion.wrapped:
        _bring(source, Path(model_dir))
    _write(output, manifest)
    _print_report(conversion, file, report, err=output == "-")
    if check:
        _print_differences(reader, source, spec, file, contained=conversion.contained, err=output == "-")
    return ExitCode.FAILED if strict and _drops(conversion) else ExitCode.OK


def _export(to: str, text: str, file: str, output: str, report: str) -> None:
    from ffdl_batch.cli.commands.convert.export import export_to

    spec = _spec_of(text, file, Path.cwd() if file == "-" else Path(file).absolute().parent)
    written = export_to(to, spec, file, report, err=output == "-")
    _write(output, _script_of(to, spec, file) if written is None else written)


def _read(file: str) -> str:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(_MOST + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(_MOST + 1)
    except OSError as error:
        raise Stop(ExitCode.NO_INPUT, f"{file}: {error.strerror}") from None
    if len(data) > _MOST:
        raise Stop(ExitCode.BAD_MANIFEST, f"{file}: it has more than {_MOST >> 20} MiB, too much for a job script")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Stop(ExitCode.BAD_MANIFEST, f"{file}:{line}: it is not UTF-8; convert it: iconv -t UTF-8") from None


def _name(file: str) -> str:
    return "job.sh" if file == "-" else Path(file).name


def _split(options: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(options))
    except ValueError as error:
        raise click.BadParameter(f"{options!r}: {error}", param_hint="--options") from None


def _convert(source: Source, file: str) -> tuple[ReadsScripts, Conversion]:
    """Convert the script with the converter that recognises it. Raises Stop with the line of an error."""
    from ffdl_batch.domain.conversion import CannotConvert
    from ffdl_batch.plugins import converter_names, create_converter, writer_names
    from ffdl_batch.ports.conversion import ReadsScripts

    for name in converter_names():
        converter = create_converter(name)
        if isinstance(converter, ReadsScripts) and converter.recognises(source.text):
            try:
                return converter, _with_image(converter.convert(source))
            except CannotConvert as error:
                raise Stop(ExitCode.BAD_MANIFEST, f"{_place(file, error.line)}: {error}") from None
    known = ", ".join(converter_names()) or "none is installed"
    message = f"{file}:1: no converter recognises this file (converters: {known}); scripts of sbatch begin with #!"
    if writers := writer_names():
        message += f"; to convert a manifest, use --to {'|'.join(writers)}"
    raise Stop(ExitCode.BAD_MANIFEST, message)


def _with_image(conversion: Conversion) -> Conversion:
    """Return the conversion with a report that neither the file nor the user names an image, if that is so."""
    from ffdl_batch.domain.conversion import Fate, Judged, Origin

    framework = conversion.manifest["framework"]
    if not isinstance(framework, dict) or framework != {**framework, "name": "custom", "version": _DEFAULT_IMAGE}:
        return conversion
    reason = "the job needs an image with its software, and none is named: name one by --image"
    missing = Judged(Origin.SCRIPT, 0, "no image", Fate.APPROXIMATED, "framework.version", reason)
    return replace(conversion, judged=(*conversion.judged, missing))


def _place(file: str, line: int) -> str:
    return f"{file}:{line}" if line else file


def _manifest_text(conversion: Conversion, file: str, *, has_body: bool) -> str:
    from ffdl_batch.manifest.writer import write_manifest

    how = " The body was converted, too." if has_body else ""
    if conversion.wrapped:
        how = f" It runs the whole script: {conversion.wrapped}"
    return write_manifest(conversion.manifest, [f"Converted from {file} by ffdl convert.{how}"])


def _spec_made(conversion: Conversion, text: str, file: str) -> JobSpec:
    """Return the job of the manifest that was made. Raises Stop with the place in `file` of what no manifest can have;
    the manifest is written nowhere then."""
    spec, errors = _read_manifest(text, "", Path.cwd())
    if spec is None:
        raise Stop(ExitCode.BAD_MANIFEST, "\n".join(_at_source(error, conversion, file) for error in errors))
    return spec


def _at_source(error: Finding, conversion: Conversion, file: str) -> str:
    """Return the error with the line and the text that the value is from."""
    for one in conversion.judged:
        if any(error.path and to and f"{error.path}.".startswith(f"{to}.") for to in one.to.split(", ")):
            cure = f" ({error.cure})" if error.cure else ""
            return f"{_place(file, one.line)}: {one.text.strip()}: {error.message}{cure}"
    return f"{file}: {replace(error, line=None, column=None).without_severity()}"


def _spec_of(text: str, name: str, base: Path) -> JobSpec:
    """Return the job of a manifest. Raises Stop with its errors."""
    spec, errors = _read_manifest(text, name, base)
    if spec is None:
        raise Stop(ExitCode.BAD_MANIFEST, "\n".join(map(str, errors)))
    return spec


def _read_manifest(text: str, name: str, base: Path) -> tuple[JobSpec | None, list[Finding]]:
    from ffdl_batch.domain.findings import Severity
    from ffdl_batch.manifest import ManifestSource, parse_manifest

    parsed = parse_manifest(ManifestSource(text, name, str(base)))
    return parsed.spec, [finding for finding in parsed.findings if finding.severity is Severity.ERROR]


def _bring(source: Source, directory: Path) -> None:
    """Copy the script into the model's directory. Raises Stop if another file has its name."""
    place = directory / source.name
    data = source.text.encode()
    try:
        if place.exists():
            if place.read_bytes() != data:
                raise Stop(ExitCode.FAILED, f"{place} is another file; nothing was written; use another --model-dir")
            return
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Stop(ExitCode.FAILED, f"{place}: {error.strerror}") from None
    _write(str(place), source.text)


def _write(output: str, text: str) -> None:
    if output == "-":
        click.echo(text, nl=False, file=data_output())
        return
    with writing(output) as name:
        Path(name).write_text(text, encoding="utf-8")


def _script_of(to: str, spec: JobSpec, file: str) -> str:
    from ffdl_batch.domain.conversion import CannotConvert
    from ffdl_batch.plugins import create_converter
    from ffdl_batch.ports.conversion import WritesScripts

    try:
        converter = create_converter(to)
        if not isinstance(converter, WritesScripts):
            raise Stop(ExitCode.USAGE, f"{to} cannot be written")
        return converter.write(spec)
    except CannotConvert as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"{file}: {error}") from None


def _print_report(conversion: Conversion, file: str, report: str, *, err: bool) -> None:
    from ffdl_batch.cli.commands.convert.export import as_json, as_text

    if report != "none":
        click.echo(as_json(conversion, file) if report == "json" else as_text(conversion, file), err=err)


def _print_differences(
    reader: ReadsScripts, source: Source, spec: JobSpec, file: str, *, contained: bool, err: bool
) -> None:
    from ffdl_batch.domain.conversion import CannotConvert
    from ffdl_batch.ports.conversion import WritesScripts

    if not isinstance(reader, WritesScripts):
        raise Stop(ExitCode.USAGE, "--check: no writer for such scripts is installed")
    try:
        lines: Sequence[str] = reader.differences(source, reader.write(spec, contained=contained))
    except CannotConvert as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"{file}: {error}") from None
    click.echo("\n".join(lines) if lines else "round trip: the script of the manifest requests the same", err=err)


def _drops(conversion: Conversion) -> bool:
    from ffdl_batch.domain.conversion import Fate

    return any(one.fate is Fate.DROPPED for one in conversion.judged)
