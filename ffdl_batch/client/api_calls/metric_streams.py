"""Metrics and usage as iterators that survive a restart of the daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

from ffdl_batch.client.api_calls.requests import pause_after_break, read_line, segment
from ffdl_batch.client.connection.http_client import STREAM_SILENCE_S, Request, Wire
from ffdl_batch.domain.codec import CodecError
from ffdl_batch.domain.job.views import AttemptChoice
from ffdl_batch.domain.metrics.records import MetricRecord, RecordError, read_record
from ffdl_batch.domain.metrics.usage import UsageSample, read_sample
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MetricLine:
    """One record of one learner in one attempt."""

    learner: int
    attempt: int
    record: MetricRecord


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One sample of one node (from 0) in one attempt."""

    node: int
    attempt: int
    sample: UsageSample


@dataclass(frozen=True, slots=True)
class MeasuredQuery:
    """Which lines; `what` is metrics or usage. `attempt` None = all."""

    what: str
    job_id: str
    follow: bool = False
    learner: int | None = None
    attempt: AttemptChoice = None

    def path(self) -> str:
        """Return the request's path."""
        asked: dict[str, str] = {"follow": "true"} if self.follow else {}
        if self.learner is not None:
            asked["learner"] = str(self.learner)
        if self.attempt is not None:
            asked["attempt"] = str(self.attempt)
        return f"/api/v1/jobs/{segment(self.job_id)}/{self.what}" + (f"?{urlencode(asked)}" if asked else "")


def iterate_metrics(
    wire: Wire, query: MeasuredQuery, sleep: Callable[[float], None] = time.sleep
) -> Iterator[MetricLine]:
    """Yield the records, those of a learner in order, each once. Raises ClientError."""
    for body in _iterate(wire, query, "learner", sleep):
        try:
            yield MetricLine(int(body["learner"]), int(body["attempt"]), read_record(body["record"]))
        except (RecordError, KeyError, TypeError, ValueError):  # of a newer release, or a user's hand in the file
            continue


def iterate_usage(wire: Wire, query: MeasuredQuery, sleep: Callable[[float], None] = time.sleep) -> Iterator[UsageLine]:
    """Yield the samples, those of a node in order, each once. Raises ClientError."""
    for body in _iterate(wire, query, "node", sleep):
        try:
            yield UsageLine(int(body["node"]), int(body["attempt"]), read_sample(body["sample"]))
        except (CodecError, KeyError, TypeError, ValueError):
            continue


def _iterate(wire: Wire, query: MeasuredQuery, whose: str, sleep: Callable[[float], None]) -> Iterator[dict[str, Any]]:
    """Yield new lines. A stream that breaks off is requested again, and as many lines of each file are skipped as were
    seen."""
    seen: dict[tuple[object, object], int] = {}
    failures = 0
    while True:
        again: dict[tuple[object, object], int] = {}
        request = Request("GET", query.path(), job_id=query.job_id, timeout_s=STREAM_SILENCE_S)
        try:
            for raw in wire.stream(request):
                body = read_line(raw)
                file = (body.get("attempt"), body.get(whose))
                again[file] = again.get(file, 0) + 1
                if again[file] > seen.get(file, 0):
                    seen[file] = again[file]
                    failures = 0
                    yield body
        except ConnectionError as error:
            failures += 1
            pause_after_break(failures, error, f"the stream of {query.what} of {query.job_id}", sleep)
            continue
        return
