"""``ffdl config``: show the settings and where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import find_way
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import print_json, print_table
from ffdl_batch.domain.codec import CodecError, to_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import user_name

if TYPE_CHECKING:
    from ffdl_batch.config import Settings


WIDEST = 48
"""Maximum width of the column of values. A longer value does not move the origins of the others."""


@dataclass(frozen=True, slots=True)
class Row:
    """One setting."""

    key: str
    value: object
    """The value in JSON."""
    text: str
    """The value in the table."""
    origin: str
    """The file, variable or default that it comes from."""


@click.command()
@json_option()
def config(as_json: bool) -> None:
    """Show the configuration of this shell and where each value comes from. Warn if the daemon runs with another."""
    settings = settings_or_stop()
    rows = sorted((*_of_core(settings), *_of_backends(settings)), key=lambda row: row.key)
    if as_json:
        print_json({"settings": {row.key: {"value": row.value, "origin": row.origin} for row in rows}})
    else:
        print_table(("KEY", "VALUE", "ORIGIN"), [(row.key, row.text, row.origin) for row in rows], widest=WIDEST)
    _print_layers(os.environ)
    _warn_of_daemon()


def _print_layers(environ: Mapping[str, str]) -> None:
    """Print which other files apply below the one that $FFDL_CONFIG names."""
    from ffdl_batch.config.load import lasting_files

    named = environ.get("FFDL_CONFIG")
    below = [str(path) for path in lasting_files(environ) if named and not path.samefile(named)]
    if below:
        complain(
            f"note: FFDL_CONFIG ({named}) does not replace the other files: keys that it does not set are read from "
            f"{', '.join(below)}"
        )


def _of_core(settings: Settings) -> Iterator[Row]:
    for key, text, origin in settings.explain():
        if key.startswith("backend."):
            continue
        if key == "backend":
            name, why = settings.effective_backend(os.environ)
            yield Row(key, name, f"{name} ({why})" if why else name, origin)
        else:
            yield Row(key, _plain(getattr(settings, key), text), text, origin)


def _of_backends(settings: Settings) -> Iterator[Row]:
    """Yield the settings of every backend with their defaults, as the backend reads them. Raises :class:`Stop` for an
    invalid table."""
    from ffdl_batch.config.settings import shown
    from ffdl_batch.domain.scheduler_errors import InvalidRequest
    from ffdl_batch.plugins import AdapterContext, adapter_names, create_adapter

    uid = os.getuid()
    context = AdapterContext(root=settings.jobs_dir, user=user_name(uid), uid=uid)
    for name in sorted({*adapter_names(), *settings.backends}):
        try:
            adapter = create_adapter(name, settings.backend_settings(name), context, settings.backend_origins(name))
        except InvalidRequest as error:
            raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from None
        for key, value in adapter.effective_settings().items():
            place = f"backend.{name}.{key}"
            yield Row(place, _plain(value, shown(value)), shown(value), settings.origins.get(place, "default"))


def _plain(value: object, text: str) -> object:
    """Return the value for JSON; its text if JSON has no such type (a date of TOML)."""
    try:
        plain: object = to_plain(value)
    except CodecError:
        return text
    return plain


def _warn_of_daemon() -> None:
    from ffdl_batch.client.connection.daemon_process import find_holder
    from ffdl_batch.client.connection.daemon_settings import own_settings

    if find_way() is not None:
        return  # a daemon of a site or of another host has settings of its own
    own = own_settings(os.environ)
    found = find_holder(own.state_dir)
    if found is not None and (sentence := own.differ_from(found[0])) is not None:
        complain(f"warning: {sentence}")


def settings_or_stop() -> Settings:
    """Return the settings. Raises :class:`Stop` with exit code 78 if the configuration cannot be used."""
    from ffdl_batch.config import ConfigError, load_settings

    try:
        return load_settings()
    except (ConfigError, OSError) as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from None


def unusable_table(settings: Settings, name: str, error: Exception) -> Stop:
    """Return the error for a table ``[backend.<name>]`` that cannot be used because of `error`."""
    files = ", ".join(settings.backend_origins(name))
    return Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {files}{': ' if files else ''}{error}")
