"""``ffdl config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.outcome import Stop
from ffdl_batch.cli.present import print_json, print_table
from ffdl_batch.domain.codec import CodecError, to_plain
from ffdl_batch.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from ffdl_batch.config import Settings


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(as_json: bool) -> None:
    """The effective configuration, and where each value came from."""
    settings = settings_or_stop()
    rows = settings.explain()
    if as_json:
        shown = {key: {"value": _typed(settings, key, text), "origin": origin} for key, text, origin in rows}
        print_json({"settings": shown})
    else:
        print_table(("KEY", "VALUE", "ORIGIN"), rows)


def _typed(settings: Settings, key: str, text: str) -> object:
    """The value as JSON has it; its text where JSON has nothing like it (a date of TOML)."""
    word, _, rest = key.partition(".")
    adapter, _, name = rest.partition(".")
    value = settings.backend_settings(adapter)[name] if word == "backend" and rest else getattr(settings, key)
    try:
        plain: object = to_plain(value)
    except CodecError:
        return text
    return plain


def settings_or_stop() -> Settings:
    """The configuration; ends the command with 78 where it cannot be used."""
    from ffdl_batch.config import ConfigError, load_settings

    try:
        return load_settings()
    except (ConfigError, OSError) as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from None
