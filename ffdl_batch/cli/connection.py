"""The client as the commands use it: what it has to say goes to standard error, once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ffdl_batch.cli.outcome import complain

if TYPE_CHECKING:
    from ffdl_batch.client import Client


def open_client(*, quiet: bool = False, start: bool = True) -> Client:
    """A client that warns in the command's name where the daemon runs with other settings than this command's."""
    from ffdl_batch.client import Client
    from ffdl_batch.client.start import Dialling

    return Client(dialling=Dialling(start=start, told=_say_nothing if quiet else _warn))


@functools.cache  # a command that follows a log has several connections
def _warn(text: str) -> None:
    complain(f"warning: {text}")


def _say_nothing(_text: str) -> None:
    """For -Q."""
