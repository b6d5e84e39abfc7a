"""Which clock counts: several daemons write the database's time, files are judged by the file system's."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import HistoryEntry, Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.continuation import Spent
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.services.job_storage import ASK_EVERY_S, SharedClock, SteadyClock, file_time
from ffdl_batch.services.monitoring.watcher import ACCOUNTING_LAG_S, FORGOTTEN_AFTER, SETTLE_S
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S
from ffdl_batch.services.queries.jobs import list_jobs
from ffdl_batch.store import StoreUnavailable
from tests.conftest import POSTGRES
from tests.fakes.clock import FakeClock
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site, with_file_time, write_events


@dataclass
class HostClock:
    """A host's clocks: the wall clock is wrong by `wrong_s`, the monotonic one counts from the host's start."""

    true: FakeClock
    wrong_s: float = 0.0
    started_at: float = 1_600_000_000.0

    def now(self) -> float:
        return self.true.now() + self.wrong_s

    def monotonic(self) -> float:
        return self.true.now() - self.started_at


@pytest.mark.parametrize("wrong_s", [-300.0, 300.0])
def test_shared_clock_follows_database_when_host_clock_is_wrong_or_jumps(wrong_s: float) -> None:
    true = FakeClock()
    host = HostClock(true, wrong_s)
    shared = SharedClock(true.now, host)
    assert shared.now() == true.now()
    true.tick(ASK_EVERY_S / 2)
    host.wrong_s += 3600
    assert shared.now() == true.now()


def test_shared_clock_asks_rarely_and_continues_without_answer() -> None:
    true, asked = FakeClock(), []
    away = False

    def ask() -> float:
        asked.append(true.now())
        if away:
            raise StoreUnavailable("the server is shutting down")
        return true.now() + 5.0

    shared = SharedClock(ask, HostClock(true))
    for _ in range(10):
        true.tick(ASK_EVERY_S / 10)
        assert shared.now() == true.now() + 5.0
    assert len(asked) == 2
    away = True
    true.tick(ASK_EVERY_S)
    assert [shared.now(), shared.now()] == [true.now() + 5.0] * 2
    assert len(asked) == 3, "who is away is not asked each time"


def test_shared_clock_raises_error_without_first_answer() -> None:
    def refuse() -> float:
        raise StoreUnavailable("the server cannot be reached")

    with pytest.raises(StoreUnavailable):
        SharedClock(refuse, SystemClock())


def test_file_time_matches_time_of_new_file_and_leaves_no_file(tmp_path: Path) -> None:
    before = time.time() - 1.0  # the kernel stamps files by a coarser clock
    assert before <= file_time(str(tmp_path)) <= time.time()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        file_time(str(tmp_path / "gone"))


def skewed(site: Site, wrong_s: float) -> Site:
    """The same database and tree from a host whose clock is wrong; without a shared database it is its own clock."""
    store = site.platform.storage.store
    host = HostClock(site.clock, wrong_s)
    clock = SharedClock(store.now, host) if store.is_shared else host
    return replace(
        site,
        platform=replace(site.platform, storage=replace(site.platform.storage, clock=clock), owner=f"host{wrong_s:+g}"),
    )


@pytest.mark.parametrize("site", [POSTGRES], indirect=True)
def test_daemons_with_different_clocks_write_one_consistent_history(site: Site) -> None:
    """Begun by one host, deployed by the second, watched by the first again."""
    early, late = skewed(site, -300.0), skewed(site, 300.0)
    began = site.clock.now()
    job = late.accept()
    site.clock.tick(1)
    assert early.deploy() == 1
    write_events(site, site.job(job.id), [("load-model", began + 3), ("learner", began + 4)])
    site.clock.tick(4)
    with contextlib.closing(late.platform.watcher()) as watcher:
        watcher.step(full=False)
    passed = (JobState.PENDING, JobState.DEPLOYING, JobState.QUEUED, JobState.DOWNLOADING, JobState.PROCESSING)
    history = [(entry.state, entry.at - began) for entry in site.platform.storage.store.history(job.id)]
    assert history == list(zip(passed, (0.0, 1.0, 1.0, 3.0, 4.0), strict=True))
    for here in (early, late):
        assert [one.id for one in list_jobs(here.platform.storage, here.caller, since=began)] == [job.id]
        assert list_jobs(here.platform.storage, here.caller, since=began + 1) == []


@pytest.mark.parametrize("wrong_s", [-600.0, 600.0])
@pytest.mark.parametrize("server_wrong_s", [-1200.0, 1200.0])
def test_deployer_measures_age_of_lost_request_by_file_and_database_clocks(
    site: Site, wrong_s: float, server_wrong_s: float
) -> None:
    """The file server stamps the mark, the database the uncertainty; neither is held against the host's clock."""
    file_server = HostClock(site.clock, server_wrong_s)
    platform = with_file_time(skewed(site, wrong_s).platform, lambda _: file_server.now())
    site.scheduler.swallow = True
    job = site.accept()
    platform.deployer().step()
    mark = site.attempt(site.job(job.id)).submit_begun
    os.utime(mark, (file_server.now(), file_server.now()))
    site.scheduler.swallow = False
    for passed_s, submitted in ((2.0, 0), (site.scheduler.credential_life_s - 3.0, 0), (2.0, 1)):
        site.clock.tick(passed_s)
        platform.deployer().step()
        assert len(site.scheduler.submitted) == submitted
    assert site.job(job.id).state is JobState.QUEUED


