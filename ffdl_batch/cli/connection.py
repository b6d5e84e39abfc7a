"""Open the client for commands, with its warnings on standard error, and choose the host whose daemon it uses."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import click

from ffdl_batch.exit_handling import complain

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.connection.daemon_location import HostPlace
    from ffdl_batch.client.stores.user_secrets import UserSecrets

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


def find_elsewhere() -> HostPlace | None:
    """Return the host that commands go to; None for this machine. Raises ClientError for an invalid configuration."""
    from ffdl_batch.client.connection.daemon_location import choose_place, read_settings

    return choose_place(given_host(), os.environ, read_settings(os.environ))


def find_user_secrets() -> UserSecrets:
    """Return the user's secrets, which are on the daemon's host."""
    from pathlib import Path

    from ffdl_batch.cli.commands.config import settings_or_stop
    from ffdl_batch.client.stores.user_secrets import RemoteUserSecrets, UserSecrets

    place = find_elsewhere()
    if place is None:
        return UserSecrets(Path(settings_or_stop().jobs_dir))
    from ffdl_batch.client.connection.host_relay import connector_of

    return RemoteUserSecrets(place, connector_of(place.host, os.environ))


def find_daemon_log() -> str:
    """Return the path of the daemon's log, for a message."""
    from ffdl_batch.client.connection.daemon_location import locate_state_dir
    from ffdl_batch.client.errors import ClientError

    try:
        return str(locate_state_dir(os.environ) / "daemon.log")
    except ClientError:
        return "daemon.log in its state directory"


def open_client(*, quiet: bool = False, start: bool = True) -> Client:
    """Return a client. It prints a warning if the daemon runs with other settings, unless `quiet`."""
    from ffdl_batch.client import Client
    from ffdl_batch.client.connection.daemon_start import Dialling

    return Client(dialling=Dialling(start=start, report=_print_nothing if quiet else _warn, host=given_host()))


@functools.cache  # a command that follows a log has several connections
def _warn(text: str) -> None:
    complain(f"warning: {text}")


def _print_nothing(_text: str) -> None:
    """Discard the warning, for -Q."""
