"""``ffdl login`` and ``ffdl logout``: store and remove a token for the site's hub.

A token is never an argument, because other users can read arguments.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_time, print_json
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop, complain

if TYPE_CHECKING:
    from ffdl_batch.client.connection.hub import HubPlace
    from ffdl_batch.client.connection.logins import Logins
    from ffdl_batch.domain.access import Identity

_TOKEN_BYTES = 1024
_CA_BYTES = 1 << 20


@click.command(context_settings={"allow_extra_args": True})
@click.argument("url", required=False, default="", metavar="[URL]")
@click.option("--browser", "way", flag_value="browser", help="Log in with a browser even if this machine has munge.")
@click.option("--token", "way", flag_value="token", help="Log in with a token even if this machine has munge.")
@click.option(
    "--token-stdin", "way", flag_value="token-stdin", help="Read the token from standard input, without a prompt."
)
@click.option("--ca", "ca_file", metavar="FILE", help="Accept certificates signed by this authority (PEM file).")
@json_option()
@click.pass_context
def login(context: click.Context, url: str, way: str | None, ca_file: str | None, as_json: bool) -> None:
    """Log in to the site's hub at URL. From then on, commands use this hub unless another daemon is named.

    On a login node of the cluster, munge proves who you are. The login is valid for some hours.

    On another machine, open the printed address in a browser, and log in at the site's OpenID provider. The login is
    valid for some hours, too.

    If the site has no OpenID provider, you need a token; to create one on a login node: ffdl token create NAME. The
    command prompts for it and does not echo it. The hub checks it before it is stored.

    URL can be left out if it is in the configuration, or to log in again. Example: ffdl login https://ffdl.example.org
    """
    from ffdl_batch.client.connection.hub import obtain_token, obtain_token_by_browser, offers_device_logins
    from ffdl_batch.client.connection.logins import Login, Logins, read_logins, write_logins
    from ffdl_batch.host.core_dumps import forbid_core_dumps

    if context.args or url.startswith("ffdl_"):  # not repeated: it may be the token
        message = "a token must not be an argument, because every user of the machine can read arguments; leave it out"
        raise Stop(ExitCode.USAGE, f"{message}, and enter it at the prompt (if this was a token, revoke it)")
    logins = read_logins(os.environ)
    place = logins.place(_chosen_url(url, logins))
    if ca_file is not None:
        place = replace(place, ca=_read_ca(ca_file))
    forbid_core_dumps()
    name, account = f"login on {os.uname().nodename}"[:80], ""
    if not way and shutil.which("munge"):
        place = replace(place, token=obtain_token(place, name, complain))
    elif way == "browser" or (not way and offers_device_logins(place, complain)):
        token, account = obtain_token_by_browser(place, name, complain, _show_address)
        place = replace(place, token=token)
    else:
        place = replace(place, token=_read_token(place, from_stdin=way == "token-stdin"))
    identity = _identify(place)
    if account:  # if another user has confirmed the login, it is that user's daemon, which may lie
        identity = replace(identity, account=account)
    hubs = {**logins.hubs, place.url: Login(place.token, place.ca, identity.account)}
    path = write_logins(os.environ, Logins(place.url, hubs))
    if as_json:
        print_json({"hub": place.url, "identity": identity})
        return
    until = "" if identity.expires_at is None else f", until {format_time(identity.expires_at)}"
    click.echo(f"logged in to {place.url} as {identity.account} ({', '.join(identity.scopes)}){until}")
    complain(f"the token is stored in {path}; to remove it: ffdl logout")


def _show_address(address: str, code: str) -> None:
    complain(f"to log in, open {address} in a browser on any machine, and compare or enter the code {code}")
    complain("confirm it only if you have started this command yourself; waiting (Ctrl-C to end)")


def _chosen_url(given: str, logins: Logins) -> str:
    from ffdl_batch.client.connection.daemon_location import read_settings

    url = given or os.environ.get("FFDL_HUB") or read_settings(os.environ).hub_url or logins.newest
    if not url:
        raise Stop(ExitCode.USAGE, "name the hub: ffdl login https://HOST")
    return url if "://" in url else f"https://{url}"


def _read_ca(path: str) -> str:
    import ssl

    try:
        with Path(path).open("rb") as file:
            text = file.read(_CA_BYTES).decode("ascii")
        ssl.create_default_context(cadata=text)
    except ssl.SSLError:
        raise Stop(ExitCode.BAD_MANIFEST, f"{path} has no certificate in PEM format") from None
    except OSError as error:
        raise Stop(ExitCode.NO_INPUT, f"{path}: {error.strerror}") from None
    except ValueError:
        raise Stop(ExitCode.BAD_MANIFEST, f"{path} has no certificate in PEM format") from None
    return text


def _read_token(place: HubPlace, *, from_stdin: bool) -> str:
    from ffdl_batch.domain.access import parse_token

    if from_stdin:
        token = sys.stdin.buffer.read(_TOKEN_BYTES).decode("ascii", "replace").strip()
    elif sys.stdin.isatty():
        token = click.prompt(f"token for {place.url}", hide_input=True, err=True).strip()
    else:
        raise Stop(ExitCode.USAGE, "standard input is not a terminal; to read the token from it: --token-stdin")
    if parse_token(token) is None:
        cure = "create one on a login node: ffdl token create NAME"
        raise Stop(ExitCode.USAGE, f"this is not a token of the form ffdl_ID_SECRET; {cure}")
    return token


def _identify(place: HubPlace) -> Identity:
    from contextlib import closing

    from ffdl_batch.client.connection.http_client import Wire
    from ffdl_batch.client.connection.hub import dial_hub
    from ffdl_batch.client.handles import Tokens

    with closing(Wire(lambda: dial_hub(place), complain)) as wire:
        return Tokens(wire).identify()


@click.command()
@click.argument("url", required=False, default="", metavar="[URL]")
def logout(url: str) -> None:
    """Remove the stored token of the hub at URL, or of the last login. The token stays valid: see ffdl token revoke."""
    from ffdl_batch.client.connection.hub import parse_hub
    from ffdl_batch.client.connection.logins import Logins, read_logins, write_logins

    logins = read_logins(os.environ)
    named = url if not url or "://" in url else f"https://{url}"
    gone = parse_hub(named).url if named else logins.newest
    if gone not in logins.hubs:
        raise Stop(ExitCode.FAILED, f"you are not logged in to {gone}" if gone else "you are not logged in to a hub")
    hubs = {other: login for other, login in logins.hubs.items() if other != gone}
    newest = logins.newest if logins.newest in hubs else next(iter(sorted(hubs)), "")
    write_logins(os.environ, Logins(newest, hubs))
    click.echo(f"logged out of {gone}" + (f"; commands use {newest} now" if newest else ""))
