"""A submission to a host that has no ffdl: the way out (``ffdl convert --to``), sent along with its model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.commands.config import unusable_table
from ffdl_batch.cli.exit_handling import Stop, complain
from ffdl_batch.cli.host_without_ffdl.host import Outpost, image_of, open_outpost, values_of
from ffdl_batch.cli.options.submission import Manner
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from ffdl_batch.client.errors import NoProgramThere
    from ffdl_batch.domain.job.spec import JobSpec
    from ffdl_batch.domain.job.submission import Submission
    from ffdl_batch.ports.export import Left


@dataclass(frozen=True, slots=True)
class _Made:
    """What is sent of a submission. `manifest` is what that is called."""

    manifest: str
    directory: str
    script: str
    secrets: dict[str, str]


def submit_there(
    error: NoProgramThere, submissions: Sequence[Submission], model: str, manner: Manner, *, dry_run: bool
) -> int:
    """One job of the scheduler for each; ids are the scheduler's. All are made before the first is sent."""
    with open_outpost(error, quiet=manner.quiet) as outpost:
        made = [_make(outpost, one, manner) for one in submissions]
        if dry_run:
            for one in made:
                click.echo(one.script, nl=False)
            return ExitCode.OK
        ids = [_send(outpost, one, model, manner) for one in made]
        if not manner.wait:
            return ExitCode.OK
        from ffdl_batch.cli.host_without_ffdl.job_commands import wait_for

        return wait_for(outpost, ids, None, complain)


def _make(outpost: Outpost, submission: Submission, manner: Manner) -> _Made:
    """Raises Stop for what cannot be had without ffdl there: a job never runs on less than its manifest demands."""
    from ffdl_batch.client.host_job_files import MODEL, SECRETS
    from ffdl_batch.ports.conversion import CannotConvert, Fate
    from ffdl_batch.ports.converters import create_converter
    from ffdl_batch.ports.export import Leaving, WritesJobs
    from ffdl_batch.ports.scheduler import InvalidRequest

    file = submission.manifest_name
    if submission.backend not in ("", outpost.name):
        raise Stop(ExitCode.USAGE, f"{outpost.host} has no ffdl, and so no backend but {outpost.name}")
    spec, inline = _read(outpost, submission, manner)
    _check(outpost, spec, file)
    values = values_of(outpost, spec.batch.secrets, inline, submission.references) | dict(submission.environ)
    directory = outpost.jobs.new_directory(spec.name)
    output = spec.batch.output or f"{directory}/slurm-{'%A_%a' if spec.batch.array or spec.batch.sweep else '%j'}.out"
    batch = replace(spec.batch, output=output, secrets=dict.fromkeys(values, ""))
    writer = create_converter(outpost.name)
    assert isinstance(writer, WritesJobs)
    settings = outpost.settings.backend_settings(outpost.name)
    try:
        left = writer.leave(
            Leaving(
                replace(spec, batch=batch),
                file,
                image_of(outpost, spec.framework),
                {key: value for key, value in settings.items() if key not in ("gateway", "host")},
                SECRETS if values else "",
                MODEL,
            )
        )
    except InvalidRequest as error:
        raise unusable_table(outpost.settings, outpost.name, error) from None
    except CannotConvert as refused:
        raise Stop(ExitCode.BAD_MANIFEST, f"{file}: {refused}") from refused
    _check_stores(outpost, left, file)
    for one in left.judged:
        if one.fate is not Fate.MAPPED and not one.text.startswith("batch.secrets"):
            reason = f" ({one.reason})" if one.reason else ""
            manner.warn(f"{file}:{one.line}: {one.fate} without ffdl there: {one.text}{reason}")
    return _Made(file, directory, left.text, values)


def _read(outpost: Outpost, submission: Submission, manner: Manner) -> tuple[JobSpec, dict[str, str]]:
    from ffdl_batch.cli.commands.validate import site_defaults
    from ffdl_batch.domain.findings import Severity
    from ffdl_batch.domain.sbatch.begin_time import with_absolute_times
    from ffdl_batch.manifest import ManifestSource, parse_manifest

    del outpost
    parsed = parse_manifest(
        ManifestSource(submission.manifest, submission.manifest_name, submission.base_dir),
        options=submission.options,
        environment_options=submission.environment_options,
        defaults=site_defaults(),
        strict=submission.strict,
    )
    errors = [finding for finding in parsed.findings if finding.severity is Severity.ERROR]
    if parsed.spec is not None:
        batch, wrong = with_absolute_times(parsed.spec.batch, time.time(), submission.utc_offsets)
        errors += [replace(one, file=submission.manifest_name) for one in wrong]
    if parsed.spec is None or errors:
        raise Stop(ExitCode.BAD_MANIFEST, "\n".join(map(str, errors)))
    for finding in parsed.findings:
        if finding.severity is Severity.WARNING:
            manner.warn(str(finding))
    return replace(parsed.spec, batch=batch), dict(parsed.inline_secrets)


def _check(outpost: Outpost, spec: JobSpec, file: str) -> None:
    from ffdl_batch.domain.launch.network_level import NetworkLevel

    if spec.batch.network not in (NetworkLevel.AUTO, NetworkLevel.HOST):
        raise Stop(
            ExitCode.BAD_MANIFEST,
            f"{file}: network {spec.batch.network} cannot be had without ffdl_batch on {outpost.host}; install it "
            "there, or ask for network: host",
        )


def _check_stores(outpost: Outpost, left: Left, file: str) -> None:
    if left.undone:
        raise Stop(
            ExitCode.BAD_MANIFEST,
            f"{file}: nobody would move the data of {', '.join(left.undone)} without ffdl_batch on {outpost.host}; "
            "install it there, name directories of it as data_stores, or complete the script by hand: ffdl convert "
            f"{file} --to {outpost.name}",
        )


def _send(outpost: Outpost, made: _Made, model: str, manner: Manner) -> str:
    from ffdl_batch.client.host_job_files import SCRIPT, SECRETS, export_lines

    jobs = outpost.jobs
    files = {SCRIPT: made.script} | ({SECRETS: export_lines(made.secrets)} if made.secrets else {})
    manner.tell(f"sending {model} to {made.directory} on {outpost.host}")
    jobs.send(made.directory, Path(model), files)
    job_id = _submit(outpost, made)
    if manner.as_json:
        result = {"id": job_id, "backend": outpost.name, "host": outpost.host, "directory": made.directory}
        print_json({"manifest": made.manifest, "result": result})
    elif not manner.quiet:
        click.echo(job_id if manner.parsable else f"Submitted batch job {job_id}")
    return job_id


def _submit(outpost: Outpost, made: _Made) -> str:
    """Where the answer was lost, the job may have left its link all the same."""
    from ffdl_batch.client.host_job_files import SCRIPT
    from ffdl_batch.ports.scheduler import SubmissionUncertain

    try:
        return outpost.scheduler.submit(made.directory, SCRIPT, outpost.jobs.index)
    except SubmissionUncertain as error:
        for job_id in outpost.jobs.ids()[:20]:
            if outpost.jobs.directory_of(job_id) == made.directory:
                complain(f"the answer was lost on its way, and the job is there ({error})")
                return job_id
        raise Stop(
            ExitCode.TRY_AGAIN,
            f"{error}. Look before you submit again: ffdl --host {outpost.host} list; its directory there is "
            f"{made.directory}",
        ) from error
