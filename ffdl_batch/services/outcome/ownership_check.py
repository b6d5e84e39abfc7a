"""Asks the scheduler what it has under an id, before anything is asked of the job that has it.

An id may be another job's by now, or have been from the start (:mod:`ffdl_batch.services.outcome.native_job_identity`).
Only a job that is provably the attempt is ended, signalled or changed; what the platform ends of its own accord the log
names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.outcome.attempt_records import claimed_at
from ffdl_batch.services.outcome.native_job_identity import Standing, standing_of
from ffdl_batch.services.platform import Platform

log = logging.getLogger(__name__)


def claimed_by_its_id(platform: Platform, job: Job, native: NativeId | None = None) -> float | None:
    """When the job's id, or `native`, claimed its current attempt; None where it did not, or nobody can read that
    now."""
    attempt = platform.root.job(job.id).attempt(job.attempt)
    try:
        return claimed_at(attempt, str(native) if native is not None else job.native_id)
    except OSError as error:
        log.warning("job %s: who claimed attempt %d cannot be read: %s", job.id, job.attempt, error)
        return None


def is_own(platform: Platform, job: Job, native: NativeId, shown: Observation) -> bool:
    """Whether what is listed under `native` is provably the job's current attempt."""
    return standing_of(shown, job.token, None, partial(claimed_by_its_id, platform, job, native)) is Standing.OWN


def own_among(platform: Platform, adapter: Scheduler, job: Job, natives: Collection[NativeId]) -> frozenset[NativeId]:
    """Those of `natives` that provably are the job's current attempt and have not ended. Raises SchedulerUnreachable.

    The log is told of the others: they are left alone.
    """
    own: set[NativeId] = set()
    for native, shown in adapter.observe(natives).items():
        if shown.phase is Phase.ENDED:
            continue
        if is_own(platform, job, native, shown):
            own.add(native)
        else:
            log.warning("job %s: %s is listed as %r and is left alone", job.id, native, shown.name)
    return frozenset(own)


def may_ask_of(platform: Platform, adapter: Scheduler, job: Job) -> bool:
    """Whether what the scheduler has under the job's id is provably its current attempt, and has not ended. Raises
    SchedulerUnreachable."""
    native = NativeId.parse(job.native_id)
    return native in own_among(platform, adapter, job, [native])
