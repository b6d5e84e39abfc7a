"""When things happened: the word of those who saw it, whenever the daemon came to read it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ffdl_batch.domain.continuation import Spent
from ffdl_batch.domain.events import EventKind, Outcome
from ffdl_batch.domain.job import HistoryEntry, Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.query import get_job
from ffdl_batch.services.watch import ACCOUNTING_LAG_S, FORGOTTEN_AFTER, SETTLE_S, Watcher
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site

LATER_S = 86_400.0
"""How long nobody looked."""


def head_at(site: Site, job: Job, at: float) -> FakeHead:
    """The controllers of the job's current attempt, by a clock that shows `at`."""
    return FakeHead(site.platform.root, site.job(job.id), at)


def history(site: Site, job: Job) -> list[HistoryEntry]:
    """All rows; their times never go back, and none lies ahead of us."""
    rows = site.platform.store.history(job.id)
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    assert rows[-1].at <= site.clock.now()
    return rows


def test_watcher_dates_continuation_by_head_controllers_after_daemon_outage(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    start = site.clock.now()
    head_at(site, job, start + 10).starts()
    head_at(site, job, start + 100).goes_on()
    second = site.scheduler.accept(f"{job.id}-2")  # type: ignore[arg-type]
    site.clock.tick(LATER_S)
    watcher.step(full=True)
    Deployer(site.platform).step()
    head_at(site, job, start + 130).starts()
    last = head_at(site, job, start + 200)
    last.stores()
    last.ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(second, EndCause.SUCCESS, start + 201)
    watcher.step(full=True)
    first, then = site.platform.store.attempts(job.id)
    assert (first.ended_at, then.created_at, then.submitted_at) == (start + 100, start + 100, start + 100)
    assert (then.ended_at, site.job(job.id).ended_at) == (start + 200, start + 200)
    assert [(row.state, row.attempt, row.at - start) for row in history(site, job)[3:]] == [
        (JobState.PROCESSING, 1, 10.0),
        (JobState.DEPLOYING, 2, 100.0),
        (JobState.QUEUED, 2, 100.0),
        (JobState.PROCESSING, 2, 130.0),
        (JobState.COMPLETED, 2, 200.0),
    ]


def test_deployer_dates_submission_by_submit_marker_when_reply_is_lost(site: Site) -> None:
    site.scheduler.lose_reply = True
    job = site.deployed()
    sent = site.clock.now() + 1
    os.utime(site.attempt(job).submit_begun, (sent, sent))
    site.scheduler.lose_reply = False
    site.clock.tick(LATER_S)
    Deployer(site.platform).step()
    assert history(site, job)[-1].at == sent
    assert site.platform.store.attempts(job.id)[0].submitted_at == sent


def test_watcher_dates_preempted_attempt_by_scheduler_end_time(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    start = site.clock.now()
    head_at(site, job, start + 10).starts()
    site.scheduler.end(NativeId(job.native_id), EndCause.PREEMPTED, start + 500)
    site.clock.tick(LATER_S)
    watcher.step(full=True)
    site.clock.tick(SETTLE_S + 1)
    watcher.step(full=True)
    assert (site.job(job.id).state, history(site, job)[-1].at) == (JobState.PENDING, start + 500)
    assert site.platform.store.attempts(job.id)[0].ended_at == start + 500


@pytest.mark.parametrize("has_final", [True, False])
def test_watcher_dates_end_of_forgotten_job_by_final_record_or_heartbeat(
    site: Site, watcher: Watcher, has_final: bool
) -> None:
    """It is the head's, else the last sign of life that its controllers left."""
    job = site.deployed()
    start = site.clock.now()
    head = head_at(site, job, start + 10)
    head.starts()
    head.at = start + 70
    head.beats()
    if has_final:
        head.at = start + 60
        head.ends(Outcome.FAILED, error_code="C201", message="learner 1 ended with exit code 3", exit_code=3)
    native = NativeId(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    site.clock.tick(LATER_S)
    for _ in range(FORGOTTEN_AFTER):
        watcher.step(full=True)
        site.clock.tick(ACCOUNTING_LAG_S)
    row = history(site, job)[-1]
    assert row.state is (JobState.FAILED if has_final else JobState.PENDING)
    assert row.at - start == (60.0 if has_final else 70.0)
    assert site.platform.store.attempts(job.id)[0].ended_at == row.at


@pytest.mark.parametrize(("said_s", "dated_s"), [(40.0, 40.0), (5.0, 20.0), (7200.0, 51.0)])
def test_watcher_dates_storing_by_learner_end_marker_within_known_bounds(
    site: Site, watcher: Watcher, said_s: float, dated_s: float
) -> None:
    """Not before its controllers were heard of last, and not after the scheduler's end, whatever the file's clock."""
    job = site.deployed()
    start = site.clock.now()
    head = head_at(site, job, start + 10)
    head.starts()
    head.at = start + 20
    head.beats()
    word = Path(site.attempt(job).state, ".ended-1")
    word.write_text("0\n")
    os.utime(word, (start + said_s, start + said_s))
    site.scheduler.end(NativeId(job.native_id), EndCause.NODE_FAIL, start + 50)
    site.clock.tick(LATER_S)
    watcher.step(full=True)
    site.clock.tick(SETTLE_S + 1)
    watcher.step(full=True)
    assert [(row.state, row.at - start) for row in history(site, job)[-2:]] == [
        (JobState.PROCESSING, 10.0),
        (JobState.STORING, dated_s),
    ]
    assert site.platform.store.attempts(job.id)[0].ended_at == start + 50


def test_watcher_dates_requeued_job_by_its_second_submission(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    start, native = site.clock.now(), NativeId(job.native_id)
    head_at(site, job, start + 10).starts()
    site.scheduler.run(native)
    site.clock.tick(11)
    watcher.step(full=True)
    head_at(site, job, start + 400).starts(restart=1)
    site.scheduler.seen[native] = Observation(
        Phase.RUNNING, "RUNNING", nodes="n2", restarts=1, submitted_at=start + 300, started_at=start + 390
    )
    site.clock.tick(LATER_S)
    watcher.step(full=True)
    assert [(row.state, row.at - start) for row in history(site, job)[-3:]] == [
        (JobState.PROCESSING, 10.0),
        (JobState.QUEUED, 300.0),
        (JobState.PROCESSING, 400.0),
    ]


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_watcher_limits_times_of_skewed_node_clock_to_observed_bounds(
    site: Site, watcher: Watcher, skew_s: float
) -> None:
    job = site.deployed()
    start, native = site.clock.now(), NativeId(job.native_id)
    head_at(site, job, start + 10 + skew_s).starts()
    site.clock.tick(11)
    watcher.step(full=False)
    last = head_at(site, job, start + 100 + skew_s)
    last.stores()
    last.ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(native, EndCause.SUCCESS, start + 101)
    site.clock.tick(LATER_S)
    watcher.step(full=True)
    rows = history(site, job)
    assert rows[-1].state is JobState.COMPLETED
    assert all(start <= row.at <= start + 102 for row in rows)


def test_watcher_dates_continuation_no_later_than_now_when_node_clock_is_ahead(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head_at(site, job, site.clock.now() + 3600).starts()
    head_at(site, job, site.clock.now() + 3700).goes_on(Spent(timeouts=1))
    site.clock.tick(50)
    watcher.step(full=True)
    assert history(site, job)[-1].at == site.clock.now()


def test_watcher_ignores_nan_and_infinite_times_in_job_files(site: Site, watcher: Watcher) -> None:
    """Files are the user's: json reads NaN and Infinity."""
    job = site.deployed()
    start = site.clock.now()
    head = head_at(site, job, float("nan"))
    head.says("head", EventKind.CLAIMED, native_id=job.native_id, restart=0)
    head.says("node-0", EventKind.LEARNER_STARTED, learner_id=1)
    final = Path(site.attempt(job).final)
    head_at(site, job, start).ends(Outcome.COMPLETED, exit_code=0)
    final.write_text(json.dumps(json.loads(final.read_text()) | {"at": float("inf")}))
    site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, start + 20)
    site.clock.tick(LATER_S)
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.COMPLETED
    assert all(start <= row.at <= start + 21 for row in history(site, job))
    assert get_job(site.platform, site.caller, job.id).ended_at == start + 21
