"""Jobs of which the scheduler says what it said before: passed over at each look, and none of what is due is missed."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable
from dataclasses import replace

import pytest

from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.monitoring import watcher
from ffdl_batch.services.monitoring.job_update import Judge
from ffdl_batch.services.monitoring.scheduler_calls import AGAIN_S
from ffdl_batch.services.monitoring.watch_state import Memory
from ffdl_batch.services.monitoring.watcher import ACCOUNTING_LAG_S, FORGOTTEN_AFTER, SETTLE_S
from ffdl_batch.services.outcome import native_job_identity
from tests.unit.services.conftest import Site, write_events


class Work:
    """What the watcher did for single jobs: `sorted_out`, `noted` and `judged` count them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sorted_out = self.noted = 0
        self.judged: list[JobId] = []
        sort_out, note, judge = native_job_identity.sort_out, Memory.note, Judge.judge

        def sorting(jobs: Iterable[Job], *rest: object) -> object:
            self.sorted_out += len(jobs := list(jobs))
            return sort_out(jobs, *rest)  # type: ignore[arg-type]

        def noting(memory: Memory, seen: Observation | None, now: float, *, is_own: bool) -> bool:
            self.noted += 1
            return note(memory, seen, now, is_own=is_own)

        def judging(judge_: Judge, job: Job, is_forgotten: bool, fresh: bool) -> object:
            self.judged.append(job.id)
            return judge(judge_, job, is_forgotten, fresh)

        patch.setattr(watcher, "sort_out", sorting)
        patch.setattr(Memory, "note", noting)
        patch.setattr(Judge, "judge", judging)

    def take(self) -> tuple[int, int, list[JobId]]:
        """What was done since it was asked last."""
        done = self.sorted_out, self.noted, sorted(self.judged)
        self.sorted_out, self.noted, self.judged = 0, 0, []
        return done


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def look(site: Site, times: int = 1) -> None:
    for _ in range(times):
        site.clock.tick(2)
        site.watch()


def test_watcher_skips_jobs_with_unchanged_observations(site: Site, work: Work) -> None:
    jobs = [site.deployed(str(key)) for key in range(3)]
    look(site)
    assert work.take() == (3, 3, sorted(job.id for job in jobs))
    for _ in range(5):
        # equal answers, none of which is the object of the last time
        site.scheduler.seen = {native: replace(seen) for native, seen in site.scheduler.seen.items()}
        look(site)
        assert work.take() == (0, 0, [])
    site.scheduler.run(NativeId(jobs[1].native_id))
    look(site)
    assert work.take() == (1, 1, [jobs[1].id])
    assert site.job(jobs[1].id).nodes == "n1"


def test_watcher_judges_job_at_each_step_until_its_files_are_readable(
    site: Site, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    job = site.deployed()
    look(site, 2)
    write_events(site, job, [("learner", site.clock.now())])
    with monkeypatch.context() as patched:
        patched.setattr("ffdl_batch.services.outcome.attempt_records.read_head", fail)
        look(site)
        work.take()
        look(site, 2)
        assert work.take()[2] == [job.id] * 2
    look(site)
    assert site.job(job.id).state is JobState.PROCESSING
    work.take()
    look(site)
    assert work.take() == (0, 0, [])


def test_watcher_sends_and_repeats_cancel_when_listing_is_unchanged(site: Site) -> None:
    job = site.deployed()
    look(site, 3)
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    look(site, 2)
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    site.clock.tick(AGAIN_S)
    look(site)
    assert site.scheduler.cancelled == [NativeId(job.native_id)] * 2


def test_watcher_counts_missing_listings_from_last_sighting_before_failing_job(site: Site) -> None:
    job = site.deployed()
    look(site, 5)
    native = NativeId(job.native_id)
    seen = site.scheduler.seen.pop(native)
    site.scheduler.forgotten.add(native)
    look(site, FORGOTTEN_AFTER - 1)
    site.clock.tick(ACCOUNTING_LAG_S)
    site.scheduler.seen[native] = seen
    look(site)
    del site.scheduler.seen[native]
    look(site, FORGOTTEN_AFTER)
    assert site.job(job.id).state is JobState.QUEUED
    site.clock.tick(ACCOUNTING_LAG_S)
    look(site)
    assert (site.job(job.id).state, site.job(job.id).error_code) == (JobState.FAILED, "S106")


def test_watcher_judges_next_attempt_when_its_observation_equals_the_previous_one(site: Site, work: Work) -> None:
    job = site.deployed()
    look(site, 2)
    site.scheduler.end(NativeId(job.native_id), EndCause.NODE_FAIL, site.clock.now())
    look(site)
    site.clock.tick(SETTLE_S)
    look(site)
    site.clock.tick(600)
    site.deploy()
    second = site.job(job.id)
    assert (second.state, second.attempt) == (JobState.QUEUED, 2)
    work.take()
    look(site)
    assert work.take() == (1, 1, [job.id])
    look(site)
    assert work.take() == (0, 0, [])


def test_watcher_judges_every_job_after_taking_over_lease(site: Site, work: Work) -> None:
    job = site.deployed()
    look(site, 3)
    site.watcher.close()
    work.take()
    with contextlib.closing(site.platform.watcher()) as other:
        site.clock.tick(2)
        other.step(full=True)
        assert work.take() == (1, 1, [job.id])
    look(site)
    assert work.take() == (1, 1, [job.id])
