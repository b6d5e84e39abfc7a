"""Implement ``ffdl-admin cache``, which a timer of root runs for all users of a cache."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted, size_text
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.exit_handling import Stop
from ffdl_batch.option_types import Number


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


@cache.command()
@click.option(
    "--store", "stores", multiple=True, required=True, metavar="URL", help="Endpoint of an S3 store. Repeat it."
)
@click.option("--directory", default="/var/cache/ffdl-shared", show_default=True, help="Directory of the contents.")
@click.option("--size", required=True, callback=lambda _c, _o, text: _bytes(text), help="Limit, as 2TB or in bytes.")
@click.option("--window", default=3600.0, show_default=True, type=Number(1), help="Seconds of a window.")
@click.option("--socket", default="/run/ffdl-cache/socket", show_default=True, help="Socket for readers.")
def serve(stores: tuple[str, ...], directory: str, size: int, window: float, socket: str) -> int:
    """Serve a shared cache to all users of this node: one copy for all who may read an object.

    For each request, the service reads one byte from the store with the reader's signature. Only the named stores are
    contacted. Run it by the unit ffdl-cache.service, as an account of its own, not as root. At the end of each window,
    it prints what each user read and was charged for, as a line of JSON.

    Exit code 69: the directory or the socket cannot be used, or another service uses the directory.
    """
    import signal

    from ffdl_batch.domain.network_address import is_web_address
    from ffdl_batch.staging.shared_cache.service import Place, Service

    for store in stores:
        if not is_web_address(store) or "@" in store:
            raise click.BadParameter(f"{store!r} is not the address of a store", param_hint="--store")
    place = Place(directory, socket, [store.rstrip("/") for store in stores], size, window, click.echo)
    try:
        service = Service(place)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.stop())
        service.serve()
    except OSError as error:
        raise Stop(ExitCode.UNAVAILABLE, f"the cache cannot be served: {error}") from error
    return ExitCode.OK


def _bytes(text: str) -> int:
    from ffdl_batch.domain.quantity import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
