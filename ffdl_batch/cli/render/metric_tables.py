"""Select metrics and usage, print them as tables, curves and lines, and make rows of them for CSV and Parquet."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.render.charts import COLOURS, MARKS, draw, short
from ffdl_batch.cli.render.formatting import format_time, is_colourful, print_table
from ffdl_batch.domain.metrics.records import FLOAT, INT
from ffdl_batch.domain.metrics.series import Curves, Series, sparkline
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.metric_streams import MetricLine, UsageLine
    from ffdl_batch.domain.metrics.records import MetricRecord

_SPARK = 24
_LEAST_HEIGHT, _MOST_HEIGHT = 8, 18


def wanted(curves: Curves, only: Sequence[str]) -> list[Series]:
    """Return the curves that match a pattern, in order."""
    return [series for series in curves if _fits(series.name.label, series.name.value, only)]


def wanted_values(line: MetricLine, only: Sequence[str]) -> MetricLine | None:
    """Return the record with only the values that match a pattern; None if none does."""
    if not only:
        return line
    record = line.record
    group = _group(record)
    values = {name: one for name, one in record.values.items() if _fits(f"{group}/{name}", name, only)}
    return replace(line, record=replace(record, values=values)) if values else None


def labels_of(line: MetricLine) -> dict[str, bool]:
    """Return the labels of the record's values, and whether each is a number."""
    group = _group(line.record)
    return {f"{group}/{name}": one.type in (INT, FLOAT) for name, one in line.record.values.items()}


def wanted_use(line: UsageLine, learner: int | None) -> UsageLine | None:
    """Return the sample with only the usage of `learner` (None: all); None if it has none."""
    if learner is None:
        return line
    sample = line.sample
    learners = {number: use for number, use in sample.learners.items() if int(number) == learner}
    gpus = tuple(gpu for gpu in sample.gpus if gpu.learner_id == learner)
    if not learners and not gpus:
        return None
    of_it = replace(sample, node=None, learners=learners, gpus=gpus, received_bytes=None, sent_bytes=None)
    return replace(line, sample=of_it)


def _group(record: MetricRecord) -> str:
    return f"{record.subid}/{record.group}" if record.subid else record.group


def _fits(label: str, value: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(label, pattern) or fnmatchcase(value, pattern) for pattern in only)


def print_series(series: Sequence[Series], *, with_learner: bool = False) -> None:
    """Print a line for each curve. The columns for job and learner are left out if they have only one value, except the
    learner's with `with_learner`."""
    several_jobs = len({one.name.job for one in series}) > 1
    with_learner = with_learner or len({one.name.learner for one in series}) > 1
    columns = ["METRIC", "POINTS", "AT", "LAST", "LEAST", "MOST", "COURSE"]
    rows = []
    for one in sorted(series, key=lambda one: (one.name.label, one.name.job, one.name.learner)):
        unit = one.name.unit
        row = [
            one.name.label,
            str(one.count),
            f"{one.name.axis} {short(one.last_x)}",
            short(one.last, unit),
            short(one.least, unit) if one.points else "-",
            short(one.most, unit) if one.points else "-",
            sparkline([y for _, y in one.points], _SPARK),
        ]
        rows.append(row)
        if with_learner:
            row.insert(1, _learner(one) or "all")
        if several_jobs:
            row.insert(0, one.name.job)
    if with_learner:
        columns.insert(1, "LEARNER")
    if several_jobs:
        columns.insert(0, "ID")
    print_table(columns, rows)


def _learner(series: Series) -> str:
    return str(series.name.learner) if series.name.learner else ""


def by_chart(series: Sequence[Series]) -> dict[str, list[tuple[str, Series]]]:
    """Return the curves of one name and axis together, each with its distinguishing label."""
    several_jobs = len({one.name.job for one in series}) > 1
    several_learners = len({one.name.learner for one in series}) > 1
    charts: dict[str, list[tuple[str, Series]]] = {}
    for one in series:
        if not one.points:
            continue
        unit = f" [{one.name.unit}]" if one.name.unit else ""
        learner = f"learner {one.name.learner}" if several_learners and one.name.learner else ""
        words = [one.name.job if several_jobs else "", learner]
        label = " ".join(word for word in words if word) or one.name.label
        charts.setdefault(f"{one.name.label}{unit} by {one.name.axis}", []).append((label, one))
    return charts


