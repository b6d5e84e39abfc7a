"""``ffdl support``: write an archive about a job for a support ticket."""

from __future__ import annotations

from pathlib import Path

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.exit_handling import complain
from ffdl_batch.option_types import NamedPath


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("-o", "--output", type=NamedPath(path_type=Path), metavar="FILE",
              help="File to write. Default: ffdl-support-ID.tar.gz.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def support(job_id: str, output: Path | None, force: bool) -> None:
    """Write an archive about a job, mode 0600, to attach to a support ticket.

    It contains the job's record, events, manifest, batch scripts and launch files, the ends of the learners',
    controllers' and daemon's logs, what the scheduler reports, versions, and the configuration. Values of secrets are
    replaced by asterisks, also in logs. ffdl cannot recognise everything that is confidential in the output of your
    program: review the archive before you send it. MANIFEST.txt in it lists what it contains, and what was left out and
    why.

    Exit code 0: the archive was written; 1: there is no such job, or the file cannot be written; 2: the file exists, is
    not a regular file, or its directory does not exist.
    If no daemon answers (69, 75), use `ffdl-admin support`.
    """
    from ffdl_batch.support_bundle import UNREMOVED, check_target, describe_versions, json_part, write_archive

    target = output or Path(f"ffdl-support-{job_id.replace('/', '_')}.tar.gz")
    check_target(target, force=force)
    with open_client() as client:
        parts = client.output.support(job_id)
    click.echo(write_archive(target, [*parts, json_part("client.json", describe_versions())], force=force))
    for part in parts:
        if part.name == UNREMOVED:
            complain(f"warning: {part.text}")
