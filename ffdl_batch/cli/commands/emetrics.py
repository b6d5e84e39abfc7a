"""``ffdl emetrics``: records of metrics in the format of FfDL's command line."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.options.selection import Page, page_options, read_attempt
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.exit_handling import detachable

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.metric_streams import MetricLine
    from ffdl_batch.domain.job.views import AttemptChoice
    from ffdl_batch.domain.metrics.records import Measure


@click.command()
@click.argument("job_id", metavar="ID")
@page_options("record")
@click.option("--attempt", metavar="N|all", callback=read_attempt, help="Attempt.  [default: all]")
@json_option("Print JSON, one record per line, in FfDL's format.")
def emetrics(*, job_id: str, page: Page, attempt: AttemptChoice, as_json: bool) -> None:
    """Show one learner's metrics by record: number, time in milliseconds, group, axes, values.

    The records of each attempt are numbered from 1. For a table or curves, use `ffdl metrics`.
    """
    with open_client() as client, detachable([job_id], f"ffdl emetrics -f {job_id}"):
        lines: Iterable[MetricLine] = client.metrics(job_id, follow=page.follow, learner=page.learner, attempt=attempt)
        if page.since is not None:
            since_ms = page.since * 1000
            lines = (line for line in lines if line.record.time_ms >= since_ms)
        elif page.tail is not None:
            lines = deque(lines, maxlen=page.tail)
        for line in page.cut(lines, lambda line: line.record.rindex):
            _print(line, as_json=as_json)
            if page.follow:
                sys.stdout.flush()


def _print(line: MetricLine, *, as_json: bool) -> None:
    from ffdl_batch.domain.metrics.records import plain_record

    record = line.record
    if as_json:
        print_json({"attempt": line.attempt, "learner": line.learner, "record": plain_record(record)})
        return
    places, values = _pairs(record.etimes), _pairs(record.values)
    click.echo(printable(f"{record.rindex} {record.time_ms} {record.group} [{places}] {values}", one_line=True))


def _pairs(measures: Mapping[str, Measure]) -> str:
    return " ".join(f"{name}={measure.value}" for name, measure in measures.items())
