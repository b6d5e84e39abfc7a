"""Verbs that run on the host itself: this terminal, or these streams, are theirs for that long."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import find_elsewhere

if TYPE_CHECKING:
    from ffdl_batch.client.connection.remote_host import HostPlace


def remote_command(words: Sequence[str]) -> click.Command | None:
    """The command that runs `words` on the chosen host; None where none is chosen."""
    place = find_elsewhere()
    if place is None:
        return None
    return click.Command(
        words[0],
        callback=lambda: _run(place, words),
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
        add_help_option=False,
    )


def _run(place: HostPlace, words: Sequence[str]) -> int:
    from ffdl_batch.client.connection.host_relay import connector_of
    from ffdl_batch.client.connection.remote_command import run_remotely

    with_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return run_remotely(place, connector_of(place.host, os.environ), words, with_terminal=with_terminal)