def print_curves(series: Sequence[Series], width: int, height: int) -> None:
    """Print a chart for each name. All charts fit on the screen if they are readable at that height. If there are more
    curves than colours, each curve has its own mark."""
    charts = by_chart(series)
    high = min(_MOST_HEIGHT, max(_LEAST_HEIGHT, height // max(1, len(charts)) - 3))
    for title, curves in charts.items():
        marked = len(curves) > (len(COLOURS) if is_colourful() else 1)
        click.echo(title)
        for line in draw([one for _, one in curves], width, high):
            echo_styled("".join(_painted(text, curve, marked) for text, curve in line).rstrip())
        for index, (label, one) in enumerate(curves):
            mark = _painted("━━" if is_colourful() and not marked else "--", index, marked)
            course = f"{short(one.last, one.name.unit)} (least {short(one.least)}, most {short(one.most)})"
            echo_styled(f"  {mark} {printable(label, one_line=True)}: {course}")
        click.echo()


def _painted(text: str, curve: int, marked: bool) -> str:
    if curve < 0:
        return text
    shown = MARKS[curve % len(MARKS)] * len(text) if marked else text
    return click.style(shown, fg=COLOURS[curve % len(COLOURS)]) if is_colourful() else shown


@dataclass
class Shown:
    """What :func:`print_lines` found in samples."""

    jobs: set[str] = field(default_factory=set)
    """The jobs of printed samples."""
    labels: dict[str, None] = field(default_factory=dict)
    """The labels of all samples."""


def print_lines(lines: Iterable[tuple[str, MetricLine | UsageLine]], only: Sequence[str]) -> Shown:
    """Print a line for each record or sample as it arrives; of samples, the values that match a pattern."""
    from ffdl_batch.client.api_calls.metric_streams import MetricLine

    curves, shown = Curves(), Shown()
    for job_id, line in lines:
        if isinstance(line, MetricLine):
            record = line.record
            group = _group(record)
            places = " ".join(f"{name}={measure.value}" for name, measure in record.etimes.items())
            found = [(name, one.value) for name, one in record.values.items()]
            where = f"{format_time(record.time_ms / 1000)} {job_id} [{line.learner}] {group} {places}"
        else:
            before = {one.name: one.count for one in curves}
            curves.add_sample(job_id, line.node, line.sample)
            shown.labels.update(dict.fromkeys(one.name.label for one in curves))
            new = [one for one in wanted(curves, only) if one.count > before.get(one.name, 0)]
            found = [(f"{one.name.value}[{one.name.learner or 'all'}]", short(one.last, one.name.unit)) for one in new]
            where = f"{format_time(line.sample.at)} {job_id} {line.sample.host}"
            shown.jobs.update([job_id] if new else [])
        if found:
            values = " ".join(f"{name}={value}" for name, value in found)
            click.echo(printable(f"{where} {values}", one_line=True))
            sys.stdout.flush()
    return shown


METRIC_COLUMNS = (
    "job",
    "attempt",
    "learner",
    "group",
    "subid",
    "time",
    "axis",
    "at",
    "name",
    "type",
    "value",
    "number",
)
USAGE_COLUMNS = ("job", "attempt", "node", "host", "time", "learner", "device", "name", "number")
_NUMBERS = ("time", "at", "number")
_COUNTS = ("attempt", "learner", "node")
_BATCH = 10_000
Row = tuple[Any, ...]


def metric_rows(job: str, lines: Iterable[MetricLine], axis: str = "") -> Iterator[Row]:
    """Yield rows with METRIC_COLUMNS. `time` is seconds since the epoch. `number` is None if the value is no number."""
    from ffdl_batch.domain.metrics.series import AXES

    for line in lines:
        record = line.record
        name = next((one for one in ((axis,) if axis else AXES) if one in record.etimes), "")
        at = _number(record.etimes[name].value) if name else None
        whose = (job, line.attempt, line.learner, record.group, record.subid, record.time_ms / 1000, name, at)
        for value, measure in record.values.items():
            number = _number(measure.value) if measure.type in (INT, FLOAT) else None
            yield (*whose, value, measure.type, measure.value, number)


def usage_rows(job: str, lines: Iterable[UsageLine]) -> Iterator[Row]:
    """Yield rows with USAGE_COLUMNS. `learner` 0 is the whole node."""
    from ffdl_batch.domain.codec import to_plain

    for line in lines:
        sample = line.sample
        whose = (job, line.attempt, line.node, sample.host, sample.at)
        uses = [(0, "", sample.node), *((int(number), "", use) for number, use in sample.learners.items())]
        for learner, device, use in (*uses, *((gpu.learner_id, gpu.name, gpu) for gpu in sample.gpus)):
            for name, value in (to_plain(use) if use is not None else {}).items():
                if isinstance(value, (int, float)) and name != "learner_id":
                    yield (*whose, learner, device, name, float(value))
        for name in ("received_bytes", "sent_bytes"):
            value = getattr(sample, name)
            if value is not None:
                yield (*whose, 0, sample.network, f"network_{name}", float(value))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def write_parquet(columns: tuple[str, ...], rows: Iterable[Row], path: str) -> None:
    """Write the rows, in groups of 10,000. Raises UsageError if pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise click.UsageError("--parquet needs pyarrow; install ffdl-batch[parquet], or write --csv") from None
    kinds = {**dict.fromkeys(_NUMBERS, pa.float64()), **dict.fromkeys(_COUNTS, pa.int32())}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
    with pq.ParquetWriter(path, schema) as writer:
        batch: list[Row] = []
        for row in rows:
            batch.append(row)
            if len(batch) == _BATCH:
                writer.write_table(_table(pa, schema, batch))
                batch = []
        writer.write_table(_table(pa, schema, batch))


def _table(pa: Any, schema: Any, rows: list[Row]) -> Any:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)
