"""``ffdl init``: a first job that runs as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ffdl_batch.cli.exit_handling import Stop
from ffdl_batch.domain.exit_codes import ExitCode

_README = """\
Your code goes here. A learner gets a copy of this directory as $MODEL_DIR and starts the command of
manifest.yml in it.
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
def init(name: str) -> None:
    """Make a directory NAME with a manifest and a small model; it runs as it is."""
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
        raise Stop(ExitCode.FAILED, f"{name} cannot be made: {error.strerror}") from None
    model = directory / "model"
    model.mkdir()
    (directory / "manifest.yml").write_text(text, encoding="utf-8")
    (model / "README.md").write_text(_README, encoding="utf-8")
    shown = f"./{directory}" if str(directory).startswith("-") else str(directory)
    click.echo(f"Submit it: {shlex.join(('ffdl-submit', f'{shown}/manifest.yml', f'{shown}/model'))}")
