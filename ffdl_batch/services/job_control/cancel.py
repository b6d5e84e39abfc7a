"""The owner wants a job to end."""

from __future__ import annotations

from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import Wish
from ffdl_batch.services.job_control.stop import request_stop
from ffdl_batch.services.platform import Caller, Platform


def cancel_job(platform: Platform, caller: Caller, job_id: str) -> JobView:
    """Record the wish; a job that no scheduler has ends at once, also one that was halted. Idempotent; a job that has
    ended otherwise stays as it is."""
    return request_stop(platform, caller, job_id, Wish.CANCEL)
