"""Calls that remove jobs."""

from __future__ import annotations

from contextlib import closing

from ffdl_batch.client.api_calls.requests import StreamCalls, read_answer, segment
from ffdl_batch.client.connection.http_client import Request
from ffdl_batch.domain.job.views import JobView

LONGEST_S = 3600.0
"""Maximum time for the removal of a job's files."""


class RemovalCalls(StreamCalls):
    """Calls that remove jobs."""

    def remove(self, job_id: str, *, dry_run: bool = False) -> JobView:
        """Remove a job that has ended, with its files, and return it with the disk space that it used. With `dry_run`,
        remove nothing.

        Raises RequestRefused for a job that has not ended, is HALTED, or has results that are not stored yet.
        """
        path = f"/api/v1/jobs/{segment(job_id)}" + ("?dry_run=true" if dry_run else "")
        with closing(self._open_wire()) as wire:
            reply = wire.ask(Request("DELETE", path, job_id=job_id, timeout_s=LONGEST_S))
            return read_answer(JobView, reply.get("job"))
