"""``ffdl init``, ``validate`` and ``schema``, which need no daemon."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.exit_handling import Stop, complain

if TYPE_CHECKING:
    from ffdl_batch.client.submissions.manifest_source import Origin
    from ffdl_batch.manifest import Defaults


_README = """\
Put your code here. Each learner gets a copy of this directory as $MODEL_DIR, and starts the command of
manifest.yml in it.
"""


@click.command()
@click.argument("name")
def init(name: str) -> None:
    """Create a directory NAME with a manifest and a small model that run as they are."""
    from ffdl_batch.manifest import starter_manifest

    directory = Path(name)
    try:
        text = starter_manifest(directory.absolute().name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise Stop(ExitCode.FAILED, f"{name} exists; nothing was changed") from None
    except OSError as error:
        raise Stop(ExitCode.FAILED, f"{name} cannot be created: {error.strerror}") from None
    model = directory / "model"
    model.mkdir()
    (directory / "manifest.yml").write_text(text, encoding="utf-8")
    (model / "README.md").write_text(_README, encoding="utf-8")
    shown = f"./{directory}" if str(directory).startswith("-") else str(directory)
    click.echo(f"Submit it: {shlex.join(('ffdl-submit', f'{shown}/manifest.yml', f'{shown}/model'))}")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--strict", is_flag=True, help="Treat unknown keys as errors.")
@click.option("-Q", "--quiet", is_flag=True, help="Print errors only.")
@json_option("Print JSON, one line per file.")
def validate(files: Sequence[str], strict: bool, quiet: bool, as_json: bool) -> int:
    """Check manifests, and print each error with its line and a correction.

    The exit code is 78 if any manifest is invalid, else 66 if any cannot be read.

    A warning names each reference that a submission refuses without --allow-file or --allow-references. This command
    does not check resources, images and data against a site. To check them, run `ffdl plan FILE MODEL`.
    """
    from ffdl_batch.client.submissions.manifest_source import read_source
    from ffdl_batch.host.core_dumps import forbid_core_dumps

    forbid_core_dumps()  # a manifest may contain credentials
    defaults = site_defaults()
    code, any_valid = 0, False
    for file in files:
        try:
            data, origin = read_source(file)
        except OSError as error:
            _report_unreadable(file, str(error.strerror), as_json=as_json)
            code = code or ExitCode.NO_INPUT
            continue
        findings = _check(data, file, origin, defaults, strict=strict)
        valid = not any(finding.severity is Severity.ERROR for finding in findings)
        if not valid:
            code = ExitCode.BAD_MANIFEST
        if as_json:
            print_json({"file": file, "valid": valid, "findings": findings})
        else:
            _print(file, findings, valid=valid, quiet=quiet)
        any_valid = any_valid or valid
    if any_valid and not (as_json or quiet):
        click.echo("resources, images and data were not checked; to check them, run: ffdl plan FILE MODEL")
    return code


def _report_unreadable(file: str, reason: str, *, as_json: bool) -> None:
    """Report a file that cannot be read. With JSON it has a document, so that there is one for each file."""
    if as_json:
        print_json({"file": file, "valid": False, "findings": [Finding(Severity.ERROR, reason, file=file)]})
    else:
        complain(f"{file}: {reason}")


def _check(data: bytes, file: str, origin: Origin, defaults: Defaults, *, strict: bool) -> tuple[Finding, ...]:
    """Return the findings: an error for what every submission refuses, and a warning for each reference that it refuses
    unless an option allows it."""
    from ffdl_batch.client.submissions.manifest_source import ManifestText, refused_references
    from ffdl_batch.manifest import ManifestSource, parse_manifest
    from ffdl_batch.manifest.contract import NO_JOB

    name = "<stdin>" if file == "-" else file
    parsed = parse_manifest(ManifestSource(data, name, origin.base_dir), defaults=defaults, strict=strict)
    findings = tuple(replace(one, severity=Severity.ERROR) if NO_JOB in one.message else one for one in parsed.findings)
    if parsed.spec is None:
        return findings
    refused = refused_references(ManifestText(data.decode("utf-8-sig"), name, origin))
    return (*findings, *(replace(finding, severity=Severity.WARNING) for finding in refused))


def site_defaults() -> Defaults:
    """Return the values that this user's daemon would use for keys that a manifest leaves out."""
    from ffdl_batch.cli.commands.config import settings_or_stop
    from ffdl_batch.config.images import known_frameworks
    from ffdl_batch.domain.quantity import parse_size
    from ffdl_batch.manifest import Defaults

    settings = settings_or_stop()
    return Defaults(
        memory_bytes=parse_size(settings.default_memory),
        cpus=settings.default_cpus,
        known_frameworks=known_frameworks(settings),
        pools=frozenset(settings.elastic),
    )


def _print(file: str, findings: Sequence[Finding], *, valid: bool, quiet: bool) -> None:
    for finding in findings:
        if not quiet or finding.severity is Severity.ERROR:
            click.echo(str(finding), err=True)
    if valid and not quiet:
        click.echo(f"{file}: ok")


@click.command()
def schema() -> None:
    """Print the manifest's JSON Schema, for editors and validators."""
    from ffdl_batch.manifest import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
