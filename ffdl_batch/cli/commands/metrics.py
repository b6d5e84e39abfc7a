"""``ffdl metrics``: show the metrics and the resource usage of jobs as a table, curves, or a file."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.arrays import elements_of, is_array
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import check_picture, check_written, json_option, open_output, writing
from ffdl_batch.cli.options.selection import read_attempt
from ffdl_batch.cli.render.formatting import print_json
from ffdl_batch.cli.render.metric_tables import (
    by_chart,
    labels_of,
    print_curves,
    print_lines,
    print_series,
    wanted,
    wanted_use,
    wanted_values,
)
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import complain, detachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.option_types import WholeNumber
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.api_calls.metric_streams import MetricLine, UsageLine
    from ffdl_batch.domain.job.views import AttemptChoice, JobView
    from ffdl_batch.domain.metrics.series import Curves, Series

_REDRAW_S = 1.0
_CLEAR = "\x1b[H\x1b[J"
_FILE = click.Path(allow_dash=True)
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request of the user, and what was found for it."""

    ids: tuple[str, ...]
    usage: bool
    """Whether usage is shown, not metrics."""
    attempt: AttemptChoice
    learner: int | None
    only: tuple[str, ...]
    axis: str
    follow: bool = False
    plot: bool = False
    labels: dict[str, bool] = field(default_factory=dict)
    """Whether each value that was read is a number, by its label, including values that are not shown."""
    answered: set[str] = field(default_factory=set)
    """Jobs with values that are shown."""


@click.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.option("-f", "--follow", is_flag=True, help="Follow until the jobs end. Ctrl-C does not affect them.")
@click.option("--usage", is_flag=True, help="Show usage of CPUs, memory, storage, network and GPUs, not metrics.")
@click.option("--only", metavar="PATTERN", multiple=True, help="Show only these: train/loss, '*loss', val/*.")
@click.option("--axis", metavar="NAME", default="", help="Horizontal axis: a name in etimes, or time.")
@click.option("--attempt", metavar="N|all", callback=read_attempt, help="Attempt.  [default: all]")
@click.option("--learner", type=WholeNumber(1), help="Show only this learner (from 1).")
@click.option("--least", metavar="NAME", help="Print a table of the jobs, ranked by the least value of this metric.")
@click.option("--most", metavar="NAME", help="Print a table of the jobs, ranked by the greatest value of this metric.")
@click.option("--plot", is_flag=True, help="Draw curves in the terminal.")
@click.option(
    "--png", type=_FILE, callback=check_picture, help="Draw curves into this PNG file; needs ffdl-batch[plots]."
)
@click.option(
    "--html", type=_FILE, callback=check_written, help="Draw curves into this HTML page, which needs no other file."
)
@click.option("--csv", type=_FILE, callback=check_written, help="Write all values as CSV; - is standard output.")
@click.option(
    "--parquet", type=_FILE, callback=check_written, help="Write all values as Parquet; needs ffdl-batch[parquet]."
)
@json_option("Print JSON, one record per line, in FfDL's format.")
def metrics(  # noqa: PLR0913  (one parameter per option)
    *,
    job_ids: tuple[str, ...],
    follow: bool,
    usage: bool,
    only: tuple[str, ...],
    axis: str,
    attempt: AttemptChoice,
    learner: int | None,
    least: str | None,
    most: str | None,
    plot: bool,
    png: str | None,
    html: str | None,
    csv: str | None,
    parquet: str | None,
    as_json: bool,
) -> int:
    """Show what jobs measure, by `evaluation_metrics` of their manifests: a table with the course of each value.

    The id of an array stands for all of its jobs. With --least or --most, the table has the values of their sweep.

    Curves of several jobs are drawn in one chart. With an option that writes a file, no table is printed. If there are
    no values, no file is written or replaced, and the exit code is 1.
    """
    files = [name for name in (png, html, csv, parquet) if name is not None]
    if follow and files:
        raise click.UsageError("--follow cannot write a file; leave it out, or use --json")
    if as_json and (plot or files):
        raise click.UsageError("--json prints records; leave out the options that draw or write files")
    if (least or most) and (follow or plot or files or usage or only or (least and most)):
        raise click.UsageError(
            "--least and --most print one table; leave out the other options that choose what is shown"
        )
    if usage and only and (as_json or csv or parquet):
        raise click.UsageError(
            "with --usage, --only selects curves; it does not apply to samples (--csv, --parquet, --json)"
        )
    asked = _Asked(tuple(dict.fromkeys(job_ids)), usage, attempt, learner, only, axis, follow, plot)
    with detachable(job_ids, f"ffdl metrics -f {' '.join(job_ids)}"):
        if metric := least or most:
            return _rank(replace(asked, only=(metric,)), least=bool(least), as_json=as_json)
        asked = _with_elements(asked)
        if as_json:
            _print_records(asked)
        elif follow:
            _follow(asked)
        else:
            _write_tables(asked, csv, parquet)
            if png or html or plot or not files:
                _draw(asked, png, html, with_table=not (plot or files))
        return _report_missing(asked, is_document=as_json or follow, needs_values=bool(files))


