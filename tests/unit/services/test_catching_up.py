"""A watcher that has just begun: what happened while nobody looked is known after its first round."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.events import Outcome
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.observation import EndCause, NativeId
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.watch import LONG_AGO_S, LOOK_SOON_S, SETTLE_S, Watcher
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site, write_final


def test_watcher_catches_up_with_ended_jobs_in_first_round(site: Site, watcher: Watcher) -> None:
    jobs = [site.deployed(key) for key in ("one", "two")]
    for job in jobs:
        write_final(site, job)
        site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, site.clock.now())
    before = watcher.is_caught_up
    watcher.step(full=True)
    assert (before, watcher.is_caught_up) == (False, True)
    assert {site.job(job.id).state for job in jobs} == {JobState.COMPLETED}
    assert site.scheduler.observe_calls == 1


def test_watcher_follows_continuations_without_another_listing(site: Site, watcher: Watcher) -> None:
    """The bell of the job is taken down when its first attempt is read, and nobody rings for the later ones again."""
    job = site.deployed()
    head = FakeHead(site.platform.root, job, site.clock.now())
    head.starts()
    head.goes_on()
    native = site.scheduler.accept(f"{job.id}-2")  # type: ignore[arg-type]
    watcher.step(full=True)
    assert (site.job(job.id).state, watcher.is_caught_up) == (JobState.DEPLOYING, False)
    assert watcher.step(full=False) == 0
    Deployer(site.platform).step()
    last = FakeHead(site.platform.root, site.job(job.id), site.clock.now())
    last.starts()
    last.stores()
    last.ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(native, EndCause.SUCCESS, site.clock.now())
    take_bells_down(site)
    watcher.step(full=False)
    assert (site.job(job.id).state, watcher.is_caught_up) == (JobState.PROCESSING, False)
    site.clock.tick(LOOK_SOON_S)
    watcher.step(full=False)
    assert (site.job(job.id).state, watcher.is_caught_up) == (JobState.COMPLETED, True)
    assert site.scheduler.observe_calls == 1


def test_watcher_catches_up_when_scheduler_does_not_answer(site: Site, watcher: Watcher) -> None:
    site.deployed()
    site.scheduler.down = True
    watcher.step(full=True)
    assert watcher.is_caught_up


def test_watcher_catches_up_at_once_when_another_daemon_is_leader(site: Site, watcher: Watcher) -> None:
    watcher.step(full=True)
    other = Watcher(site.platform)
    before = other.is_caught_up
    other.step(full=True)
    assert (before, other.is_caught_up) == (False, True)


@pytest.mark.parametrize("rung", [True, False])
def test_watcher_fails_forgotten_job_by_final_record_with_or_without_doorbell(
    site: Site, watcher: Watcher, rung: bool
) -> None:
    job = site.deployed()
    head = FakeHead(site.platform.root, job, site.clock.now())
    head.starts()
    head.ends(Outcome.FAILED, error_code="C201", message="learner 1 ended with exit code 3", exit_code=3)
    native = NativeId(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    if not rung:
        take_bells_down(site)
    watcher.step(full=True)
    site.clock.tick(LOOK_SOON_S)
    watcher.step(full=False)
    assert (site.job(job.id).state, watcher.is_caught_up) == (JobState.FAILED, True)
    assert site.scheduler.observe_calls == (1 if rung else 2)


def test_watcher_keeps_forgotten_job_processing_after_record_of_external_end(site: Site, watcher: Watcher) -> None:
    """What was ended from outside may have been started anew; a listing that leaves it out proves nothing yet."""
    job = site.deployed()
    head = FakeHead(site.platform.root, job, site.clock.now())
    head.starts()
    head.ends(Outcome.CANCELLED, message="ended from outside")
    native = NativeId(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.PROCESSING


@pytest.mark.parametrize(("ago_s", "state"), [(SETTLE_S, JobState.PROCESSING), (LONG_AGO_S, JobState.PENDING)])
def test_watcher_waits_for_final_record_only_if_job_ended_recently(
    site: Site, watcher: Watcher, ago_s: float, state: JobState
) -> None:
    job = site.deployed()
    FakeHead(site.platform.root, job, site.clock.now()).starts()
    site.scheduler.end(NativeId(job.native_id), EndCause.NODE_FAIL, site.clock.now())
    site.clock.tick(ago_s)
    watcher.step(full=True)
    assert site.job(job.id).state is state


def take_bells_down(site: Site) -> None:
    """As a daemon does that is killed before it has read."""
    for bell in Path(site.platform.root.doorbell).iterdir():
        bell.unlink()