@pytest.mark.parametrize("wrong_s", [-600.0, 600.0])
def test_watcher_judges_heartbeats_by_clock_of_file_server(site: Site, wrong_s: float) -> None:
    """A scheduler that has forgotten a job is not believed while a controller of it lives."""
    file_server = HostClock(site.clock, wrong_s)
    job = site.deployed()
    head = site.head(job)
    head.starts()
    head.at = file_server.now()
    head.beats()
    native = NativeId.parse(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    with contextlib.closing(with_file_time(site.platform, lambda _: file_server.now()).watcher()) as watcher:
        for _ in range(2 * FORGOTTEN_AFTER):
            watcher.step(full=True)
        assert site.job(job.id).state is JobState.PROCESSING
        site.clock.tick(STILL_ALIVE_S + 1)
        watcher.step(full=True)
    assert site.job(job.id).state is JobState.PENDING


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_steady_clock_ignores_jumps_of_host_clock(jump_s: float) -> None:
    true = FakeClock()
    host = HostClock(true)
    steady = SteadyClock(host)
    began = steady.now()
    host.wrong_s = jump_s
    true.tick(2.0)
    assert steady.now() == pytest.approx(began + 2.0)
    assert steady.monotonic() == host.monotonic()


LATER_S = 86_400.0
"""How long nobody looked."""


def head_at(site: Site, job: Job, at: float) -> FakeHead:
    """The controllers of the job's current attempt, by a clock that shows `at`."""
    return FakeHead(site.platform.storage.root, site.job(job.id), at)


def history(site: Site, job: Job) -> list[HistoryEntry]:
    """All rows; their times never go back, and none lies ahead of us."""
    rows = site.platform.storage.store.history(job.id)
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    assert rows[-1].at <= site.clock.now()
    return rows


def ended_later(site: Site, job: Job, cause: EndCause, at: float) -> None:
    """The scheduler ended it, and was asked a day later."""
    site.scheduler.end(NativeId(job.native_id), cause, at)
    site.clock.tick(LATER_S)
    site.watch()
    site.clock.tick(SETTLE_S + 1)
    site.watch()


def test_watcher_dates_continuation_by_head_controllers_after_daemon_outage(site: Site) -> None:
    job = site.deployed()
    start = site.clock.now()
    head_at(site, job, start + 10).starts()
    head_at(site, job, start + 100).goes_on()
    second = site.scheduler.accept(f"{job.id}-2")  # type: ignore[arg-type]
    site.clock.tick(LATER_S)
    site.watch()
    site.deploy()
    head_at(site, job, start + 130).starts()
    last = head_at(site, job, start + 200)
    last.stores()
    last.ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(second, EndCause.SUCCESS, start + 201)
    site.watch()
    assert (site.job(job.id).spent, len(site.scheduler.submitted)) == (Spent(timeouts=1), 2)
    first, then = site.platform.storage.store.attempts(job.id)
    assert (first.interruption, then.interruption) == ("timeout", "")
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
    site.deploy()
    assert history(site, job)[-1].at == sent
    assert site.platform.storage.store.attempts(job.id)[0].submitted_at == sent


def test_watcher_dates_preempted_attempt_by_scheduler_end_time(site: Site) -> None:
    job = site.deployed()
    start = site.clock.now()
    head_at(site, job, start + 10).starts()
    ended_later(site, job, EndCause.PREEMPTED, start + 500)
    assert (site.job(job.id).state, history(site, job)[-1].at) == (JobState.PENDING, start + 500)
    assert site.platform.storage.store.attempts(job.id)[0].ended_at == start + 500


def test_watcher_dates_end_of_forgotten_job_without_final_record_by_heartbeat(site: Site) -> None:
    job = site.deployed()
    start = site.clock.now()
    head = head_at(site, job, start + 10)
    head.starts()
    head.at = start + 70
    head.beats()
    native = NativeId(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    site.clock.tick(LATER_S)
    for _ in range(FORGOTTEN_AFTER):
        site.watch()
        site.clock.tick(ACCOUNTING_LAG_S)
    row = history(site, job)[-1]
    assert (row.state, row.at - start) == (JobState.PENDING, 70.0)
    assert site.platform.storage.store.attempts(job.id)[0].ended_at == row.at


@pytest.mark.parametrize(("said_s", "dated_s"), [(40.0, 40.0), (5.0, 20.0), (7200.0, 51.0)])
def test_watcher_dates_storing_by_learner_end_marker_within_known_bounds(
    site: Site, said_s: float, dated_s: float
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
    ended_later(site, job, EndCause.NODE_FAIL, start + 50)
    passed = [(row.state, row.at - start) for row in history(site, job)[-2:]]
    assert passed == [(JobState.PROCESSING, 10.0), (JobState.STORING, dated_s)]
    assert site.platform.storage.store.attempts(job.id)[0].ended_at == start + 50


def test_watcher_dates_continuation_no_later_than_now_when_node_clock_is_ahead(site: Site) -> None:
    job = site.deployed()
    head_at(site, job, site.clock.now() + 3600).starts()
    head_at(site, job, site.clock.now() + 3700).goes_on(Spent(timeouts=1))
    site.clock.tick(50)
    site.watch()
    assert history(site, job)[-1].at == site.clock.now()


def test_watcher_ignores_events_with_time_that_is_not_a_number(site: Site) -> None:
    """Users can write the files, and json accepts NaN."""
    job = site.deployed()
    start = site.clock.now()
    head = head_at(site, job, float("nan"))
    head.says("head", EventKind.CLAIMED, native_id=job.native_id, restart=0)
    head.says("node-0", EventKind.LEARNER_STARTED, learner_id=1)
    head_at(site, job, start).ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, start + 20)
    site.clock.tick(LATER_S)
    site.watch()
    assert site.job(job.id).state is JobState.COMPLETED
    assert all(start <= row.at <= start + 21 for row in history(site, job))
    assert site.view(job).ended_at == start
