"""``ffdl report``: reports about failures, nodes and usage. Each report's module is imported when it is used."""

from __future__ import annotations

import click

from ffdl_batch.lazy_group import LazyGroup

REPORTS: dict[str, tuple[str, str]] = {
    "faults": ("faults:faults", "Report failures: incidents, causes, trend, nodes, losses."),
    "nodes": ("nodes:nodes", "Report nodes that fail jobs, and excluded nodes."),
    "usage": ("usage:usage", "Report usage: hours, times, efficiency, waste, cost."),
}


@click.group(
    cls=LazyGroup,
    package="ffdl_batch.cli.commands.report",
    table=REPORTS,
)
def report() -> None:
    """Print reports as text, JSON, CSV, Markdown or HTML, for people, programs and cron."""
