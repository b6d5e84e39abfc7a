"""The client's calls about jobs that wait."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from ffdl_batch.client.api_calls.base import StreamCalls
from ffdl_batch.client.api_calls.job_paths import segment
from ffdl_batch.client.connection.http_client import Request, json_request
from ffdl_batch.client.errors import RequestRefused
from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem

if TYPE_CHECKING:
    from ffdl_batch.domain.job.submission import Submission
    from ffdl_batch.domain.pending.explanation import Outlook, WhyView

V = TypeVar("V")


class WaitingCalls(StreamCalls):
    """Why jobs wait, and what awaits those that are not submitted."""

    def why(self, job_id: str, *, alternatives: bool = True) -> WhyView:
        """Why a job waits, when it may start, and with `alternatives` what would start sooner; raises UnknownJob."""
        from ffdl_batch.domain.pending.explanation import WhyView

        path = f"/api/v1/jobs/{segment(job_id)}/why?alternatives={str(alternatives).lower()}"
        with closing(self._open_wire()) as wire:
            return _read(WhyView, wire.ask(Request("GET", path, job_id=job_id)).get("why"))

    def outlook(self, submission: Submission) -> Outlook:
        """What awaits a submission; nothing is sent to a scheduler but trials."""
        from ffdl_batch.domain.pending.explanation import Outlook

        with closing(self._open_wire()) as wire:
            body = {"submission": to_plain(submission)}
            return _read(Outlook, wire.ask(json_request("POST", "/api/v1/outlook", body)).get("outlook"))


def _read(kind: type[V], plain: Mapping[str, Any] | object) -> V:
    try:
        return from_plain(kind, plain)
    except CodecError as error:
        message = f"the daemon's answer cannot be read: {error}"
        raise RequestRefused(Problem("S106", message, int(ExitCode.FAILED))) from error
