"""``ffdl version``."""

from __future__ import annotations

import click

from ffdl_batch import __version__


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """The version of this program."""
    click.echo(f'{{"schema": 1, "version": "{__version__}"}}' if as_json else f"ffdl {__version__}")
