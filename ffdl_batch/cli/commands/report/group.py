"""``ffdl report``: what was used, and what failed. Each report's module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

REPORTS: dict[str, tuple[str, str]] = {
    "faults": ("faults:faults", "What failed: incidents with cause and evidence, trend, nodes, losses."),
    "nodes": ("nodes:nodes", "Which nodes failed jobs: a score for each, and which ones jobs keep off."),
    "usage": ("usage:usage", "Who used what: hours, times, efficiency, waste, cost."),
}


class Reports(click.Group):
    """Knows its reports by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """All of them."""
        return list(REPORTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The report; None where there is none of that name."""
        found = REPORTS.get(cmd_name)
        if found is None:
            return None
        module, _, name = found[0].partition(":")
        command = getattr(import_module(f"ffdl_batch.cli.commands.report.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """With their line from the table: help imports no report."""
        with formatter.section("Reports"):
            formatter.write_dl([(name, text) for name, (_, text) in REPORTS.items()])


@click.group(cls=Reports, context_settings={"help_option_names": ["-h", "--help"]})
def report() -> None:
    """Reports for people, for programs and for cron: text, JSON, CSV, Markdown, or an HTML page that stands alone."""
