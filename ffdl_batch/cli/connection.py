"""Open the client for commands, with its warnings on standard error, and choose the host whose daemon it uses."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import click

from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import complain

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.connection.daemon_location import HostPlace
    from ffdl_batch.client.connection.ways import Way
    from ffdl_batch.client.stores.job_files import OwnPlace
    from ffdl_batch.client.stores.user_secrets import UserSecrets

USER_COMMANDS = ("list", "show", "cancel", "halt", "wait", "events", "why")
"""Commands that operators may use with --user. Auditors may use those that only read."""
host_option = click.option(
    "--host",
    "login_host",
    metavar="HOST",
    help="Use the daemon on this login node, over SSH. It is started if none runs.",
)


def given_host() -> str | None:
    """Return the value of --host, of this command or of a parent; None if it was not given."""
    context = click.get_current_context(silent=True)
    while context is not None:
        found = context.params.get("login_host")
        if isinstance(found, str):
            return found
        context = context.parent
    return None


def read_user(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Return the uid of an account's name, or of a number. Callback of an option. Raises BadParameter."""
    import pwd

    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise click.BadParameter(f"this machine has no account {quoted(text)}; give its number (uid)") from None


user_option = click.option(
    "--user", "of_user", metavar="USER", callback=read_user,
    help=f"Use the daemon of this user, as an operator or auditor: {', '.join(USER_COMMANDS)}.",
)  # fmt: skip


def given_user() -> int | None:
    """Return the uid of --user; None if it was not given."""
    context = click.get_current_context(silent=True)
    found = context.find_root().params.get("of_user") if context else None
    return found if isinstance(found, int) else None


def find_way() -> Way:
    """Return how this command reaches the daemon; None for a personal one. Raises ClientError."""
    from ffdl_batch.client.connection.daemon_start import Dialling

    return Dialling(host=given_host(), user=given_user()).way()


def find_elsewhere() -> HostPlace | None:
    """Return the login node that commands go to; None for this machine, or for a hub. Raises ClientError for an
    invalid configuration."""
    from ffdl_batch.client.connection.daemon_location import choose_place, read_settings

    return choose_place(given_host(), os.environ, read_settings(os.environ))


def find_other_host() -> str:
    """Return the host of the daemon, if its paths are not those of this machine: a login node, or a hub; else ""."""
    from ffdl_batch.client.connection.site_daemon import SitePlace

    way = find_way()
    return "" if way is None or isinstance(way, SitePlace) else way.host


def find_place() -> OwnPlace:
    """Return the place from which this command copies output. Raises ClientError."""
    from ffdl_batch.client.stores.job_files import place_of

    return place_of(find_way(), os.environ)


def find_user_secrets() -> UserSecrets:
    """Return the user's secrets, which are on the daemon's host."""
    return find_place().secrets


def find_daemon_log() -> str:
    """Return the path of the daemon's log, for a message."""
    from ffdl_batch.client.connection.daemon_location import locate_state_dir
    from ffdl_batch.client.errors import ClientError

    try:
        return str(locate_state_dir(os.environ) / "daemon.log")
    except ClientError:
        return "daemon.log in its state directory"


site_option = click.option("--site", is_flag=True, help="Report on all users of the site; for operators and auditors.")


def open_client(*, quiet: bool = False, start: bool = True, is_site: bool = False) -> Client:
    """Return a client, with `is_site` one of the hub. It prints a warning if the daemon runs with other settings,
    unless `quiet`."""
    from ffdl_batch.client import Client
    from ffdl_batch.client.connection.daemon_start import Dialling

    report = _print_nothing if quiet else _warn
    host, user = given_host(), given_user()
    return Client(dialling=Dialling(start=start, report=report, host=host, user=user, is_site=is_site))


@functools.cache  # a command that follows a log has several connections
def _warn(text: str) -> None:
    complain(f"warning: {text}")


def _print_nothing(_text: str) -> None:
    """Discard the warning, for -Q."""
