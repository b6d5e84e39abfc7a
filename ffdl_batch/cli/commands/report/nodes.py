"""``ffdl report nodes``: report nodes that fail jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client, site_option
from ffdl_batch.cli.options.output import FORMATS, check_written, chosen_format, json_option, open_output
from ffdl_batch.cli.render.formatting import format_time, print_json

if TYPE_CHECKING:
    from ffdl_batch.cli.render.document import Document
    from ffdl_batch.domain.incidents.node_score import NodesReport

CSV_COLUMNS = ("node", "score", "kind", "incidents", "jobs", "last", "excluded_until")
"""For a row for each node and kind. Stable: new columns are added at the end, and no column changes its meaning."""


@click.command(epilog="Example: ffdl report nodes --format markdown -o nodes.md")
@site_option
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
              help="Format. html needs no other file; csv has a row for each node and kind.")  # fmt: skip
@json_option("Same as --format json.")
@click.option(
    "-o", "--output", metavar="FILE", default="-", callback=check_written, help="Write the report to this file."
)
def nodes(*, site: bool, form: str, as_json: bool, output: str) -> None:
    """Report nodes that fail jobs: the score of each, its incidents by kind, the time of the last one, and until when
    it is excluded.

    The score is the sum of the weights of a node's incidents, one for each attempt. A weight halves every fourteen
    days. The output of learners does not count. Nodes are excluded only for jobs of ffdl, and only if the
    configuration says so ([nodes] exclude_unreliable). No node is drained. With --site, the incidents of all users
    count, and only nodes that failed jobs of at least two users are listed. EXCLUDED UNTIL is always empty with --site.
    """
    form = chosen_format(form, as_json=as_json)
    with open_client(is_site=site) as client:
        report = client.reports.nodes()
    with open_output(output) as file:
        _write(report, form, file, is_site=site)


def _write(report: NodesReport, form: str, file: IO[str], *, is_site: bool) -> None:
    if form == "json":
        print_json({"nodes": report}, file)
    elif form == "csv":
        from ffdl_batch.cli.render.document import write_csv

        write_csv(file, CSV_COLUMNS, _rows(report))
    else:
        from ffdl_batch.cli.render.document_html import write_document

        write_document(nodes_document(report, is_site=is_site), form, file)


def nodes_document(report: NodesReport, *, is_site: bool = False) -> Document:
    """Return the report as a document."""
    from ffdl_batch.cli.render.document import Document, Section, number_column, table_of, text_column

    columns = (
        text_column("NODE"), number_column("SCORE", 2), number_column("JOBS", 0), text_column("INCIDENTS"),
        text_column("LAST"), text_column("EXCLUDED UNTIL"),
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
    excluded = f"Nodes with {report.threshold:g} or more are excluded." if report.threshold is not None else ""
    sentence = (excluded or "No node is excluded.") if rows else "No node has failed a job."
    if is_site:
        sentence = f"{'These nodes have' if rows else 'No node has'} failed jobs of at least two users."
    about = (f"As of {format_time(report.at)}, local time. The weight of an incident halves every fourteen days.",)
    return Document("Nodes", about, (Section("Scores", (sentence,), (table_of("", columns, rows),)),))


def _rows(report: NodesReport) -> Iterator[tuple[object, ...]]:
    for one in report.nodes:
        until = f"{one.excluded_until:.3f}" if one.excluded_until is not None else ""
        for kind, count in sorted(one.kinds.items()):
            yield one.node, f"{one.score:.6f}", kind, count, one.jobs, f"{one.last:.3f}", until
