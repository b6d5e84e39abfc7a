"""Implement ``ffdl-admin cache``, which a timer of root runs for all users of a cache."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted, size_text
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.exit_handling import Stop


@click.group()
def cache() -> None:
    """Manage the cache of data sets on this node."""


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def trim(as_json: bool) -> int:
    """Reduce this node's cache to its limit, and make room for users who need it and have less than an equal share.

    Root does it for all users, as each of them in turn; other users only for their own part. Entries in use are kept.
    The least recently used entries of the largest users are removed first, by measured sizes. Root removes parts that
    do not belong to the user whose number they have.

    Exit code 1: more than the limit is in use; 69: no cache is configured, or it does not exist.
    """
    from ffdl_batch.config import ConfigError, load_settings
    from ffdl_batch.staging.cache.trim import trim as trim_all

    try:
        settings = load_settings()
    except ConfigError as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from error
    if not settings.cache_dir:
        raise Stop(ExitCode.UNAVAILABLE, "no cache is configured: cache_dir is empty")
    try:
        done = trim_all(settings.cache_dir, settings.cache_bytes)
    except FileNotFoundError:
        raise Stop(
            ExitCode.UNAVAILABLE, f"there is no directory {settings.cache_dir} on {os.uname().nodename}"
        ) from None
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        click.echo(json_text({"schema": 1, **asdict(done)}))
    else:
        over = f"; {size_text(done.over)} above the limit are in use" if done.over else ""
        click.echo(
            f"{counted(done.users, 'user')} {'holds' if done.users == 1 else 'hold'} {size_text(done.bytes)}; "
            f"{counted(done.removed, 'entry', 'entries')} of {size_text(done.removed_bytes)} "
            f"{'was' if done.removed == 1 else 'were'} removed{over}"
        )
    return ExitCode.FAILED if done.over else ExitCode.OK
