"""``ffdl schema``."""

from __future__ import annotations

import json

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def schema() -> None:
    """The manifest's JSON Schema, for editors and checkers."""
    from ffdl_batch.manifest import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
