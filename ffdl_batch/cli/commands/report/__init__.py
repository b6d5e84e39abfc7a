"""``ffdl report``: what was used, and what failed. Each report's module is imported when it is asked for."""

from __future__ import annotations

import click

from ffdl_batch.lazy_group import LazyGroup

REPORTS: dict[str, tuple[str, str]] = {
    "faults": ("faults:faults", "What failed: incidents with cause and evidence, trend, nodes, losses."),
    "nodes": ("nodes:nodes", "Which nodes failed jobs: a score for each, and which ones jobs keep off."),
    "usage": ("usage:usage", "Who used what: hours, times, efficiency, waste, cost."),
}


@click.group(
    cls=LazyGroup,
    package="ffdl_batch.cli.commands.report",
    table=REPORTS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def report() -> None:
    """Reports for people, for programs and for cron: text, JSON, CSV, Markdown, or an HTML page that stands alone."""
