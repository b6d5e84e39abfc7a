"""``ffdl version`` and ``ffdl completion``."""

from __future__ import annotations

import click

from ffdl_batch import __version__
from ffdl_batch.cli.options.output import json_option


@click.command()
@json_option()
def version(as_json: bool) -> None:
    """Print the version of this program."""
    click.echo(f'{{"schema": 1, "version": "{__version__}"}}' if as_json else f"ffdl {__version__}")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of ffdl and ffdl-submit for a shell.

    \b
    bash:  ffdl completion bash > ~/.local/share/bash-completion/completions/ffdl
    zsh:   ffdl completion zsh > a file named _ffdl in a directory of $fpath
    fish:  ffdl completion fish > ~/.config/fish/completions/ffdl.fish
    """
    from click.shell_completion import get_completion_class

    from ffdl_batch.cli.commands.submit import submit
    from ffdl_batch.cli.main import ffdl

    maker = get_completion_class(shell)
    assert maker is not None
    for command, program in ((ffdl, "ffdl"), (submit, "ffdl-submit")):
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        made = maker(command, {}, program, variable)
        click.echo(made.source_template % made.source_vars())
