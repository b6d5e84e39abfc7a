"""Ids of jobs as parts of a request's path."""

from __future__ import annotations

from urllib.parse import quote

from ffdl_batch.client.errors import UnknownJob
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem


def segment(job_id: str) -> str:
    """The id as one segment of a path, whatever the caller passed. Raises UnknownJob for the empty text, as of a
    variable that is not set: the path would be another one."""
    if not job_id:
        raise UnknownJob(Problem("C101", "the id is empty", int(ExitCode.FAILED), "ffdl list shows your jobs"))
    return quote(job_id, safe="")
