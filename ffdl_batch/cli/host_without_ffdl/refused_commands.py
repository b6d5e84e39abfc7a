"""Where the host of --host has no ffdl: its scheduler's own commands, if it has some that we know.

What goes by them is little, and the rest is refused by name: nobody watches such jobs, and nobody starts them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.host_without_ffdl.host import open_outpost, refusal
from ffdl_batch.cli.host_without_ffdl.job_commands import COMMANDS

if TYPE_CHECKING:
    from ffdl_batch.client.errors import NoProgramThere


def run_verb(verb: str, words: Sequence[str], error: NoProgramThere) -> object:
    """What `verb` does there. Raises Stop (exit 69) where nothing but ffdl can do it, and `error` for a host whose ffdl
    was named, or that has no scheduler either."""
    command = COMMANDS.get(verb)
    with open_outpost(error, quiet=command is None) as outpost:
        if command is None:
            raise refusal(outpost.host, f"ffdl {verb}")
        try:
            with command.make_context(f"ffdl {verb}", list(words), obj=outpost) as context:
                return command.invoke(context)
        except click.NoSuchOption as option:
            raise click.UsageError(f"{option.option_name} needs ffdl_batch on {outpost.host}", option.ctx) from None
