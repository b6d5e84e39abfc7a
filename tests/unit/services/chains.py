"""One attempt of a chain: deployed, at work, ended by the scheduler."""

from __future__ import annotations

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import MANIFEST, Site


def at_work(site: Site, retry: str = "") -> tuple[Job, FakeHead]:
    """A job with these retry limits, deployed and at work on n1, and its head."""
    job = accept(site, retry) if retry else site.deployed()
    return job, running(site, job)


def running(site: Site, job: Job) -> FakeHead:
    """The job's current attempt, deployed, at work on n1."""
    head = site.head(job)
    head.starts()
    site.scheduler.run(NativeId(head.job.native_id))
    site.watch()
    assert site.job(job.id).state is JobState.PROCESSING
    return site.head(job)


def end(site: Site, job: Job, cause: EndCause) -> Job:
    """The scheduler ends the current attempt, and every file that may still come has come."""
    site.end(site.job(job.id), cause)
    site.clock.tick(SETTLE_S + 1)
    site.watch()
    return site.job(job.id)


def accept(site: Site, retry: str) -> Job:
    job = site.accept(manifest=MANIFEST + f"batch: {{retry: {{{retry}}}}}\n")
    site.deploy()
    return site.job(job.id)
