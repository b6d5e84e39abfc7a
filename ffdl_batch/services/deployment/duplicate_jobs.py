"""Several jobs of a scheduler for one attempt, or for attempts that are over: one is the job, the others go."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.ports.capabilities import Withdraws
from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerUnreachable
from ffdl_batch.services.deployment.result_writer import Decided
from ffdl_batch.services.deployment.submission_results import queued
from ffdl_batch.services.job_files.control_cell import fence_earlier
from ffdl_batch.services.outcome.attempt_records import claim_owner
from ffdl_batch.services.outcome.ownership_check import own_among
from ffdl_batch.services.platform import Platform

log = logging.getLogger(__name__)


def adopt(platform: Platform, job: Job, found: frozenset[NativeId], asked_at: float) -> Change:
    """One of `found` is the attempt: the one that claimed it, else the oldest; the others are cancelled, where the
    scheduler lists them as the attempt. It is queued since the scheduler was asked for it."""
    attempt = platform.root.job(job.id).attempt(job.attempt)
    owner = claim_owner(attempt)
    ordered = sorted(found, key=age)
    keep = next((native for native in ordered if str(native) == owner), ordered[0])
    if len(ordered) > 1:
        with platform.adapters.asking(job.backend) as adapter:
            own = own_among(platform, adapter, job, ordered)
            if not owner:
                keep = min(own, key=age, default=keep)
            for native in sorted(own - {keep}, key=age):
                log.warning("job %s: cancelling the duplicate %s of %s", job.id, native, keep)
                if owner or not isinstance(adapter, Withdraws):
                    adapter.cancel(native)
                else:  # one that starts at this moment may claim the attempt first, and is the job then
                    adapter.withdraw(native)
    fence_earlier(platform.root, job)
    return queued(platform, job, keep, None, asked_at)


def take_back(platform: Platform, dropped: Sequence[Decided]) -> None:
    """Take submissions of ours out of the queue that another daemon's took the place of, while this one was stopped.
    Harmless where they stay: the claim turns them away. One that may be the job, or has started, is left alone."""
    told = {job.id: (job, change.columns["native_id"]) for job, change in dropped if "native_id" in change.columns}
    for current in platform.store.get_many(told):
        job, native = told[current.id]
        may_become_it = current.attempt == job.attempt and not current.native_id and not current.state.is_terminal
        if current.native_id == native or may_become_it:
            continue
        try:
            with platform.adapters.asking(job.backend) as adapter:
                late = NativeId.parse(str(native))
                if isinstance(adapter, Withdraws) and late in own_among(platform, adapter, job, [late]):
                    log.warning("job %s: %s came too late for attempt %d and is withdrawn", job.id, native, job.attempt)
                    adapter.withdraw(late)
        except (InvalidRequest, SchedulerUnreachable) as error:
            log.warning("job %s: %s could not be withdrawn: %s", job.id, native, error)


def retire_earlier(platform: Platform, job: Job) -> None:
    """Nothing of an earlier attempt may go on beside this one: fence its controllers, and take away what the
    scheduler still has of it (held after too many requeues, or requeued after all)."""
    fence_earlier(platform.root, job)
    earlier = [a for a in platform.store.attempts(job.id) if a.number == job.attempt - 1 and a.native_id]
    for attempt in earlier:
        native = NativeId.parse(attempt.native_id)
        with platform.adapters.asking(job.backend) as adapter:
            shown = adapter.observe([native]).get(native)
            is_it = shown is not None and shown.name in ("", attempt.token)
            if shown is not None and is_it and shown.phase not in (Phase.ENDED, Phase.UNKNOWN):
                log.info("job %s: cancelling %s, its attempt %d is over", job.id, native, attempt.number)
                adapter.cancel(native)


def age(native: NativeId) -> tuple[int, str]:
    """What sorts the ids of one scheduler, oldest first."""
    return (int(native.job) if native.job.isdigit() else 0, str(native))
