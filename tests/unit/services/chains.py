"""One attempt of a chain: deployed, at work, ended by the scheduler."""

from __future__ import annotations

from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.observation import EndCause, NativeId
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.watch import SETTLE_S, Watcher
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import MANIFEST, Site


def head_of(site: Site, job: Job) -> FakeHead:
    return FakeHead(site.platform.root, site.job(job.id), site.clock.now())


def running(site: Site, watcher: Watcher, job: Job) -> FakeHead:
    """The job's current attempt, deployed, at work on n1."""
    head = head_of(site, job)
    head.starts()
    site.scheduler.run(NativeId(head.job.native_id))
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.PROCESSING
    return head_of(site, job)


def end(site: Site, watcher: Watcher, job: Job, cause: EndCause) -> None:
    """The scheduler ends it, and every file that may still come has come."""
    site.scheduler.end(NativeId(site.job(job.id).native_id), cause, site.clock.now())
    watcher.step(full=True)
    site.clock.tick(SETTLE_S + 1)
    watcher.step(full=True)


def accept(site: Site, retry: str) -> Job:
    job = site.accept(manifest=MANIFEST + f"batch: {{retry: {{{retry}}}}}\n")
    Deployer(site.platform).step()
    return site.job(job.id)
