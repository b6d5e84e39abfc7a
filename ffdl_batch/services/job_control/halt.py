"""The owner wants a job to write a checkpoint and to give its resources back."""

from __future__ import annotations

from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import Wish
from ffdl_batch.services.job_control.stop import request_stop
from ffdl_batch.services.platform import Caller, Platform


def halt_job(platform: Platform, caller: Caller, job_id: str) -> JobView:
    """Record the wish; a job that no scheduler has heard of is HALTED at once. Idempotent; an ended job stays as it is,
    and so does a wish to cancel."""
    return request_stop(platform, caller, job_id, Wish.HALT)
