"""The client's calls about what was measured. What reads the streams is imported when one is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from ffdl_batch.client.api_calls.base import StreamCalls
from ffdl_batch.client.api_calls.job_paths import segment
from ffdl_batch.client.connection.http_client import Request

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.metric_streams import MetricLine, UsageLine
    from ffdl_batch.client.api_calls.reports import Reports
    from ffdl_batch.domain.job.views import AttemptChoice


class MeasuredCalls(StreamCalls):
    """About what learners say of themselves, and what they and the daemon use."""

    def metrics(
        self, job_id: str, *, follow: bool = False, learner: int | None = None, attempt: AttemptChoice = None
    ) -> Iterator[MetricLine]:
        """What the learners said of themselves, all attempts' by default; with `follow` until the job has ended."""
        from ffdl_batch.client.api_calls.metric_streams import MeasuredQuery, iterate_metrics

        with closing(self._open_wire()) as wire:
            query = MeasuredQuery("metrics", segment(job_id), follow, learner, attempt)
            yield from iterate_metrics(wire, query)

    def usage(self, job_id: str, *, follow: bool = False, attempt: AttemptChoice = None) -> Iterator[UsageLine]:
        """What the learners used, sample by sample of each node; with `follow` until the job has ended."""
        from ffdl_batch.client.api_calls.metric_streams import MeasuredQuery, iterate_usage

        with closing(self._open_wire()) as wire:
            query = MeasuredQuery("usage", segment(job_id), follow, None, attempt)
            yield from iterate_usage(wire, query)

    @property
    def reports(self) -> Reports:
        """Calls for reports about many jobs."""
        from ffdl_batch.client.api_calls.reports import Reports

        return Reports(self._open_wire)

    def figures(self) -> str:
        """The daemon's figures in Prometheus' text format."""
        with closing(self._open_wire()) as wire:
            return "".join(f"{line.decode('utf-8')}\n" for line in wire.stream(Request("GET", "/metrics")))
