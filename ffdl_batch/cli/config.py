"""``ffdl config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.outcome import Stop
from ffdl_batch.cli.present import print_json, print_table
from ffdl_batch.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from ffdl_batch.config import Settings


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(as_json: bool) -> None:
    """The effective configuration, and where each value came from."""
    rows = settings_or_stop().explain()
    if as_json:
        print_json({"settings": {key: {"value": value, "origin": origin} for key, value, origin in rows}})
    else:
        print_table(("KEY", "VALUE", "ORIGIN"), rows)


def settings_or_stop() -> Settings:
    """The configuration; ends the command with 78 where it cannot be used."""
    from ffdl_batch.config import ConfigError, load_settings

    try:
        return load_settings()
    except (ConfigError, OSError) as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from None
