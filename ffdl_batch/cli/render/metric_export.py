"""Metrics and usage as tables of other programs: CSV, Parquet. One row for each value of each record."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.domain.metrics.records import FLOAT, INT
from ffdl_batch.output import data_output

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.metric_streams import MetricLine, UsageLine

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
    """In the order of METRIC_COLUMNS; `time` is seconds since the epoch, `number` None for what is none."""
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
    """In the order of USAGE_COLUMNS; `learner` 0 is the whole node."""
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


def write_csv(columns: tuple[str, ...], rows: Iterable[Row], path: str) -> int:
    """With a line of names; `-` is standard output. How many rows."""
    if path == "-":
        return _write_rows(data_output(), columns, rows)
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        return _write_rows(file, columns, rows)


def _write_rows(file: Any, columns: tuple[str, ...], rows: Iterable[Row]) -> int:
    from ffdl_batch.cli.render.document import csv_cell

    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow(csv_cell(cell) for cell in row)
        count += 1
    return count


def write_parquet(columns: tuple[str, ...], rows: Iterable[Row], path: str) -> int:
    """In groups of some thousand rows; how many rows. Raises UsageError where pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise click.UsageError("--parquet needs pyarrow; install ffdl-batch[parquet], or write --csv") from None
    kinds = {**dict.fromkeys(_NUMBERS, pa.float64()), **dict.fromkeys(_COUNTS, pa.int32())}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
    with pq.ParquetWriter(path, schema) as writer:
        batch: list[Row] = []
        count = 0
        for row in rows:
            batch.append(row)
            count += 1
            if len(batch) == _BATCH:
                writer.write_table(_table(pa, schema, batch))
                batch = []
        writer.write_table(_table(pa, schema, batch))
    return count


def _table(pa: Any, schema: Any, rows: list[Row]) -> Any:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)
