"""Metrics and usage as rows for CSV and Parquet: one for each value of each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.domain.metrics.records import FLOAT, INT

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
