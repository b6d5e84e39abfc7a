"""Removes jobs that have ended: by request of their owner, or after the time that the site or the user has set.

A row with `removed_at` is written first. From then on, the job is unknown to all requests, and only its directory is
left to remove. If the daemon is killed before that is done, the janitor does it. The row stays, because reports about
the use of the site count it.
"""

from __future__ import annotations

import logging

from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_files.removal import remove_files
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.disk_use import with_disk_use
from ffdl_batch.services.queries.jobs import detailed, own_job_or_removed
from ffdl_batch.services.refusals import try_again, wrong_state

log = logging.getLogger(__name__)

REMOVABLE = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
"""Without HALTED: a halted job continues later."""
ATTEMPTS = 5
PAGE = 500
DAY_S = 86400.0


def remove_job(
    storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str, *, is_trial: bool = False
) -> JobView:
    """Remove a job with its directory, and return it with the disk space that it used. With `is_trial`, remove nothing.

    Idempotent. Raises :class:`Refused` for a job that has not ended, is HALTED, or has a pending upload.
    """
    for _ in range(ATTEMPTS):
        job = own_job_or_removed(storage.store, caller, job_id)
        if job.removed_at is None:
            _refuse_unless_removable(storage, job)
        (view,) = with_disk_use(storage.root, [detailed(storage, adapters, job)])
        if is_trial:
            return view
        if job.removed_at is None and not mark_removed(storage, job):
            continue
        try:
            remove_files(storage, job)
        except OSError as error:
            cure = "the daemon tries again every hour"
            raise try_again("S210", f"{job.id} is removed, but not all of its files: {error}", cure) from error
        return view
    raise try_again("S210", f"{job_id} changes too fast to be removed", cure="try again")


def remove_expired(storage: JobStorage, days: int) -> int:
    """Remove all jobs that ended more than `days` days ago (0 = none), except those that :func:`remove_job` refuses.
    Return how many. Raises StoreError and OSError."""
    if days <= 0:
        return 0
    count, after = 0, None
    before = storage.clock.now() - days * DAY_S
    while jobs := storage.store.list_jobs(uid=None, states=REMOVABLE, ended_before=before, limit=PAGE, after=after):
        after = jobs[-1].id
        for job in jobs:
            if _pending_upload(storage, job) is None and mark_removed(storage, job):
                log.info("job %s ended more than %d days ago and is removed (retention.days)", job.id, days)
                count += 1
                _remove_files(storage, job)
    return count


def mark_removed(storage: JobStorage, job: Job) -> bool:
    """Record that the job is removed; return False if its row changed meanwhile."""
    return storage.store.apply(job, Change(columns={"removed_at": storage.clock.now()})) is not None


def _remove_files(storage: JobStorage, job: Job) -> None:
    try:
        remove_files(storage, job)
    except OSError as error:  # it must not keep the other jobs' files
        log.warning("files of job %s cannot be removed; it is tried again in an hour: %s", job.id, error)


def _refuse_unless_removable(storage: JobStorage, job: Job) -> None:
    if job.state not in REMOVABLE:
        what = "and can be resumed" if job.state is JobState.HALTED else "and has not ended"
        raise wrong_state(f"{job.id} is {job.state} {what}, so it is not removed", f"ffdl cancel {job.id} first")
    number = _pending_upload(storage, job)
    if number is not None:
        what = f"results or logs of attempt {number} of {job.id} are not stored yet, so the job is not removed"
        raise wrong_state(what, f"ffdl show {job.id} prints what the upload waits for")


def _pending_upload(storage: JobStorage, job: Job) -> int | None:
    """Return the number of an attempt with a pending upload; None if there is none."""
    return next((one.number for one in storage.store.attempts(job.id) if one.upload_pending), None)
