"""``ffdl web``: serve the page of the jobs to a browser."""

from __future__ import annotations

import os
import sys

import click

from ffdl_batch.cli.connection import given_host
from ffdl_batch.option_types import WholeNumber

_LAST_PORT = 65535


@click.command()
@click.option(
    "--tcp", type=WholeNumber(0, _LAST_PORT), metavar="PORT",
    help="Listen on this port of 127.0.0.1 instead of a Unix socket; 0 selects a free port.",
)  # fmt: skip
def web(tcp: int | None) -> None:
    """Serve a page with your jobs, their logs and metrics to a browser, until Ctrl-C.

    On a login node, run the printed ssh command on your computer, and open the printed address there. It works once;
    Enter prints another one. On your own computer, use --tcp. Only you can open the page: connections of other users
    are refused, also on a port.
    """
    # Ruff: the program and its arguments are ours. -P: no module is imported from the current directory.
    argv = [sys.executable, "-P", "-m", "ffdl_batch.web.main"]
    argv += ["--tcp", str(tcp)] if tcp is not None else []
    host = given_host()
    argv += ["--host", host] if host else []
    sys.stdout.flush()
    os.execv(argv[0], argv)  # noqa: S606
