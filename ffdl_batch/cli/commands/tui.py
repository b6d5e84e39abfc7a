"""``ffdl tui``: show jobs in the terminal."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import given_host
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop

if TYPE_CHECKING:
    from ffdl_batch.cli.tui.app import JobsApp


@click.command()
def tui() -> None:
    """Show your jobs in the terminal: a table that follows them, logs and metrics, until q.

    ? shows the keys. It works over SSH, in 80 columns and 24 lines, and without colours (NO_COLOR).
    """
    try:
        from ffdl_batch.cli.tui.app import JobsApp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("textual", "rich"):
            raise
        cure = "install it with: pip install 'ffdl-batch[tui]'"
        raise Stop(ExitCode.UNAVAILABLE, f"the terminal view needs the extra tui; {cure}") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the terminal view needs a terminal; in a script, use ffdl list")
    asyncio.run(_run(JobsApp))


async def _run(view: type[JobsApp]) -> None:
    from ffdl_batch.client import AsyncClient

    async with AsyncClient(host=given_host()) as client:
        await client.health()  # starts the daemon, or says why it cannot be reached
        await view(client).run_async()
