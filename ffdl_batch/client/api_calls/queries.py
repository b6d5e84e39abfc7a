"""Calls for metrics, usage and pending reasons. The readers of streams are imported when a stream is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from ffdl_batch.client.api_calls.requests import StreamCalls, read_answer, segment
from ffdl_batch.client.connection.http_client import Request, json_request
from ffdl_batch.domain.codec import to_plain

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.metric_streams import MetricLine, UsageLine
    from ffdl_batch.client.api_calls.reports import Reports
    from ffdl_batch.domain.job.submission import Submission
    from ffdl_batch.domain.job.views import AttemptChoice
    from ffdl_batch.domain.metrics.advice import Advice
    from ffdl_batch.domain.pending.explanation import Outlook, WhyView

LONG_S = 120.0
"""Advice reads what many attempts measured."""


class MeasuredCalls(StreamCalls):
    """Calls for metrics and usage of learners, and metrics of the daemon."""

    def metrics(
        self, job_id: str, *, follow: bool = False, learner: int | None = None, attempt: AttemptChoice = None
    ) -> Iterator[MetricLine]:
        """Yield the learners' metrics, of all attempts by default; with `follow` until the job has ended."""
        from ffdl_batch.client.api_calls.metric_streams import MeasuredQuery, iterate_metrics

        with closing(self._open_wire()) as wire:
            query = MeasuredQuery("metrics", segment(job_id), follow, learner, attempt)
            yield from iterate_metrics(wire, query)

    def usage(self, job_id: str, *, follow: bool = False, attempt: AttemptChoice = None) -> Iterator[UsageLine]:
        """Yield the samples of usage of each node; with `follow` until the job has ended."""
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
        """Return the daemon's metrics in Prometheus' text format."""
        with closing(self._open_wire()) as wire:
            return "".join(f"{line.decode('utf-8')}\n" for line in wire.stream(Request("GET", "/metrics")))


class WaitingCalls(StreamCalls):
    """Calls for pending reasons of jobs, and for the outlook of submissions and advice on them."""

    def why(self, job_id: str, *, alternatives: bool = True) -> WhyView:
        """Return why a job is pending, when it may start, and with `alternatives` what would start sooner. Raises
        UnknownJob."""
        from ffdl_batch.domain.pending.explanation import WhyView

        path = f"/api/v1/jobs/{segment(job_id)}/why?alternatives={str(alternatives).lower()}"
        with closing(self._open_wire()) as wire:
            return read_answer(WhyView, wire.ask(Request("GET", path, job_id=job_id)).get("why"))

    def outlook(self, submission: Submission) -> Outlook:
        """Return when a submission may start. Only trials are sent to a scheduler."""
        from ffdl_batch.domain.pending.explanation import Outlook

        with closing(self._open_wire()) as wire:
            body = {"submission": to_plain(submission)}
            return read_answer(Outlook, wire.ask(json_request("POST", "/api/v1/outlook", body)).get("outlook"))

    def advise(self, submission: Submission) -> Advice:
        """Return advice on the resources of a submission, from the caller's earlier jobs like it."""
        from ffdl_batch.domain.metrics.advice import Advice

        with closing(self._open_wire()) as wire:
            body = {"submission": to_plain(submission)}
            request = replace(json_request("POST", "/api/v1/advice", body), timeout_s=LONG_S)
            return read_answer(Advice, wire.ask(request).get("advice"))