# --------------------------------------------------------------------------------------------------------------- input


def _with_elements(asked: _Asked) -> _Asked:
    """Return the request with the jobs of each array in its place. Raises UnknownJob."""
    if not any(map(is_array, asked.ids)):
        return asked
    with open_client() as client:
        ids = [
            one for job_id in asked.ids
            for one in ([job.id for job in elements_of(client, job_id)] if is_array(job_id) else [job_id])
        ]  # fmt: skip
    return replace(asked, ids=tuple(dict.fromkeys(ids)))


def _rank(asked: _Asked, *, least: bool, as_json: bool) -> int:
    """Print the jobs by the best value of the metric."""
    from ffdl_batch.cli.render.ranking import print_ranking, rank

    jobs: list[JobView] = []
    with open_client() as client:
        for job_id in asked.ids:
            jobs += elements_of(client, job_id) if is_array(job_id) else [client.get(job_id)]
    asked = replace(asked, ids=tuple(dict.fromkeys(job.id for job in jobs)))
    series = _collect(asked)
    labels = list(dict.fromkeys(one.name.label for one in series))
    if len(labels) > 1:
        raise click.UsageError(f"{asked.only[0]} matches {', '.join(labels)}; name one of them")
    if not series:
        return _report_missing(asked, is_document=False, needs_values=True)
    print_ranking(rank({job.id: job for job in jobs}.values(), series, least=least), as_json=as_json)
    return ExitCode.OK


def _lines(asked: _Asked, client: Client, job_id: str) -> Iterator[MetricLine | UsageLine]:
    return _samples(asked, client, job_id) if asked.usage else _records(asked, client, job_id)


def _records(asked: _Asked, client: Client, job_id: str) -> Iterator[MetricLine]:
    for line in client.metrics(job_id, follow=asked.follow, learner=asked.learner, attempt=asked.attempt):
        if asked.only:
            asked.labels.update(labels_of(line))
        if (found := wanted_values(line, asked.only)) is not None:
            asked.answered.add(job_id)
            yield found


def _samples(asked: _Asked, client: Client, job_id: str) -> Iterator[UsageLine]:
    for line in client.usage(job_id, follow=asked.follow, attempt=asked.attempt):
        if (found := wanted_use(line, asked.learner)) is not None:
            if not asked.only:
                asked.answered.add(job_id)
            yield found


def _all(asked: _Asked) -> Iterator[tuple[str, MetricLine | UsageLine | None]]:
    """Yield the lines of all jobs with their ids. With --follow, the jobs are read in parallel, and None is yielded
    when nothing arrives for a while."""
    if not asked.follow:
        with open_client() as client:
            for job_id in asked.ids:
                yield from ((job_id, line) for line in _lines(asked, client, job_id))
        return
    from ffdl_batch.cli.parallel_streams import ParallelStreams

    with closing(ParallelStreams({job_id: partial(_stream, asked, job_id) for job_id in asked.ids})) as streams:
        yield from streams.lines(_REDRAW_S)


def _stream(asked: _Asked, job_id: str) -> Iterator[MetricLine | UsageLine]:
    with open_client(quiet=True) as client:
        yield from _lines(asked, client, job_id)


def _add(curves: Curves, job_id: str, line: MetricLine | UsageLine) -> None:
    from ffdl_batch.client.api_calls.metric_streams import MetricLine

    if isinstance(line, MetricLine):
        curves.add_record(job_id, line.learner, line.record)
    else:
        curves.add_sample(job_id, line.node, line.sample)


def _collect(asked: _Asked) -> list[Series]:
    from ffdl_batch.domain.metrics.series import Curves

    curves = Curves(asked.axis)
    for job_id, line in _all(asked):
        if line is not None:
            _add(curves, job_id, line)
    return _chosen(asked, curves)


def _chosen(asked: _Asked, curves: Curves) -> list[Series]:
    """Return the curves to show."""
    found = wanted(curves, asked.only)
    asked.answered.clear()
    asked.answered.update(one.name.job for one in found)
    asked.labels.update((one.name.label, True) for one in curves)
    for label in [label for label, is_number in asked.labels.items() if not is_number]:
        del asked.labels[label]  # it has no curve
    return found


# -------------------------------------------------------------------------------------------------------------- output


def _print_records(asked: _Asked) -> None:
    from ffdl_batch.client.api_calls.metric_streams import MetricLine
    from ffdl_batch.domain.metrics.records import plain_record

    for job_id, line in _all(asked):
        if isinstance(line, MetricLine):
            whose = {"job": job_id, "learner": line.learner, "attempt": line.attempt}
            print_json({"metrics": {**whose, "record": plain_record(line.record)}})
        elif line is not None:
            print_json({"usage": {"job": job_id, "node": line.node, "attempt": line.attempt, "sample": line.sample}})
        if asked.follow:
            sys.stdout.flush()


