"""What is written of a job while a step with it goes on: why it waits, since when its submission is uncertain."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.store import Store


def note(store: Store, jobs: Collection[Job], change: Change, token: str) -> set[JobId]:
    """Write of leased `jobs` while their step goes on, whatever was told on them or wished of them meanwhile. Returns
    those of which it was news; a job whose lease is another's by now is left as it is."""
    ids, tried, news = {job.id for job in jobs}, dict[JobId, int](), set[JobId]()
    while current := [job for job in store.get_many(ids) if _is_untold(job, change, tried)]:
        written = {job.id for job in store.apply_many([(job, change) for job in current], lease_token=token)}
        tried = {job.id: job.revision for job in current}
        news |= written
        ids = tried.keys() - written
    return news


def _is_untold(job: Job, change: Change, tried: Mapping[JobId, int]) -> bool:
    """Whether `change` is news of the job. Where it was refused at the same revision, the lease is another's."""
    is_news = any(getattr(job, name) != said for name, said in change.columns.items())
    return is_news and tried.get(job.id) != job.revision
