"""``ffdl report nodes``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output_file import check_written, writing
from ffdl_batch.cli.render.formatting import format_time, print_json
from ffdl_batch.output import data_output

if TYPE_CHECKING:
    from ffdl_batch.cli.render.document import Document
    from ffdl_batch.domain.incidents.node_score import NodesReport

FORMATS = ("text", "json", "csv", "markdown", "html")
CSV_COLUMNS = ("node", "score", "kind", "incidents", "jobs", "last", "excluded_until")
"""A line for each node and kind. Stable: new ones come at the end, none changes its meaning."""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: ffdl report nodes --format markdown -o nodes.md",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
              help="html is a page that stands alone; csv has a line for each node and kind.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("-o", "--output", metavar="FILE", callback=check_written, help="Write it there.")
def nodes(*, form: str, as_json: bool, output: str | None) -> None:
    """Which nodes failed jobs: each with its score, its incidents by kind, when the last one happened, and until when
    jobs keep off it.

    The score adds the weights of a node's incidents, an attempt of a job once; each halves every fourteen days. What a
    learner prints never counts. Nodes are left out for jobs of this platform alone, where the configuration says so
    ([nodes] exclude_unreliable); none is drained.
    """
    if as_json and form not in ("text", "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    with open_client() as client:
        report = client.reports.nodes()
    with writing(output or "-") as path:
        if path == "-":
            _write(report, "json" if as_json else form, data_output())
        else:
            with open(path, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
                _write(report, "json" if as_json else form, file)


def _write(report: NodesReport, form: str, file: IO[str]) -> None:
    if form == "json":
        print_json({"nodes": report}, file)
    elif form == "csv":
        from ffdl_batch.cli.render.document import write_csv

        write_csv(file, CSV_COLUMNS, _rows(report))
    else:
        from ffdl_batch.cli.render.document_html import write_document

        write_document(nodes_document(report), form, file)


def nodes_document(report: NodesReport) -> Document:
    """The report for people."""
    from ffdl_batch.cli.render.document import Document, Section, number_column, table_of, text_column

    columns = (
        text_column("NODE"), number_column("SCORE", 2), number_column("JOBS", 0), text_column("INCIDENTS"),
        text_column("LAST"), text_column("LEFT OUT UNTIL"),
    )  # fmt: skip
    rows = [
        (
            one.node,
            one.score,
            float(one.jobs),
            ", ".join(f"{count} {kind}" for kind, count in sorted(one.kinds.items())),
            format_time(one.last),
            format_time(one.excluded_until) if one.excluded_until is not None else None,
        )
        for one in report.nodes
    ]
    rule = f"Jobs keep off nodes from {report.threshold:g} on." if report.threshold is not None else "None is left out."
    said = (rule,) if rows else ("No node has failed a job.",)
    about = (f"As of {format_time(report.at)}, by local time; each incident weighs half after fourteen days.",)
    return Document("Nodes", about, (Section("Scores", said, (table_of("", columns, rows),)),))


def _rows(report: NodesReport) -> Iterator[tuple[object, ...]]:
    for one in report.nodes:
        until = f"{one.excluded_until:.3f}" if one.excluded_until is not None else ""
        for kind, count in sorted(one.kinds.items()):
            yield one.node, f"{one.score:.6f}", kind, count, one.jobs, f"{one.last:.3f}", until
