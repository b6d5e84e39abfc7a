"""Print the comparison of two jobs that share a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ffdl_batch.cli.render.formatting import format_number, print_line, print_table
from ffdl_batch.domain.metrics.gpu_sharing import PER, Comparison, Run, Subject
from ffdl_batch.domain.pending.reason_text import span_text
from ffdl_batch.domain.terminal_text import printable


def print_comparison(found: Comparison) -> None:
    """Print the devices or nodes of both jobs, a row for each run, and the result."""
    for subject in found.subjects:
        held = subject.together.held
        print_line(f"{subject.manifest}", " ".join(held.devices) or held.nodes, "together")
    columns = ["JOB", "RUN", f"{found.resource}S", "SAMPLES/S", "SPEED", f"{found.resource}-S/{PER}"]
    if found.has_costs:
        columns.append(f"COST/{PER} {found.currency}".strip())
    if any(one.samples is not None for one in found.subjects):
        columns += ["TIME", *([f"COST {found.currency}".strip()] if found.has_costs else [])]
    print_table(columns, [row for subject in found.subjects for row in _rows(found, subject)])
    for sentence in found.sentences:
        click.echo(printable(sentence, one_line=True))


def _rows(found: Comparison, subject: Subject) -> Iterator[list[str]]:
    for name, run, kept in (("alone", subject.alone, 1.0), ("together", subject.together, subject.kept)):
        held = run.held.gpus if found.resource == "GPU" else run.held.cpus
        row = [subject.manifest, name, format_number(held), f"{run.speed.samples_per_s:.4g}", f"{kept:.0%}"]
        row.append(f"{run.device_s:.3g}")
        if found.has_costs:
            row.append(f"{run.cost:.3g}")
        if any(one.samples is not None for one in found.subjects):
            row += _of_whole_job(found, subject, run)
        yield row


def _of_whole_job(found: Comparison, subject: Subject, run: Run) -> list[str]:
    """Return the time of the whole job at this speed, and its cost if there are prices."""
    if subject.samples is None:
        return ["-", *(["-"] if found.has_costs else [])]
    cost = [f"{subject.samples / PER * run.cost:.2f}"] if found.has_costs else []
    return [span_text(subject.samples / run.speed.samples_per_s), *cost]
