"""What moves to or from a job's stores while it runs, by the word of its first node."""

from __future__ import annotations

from dataclasses import replace

from ffdl_batch.attempt.reader import find_object
from ffdl_batch.domain.job.job import parse_job_id
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import is_time
from ffdl_batch.services.platform import Platform

MOVES = frozenset({JobState.DOWNLOADING.value, JobState.PROCESSING.value, JobState.STORING.value})
"""States in which something may move."""
MOST_BYTES = 10_000


def with_moving(platform: Platform, job: JobView) -> JobView:
    """`job` with what moves. Raises OSError."""
    attempt = platform.root.job(parse_job_id(job.id)).attempt(job.attempt)
    try:
        cell = find_object(attempt.moving, MOST_BYTES, below=attempt.path)
        what, said, at = cell["what"], cell["said"], cell["at"]
    except KeyError:
        return job
    if not is_time(at):
        return job
    return replace(job, moving=f"{what}: {said}" if said else str(what), moving_at=float(at))
