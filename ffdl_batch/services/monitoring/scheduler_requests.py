"""What is asked of a scheduler after a verdict. Courtesies: one that does not answer is not asked again, because claims
and fences keep what it has of an attempt that is over from executing anything."""

from __future__ import annotations

import logging
from collections.abc import Collection

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.ports.capabilities import AvoidsNodes
from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerUnreachable
from ffdl_batch.services.outcome.ownership_check import may_ask_of
from ffdl_batch.services.platform import Platform

log = logging.getLogger(__name__)


def keep_off(platform: Platform, job: Job, nodes: Collection[str]) -> None:
    """Have the waiting job start on none of `nodes`, which failed it."""
    try:
        with platform.adapters.asking(job.backend) as adapter:
            if isinstance(adapter, AvoidsNodes) and may_ask_of(platform, adapter, job):
                adapter.avoid(NativeId.parse(job.native_id), nodes)
    except (InvalidRequest, SchedulerUnreachable) as error:
        log.warning("job %s cannot be kept off %s: %s", job.id, ", ".join(nodes), error)


def let_back(platform: Platform, job: Job) -> bool:
    """Have the waiting job exclude only what its owner excludes; whether that was done."""
    try:
        with platform.adapters.asking(job.backend) as adapter:
            if not isinstance(adapter, AvoidsNodes) or not may_ask_of(platform, adapter, job):
                return False
            adapter.exclude_only(NativeId.parse(job.native_id), job.spec.batch.exclude)
    except (InvalidRequest, SchedulerUnreachable) as error:
        log.warning("job %s cannot be let back on %s: %s", job.id, ", ".join(job.overrides.exclude), error)
        return False
    return True


def take_away(platform: Platform, job: Job, why: str) -> None:
    """Cancel what the scheduler has under the job's native id: an attempt that is over, or a duplicate. Another job is
    left alone."""
    try:
        with platform.adapters.asking(job.backend) as adapter:
            if may_ask_of(platform, adapter, job):
                log.warning("job %s: cancelling %s: %s", job.id, job.native_id, why)
                adapter.cancel(NativeId.parse(job.native_id))
    except (InvalidRequest, SchedulerUnreachable) as error:
        log.warning("job %s: %s could not be cancelled, cancel it by hand: %s", job.id, job.native_id, error)