def _write_tables(asked: _Asked, csv: str | None, parquet: str | None) -> None:
    from ffdl_batch.cli.render.document import write_csv
    from ffdl_batch.cli.render.metric_tables import METRIC_COLUMNS, USAGE_COLUMNS, write_parquet

    columns = USAGE_COLUMNS if asked.usage else METRIC_COLUMNS
    if csv is not None and (rows := _rows_if_any(asked)) is not None:
        with open_output(csv) as file:
            write_csv(file, columns, rows)
    if parquet is not None and (rows := _rows_if_any(asked)) is not None:
        with writing(parquet) as path:
            write_parquet(columns, rows, path)


def _rows_if_any(asked: _Asked) -> Iterator[tuple[object, ...]] | None:
    rows = _rows(asked)
    first = next(rows, None)
    return None if first is None else chain((first,), rows)


def _rows(asked: _Asked) -> Iterator[tuple[object, ...]]:
    from ffdl_batch.cli.render.metric_tables import metric_rows, usage_rows

    with open_client() as client:
        for job_id in asked.ids:
            if asked.usage:
                yield from usage_rows(job_id, _samples(asked, client, job_id))
            else:
                yield from metric_rows(job_id, _records(asked, client, job_id), asked.axis)


def _draw(asked: _Asked, png: str | None, html: str | None, *, with_table: bool) -> None:
    series = _collect(asked)
    title = " ".join(asked.ids)
    if series and html is not None:
        from ffdl_batch.cli.render.charts import html as page

        with writing(html) as path:
            Path(path).write_text(page(by_chart(series), title), encoding="utf-8")
    if series and png is not None:
        from ffdl_batch.cli.render.charts import write_png

        with writing(png) as path:
            write_png(by_chart(series), title, Path(path))
    if series and asked.axis and all(one.name.axis != asked.axis for one in series):
        found = ", ".join(dict.fromkeys(one.name.axis for one in series))
        complain(f"no value has an axis {asked.axis}; the values are shown by {found}")
    if series and asked.plot:
        print_curves(series, *_size())
    elif series and with_table:
        print_series(series, with_learner=asked.learner is not None)


def _report_missing(asked: _Asked, *, is_document: bool, needs_values: bool) -> int:
    """Report the jobs without values. Return the exit status: a failure if there are no values at all and they were
    requested by name or for a file. Nothing is reported if records are printed as they arrive."""
    missing = [job_id for job_id in asked.ids if job_id not in asked.answered]
    if not missing:
        return ExitCode.OK
    if asked.answered:
        what = "no values with that name" if asked.only else "no values"
        for job_id in missing:
            complain(
                f"{job_id} is left out: {what}"
                + ("" if asked.only or asked.usage else "; for warnings: ffdl show " + job_id)
            )
        return ExitCode.OK
    if asked.only:
        named = [repr(label) if " " in label else label for label in asked.labels]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        known = f"there are {', '.join(named[:_MOST_NAMED])}{more}" if named else "there are no values at all"
        complain(f"no values match {' or '.join(asked.only)}; {known}")
        return ExitCode.FAILED
    if not is_document:
        complain(_nothing(asked) + ("; no file was written" if needs_values else ""))
    return ExitCode.FAILED if needs_values else ExitCode.OK


def _nothing(asked: _Asked) -> str:
    if asked.usage:
        whose = "" if asked.learner is None else f" of learner {asked.learner}"
        return f"there are no samples{whose} yet"
    return (
        "no metrics were collected: evaluation_metrics in the manifest names no collector, or the collector has found "
        "no values so far; if a collector fails, ffdl show prints a warning"
    )


def _follow(asked: _Asked) -> None:
    """Redraw the table or the curves on a terminal. Otherwise print each record as it arrives."""
    from ffdl_batch.domain.metrics.series import Curves

    if not sys.stdout.isatty():
        shown = print_lines(_named(asked), asked.only)
        if asked.usage and asked.only:
            asked.answered.update(shown.jobs)
            asked.labels.update(dict.fromkeys(shown.labels, True))
        return
    curves, drawn_at, is_new = Curves(asked.axis), 0.0, True
    for job_id, line in _all(asked):
        if line is not None:
            _add(curves, job_id, line)
            is_new = True
        if is_new and time.monotonic() - drawn_at >= _REDRAW_S:
            is_new, drawn_at = False, time.monotonic()
            _redraw(_chosen(asked, curves), asked)
    _redraw(_chosen(asked, curves), asked)


def _named(asked: _Asked) -> Iterable[tuple[str, MetricLine | UsageLine]]:
    return ((job_id, line) for job_id, line in _all(asked) if line is not None)


def _redraw(series: Sequence[Series], asked: _Asked) -> None:
    echo_styled(_CLEAR, nl=False)
    if not series:
        click.echo("there are no values yet")
    elif asked.plot:
        print_curves(series, *_size())
    else:
        print_series(series, with_learner=asked.learner is not None)


def _size() -> tuple[int, int]:
    found = shutil.get_terminal_size((80, 24))
    return found.columns, found.lines
