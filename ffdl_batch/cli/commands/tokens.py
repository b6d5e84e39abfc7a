"""``ffdl token``: tokens with which ffdl on another machine reaches this user's daemon through the site's hub."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_time, print_json, print_table
from ffdl_batch.exit_handling import complain
from ffdl_batch.option_types import Number

_DAY_S = 86400


@click.group()
def token() -> None:
    """Manage tokens for the site's hub: create, list, revoke."""


@token.command()
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(("read", "write")),
              help="Scope of the token; can be repeated. Default: both.")  # fmt: skip
@click.option("--days", type=Number(0, 365, min_open=True), default=30, show_default=True,
              help="Lifetime in days, at most 365.")  # fmt: skip
@json_option()
def create(name: str, scopes: Sequence[str], days: float, as_json: bool) -> None:
    """Create a token, and print it on standard output. It is shown only once.

    NAME describes the token's use, such as `laptop`. The scope `read` permits viewing everything that you can see,
    `write` everything that changes jobs.
    """
    from ffdl_batch.host.core_dumps import forbid_core_dumps

    forbid_core_dumps()
    with open_client() as client:
        made, secret = client.tokens.create(name, scopes or ("read", "write"), days * _DAY_S)
    if as_json:
        print_json({"token": made, "secret": secret})
        return
    click.echo(secret)
    complain(
        f"token {made.id} ({made.name}: {', '.join(made.scopes)}) expires {format_time(made.expires_at)}; to use it on "
        f"another machine: ffdl login {_hub_url() or 'https://HUB'}; to end it: ffdl token revoke {made.id}"
    )


def _hub_url() -> str:
    """Return the address of the hub, if it is known here."""
    from ffdl_batch.client.connection.daemon_location import read_settings
    from ffdl_batch.client.connection.ways import find_hub

    place = find_hub(os.environ, read_settings(os.environ))
    return "" if place is None else place.url


@token.command("list")
@json_option()
def list_tokens(as_json: bool) -> None:
    """List the valid tokens. The tokens themselves are not shown."""
    with open_client() as client:
        found = client.tokens.list()
    if as_json:
        print_json({"tokens": found})
    elif found:
        rows = [
            (one.id, one.name, ",".join(one.scopes), format_time(one.created_at), format_time(one.expires_at))
            for one in found
        ]
        print_table(("ID", "NAME", "SCOPES", "CREATED", "EXPIRES"), rows)


@token.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option("Print JSON, one line per token.")
def revoke(ids: Sequence[str], as_json: bool) -> int:
    """Revoke tokens. Machines that use them can no longer reach the daemon."""
    from ffdl_batch.client import RequestRefused

    code = 0
    with open_client() as client:
        for token_id in ids:
            try:
                hub_informed = client.tokens.revoke(token_id)
            except RequestRefused as error:  # the other tokens must still be revoked
                complain(str(error))
                code = code or error.problem.exit_code
                continue
            if as_json:
                print_json({"revoked": token_id, "hub_informed": hub_informed})
            else:
                click.echo(f"token {token_id} is revoked")
            if not hub_informed:
                complain(f"{token_id}: the hub could not be informed; your daemon refuses the token anyway")
    return code
