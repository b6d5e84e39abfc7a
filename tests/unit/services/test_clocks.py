"""Which clock counts: several daemons write the database's time, files are judged by the file system's."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.observation import NativeId
from ffdl_batch.ports.clock import SystemClock
from ffdl_batch.services.clocks import ASK_EVERY_S, SharedClock, SteadyClock, file_time
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.evidence import STILL_ALIVE_S
from ffdl_batch.services.query import list_jobs
from ffdl_batch.services.submit import submit
from ffdl_batch.services.watch import FORGOTTEN_AFTER, Watcher
from ffdl_batch.store import StoreUnavailable
from tests.conftest import POSTGRES
from tests.fakes.clock import FakeClock
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site, write_events


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


@pytest.mark.parametrize("wrong_s", [-300.0, 0.0, 300.0])
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
    store = site.platform.store
    host = HostClock(site.clock, wrong_s)
    clock = SharedClock(store.now, host) if store.is_shared else host
    return replace(site, platform=replace(site.platform, clock=clock, owner=f"host{wrong_s:+g}"))


@pytest.mark.parametrize("site", [POSTGRES], indirect=True)
def test_daemons_with_different_clocks_write_one_consistent_history(site: Site) -> None:
    """Begun by one host, deployed by the second, watched by the first again."""
    early, late = skewed(site, -300.0), skewed(site, 300.0)
    began = site.clock.now()
    (result,) = submit(late.platform, site.caller, [late.submission("k1")])
    site.clock.tick(1)
    assert Deployer(early.platform).step() == 1
    write_events(site, site.job(result.id), [("load-model", began + 3), ("learner", began + 4)])
    site.clock.tick(4)
    watcher = Watcher(late.platform)
    watcher.step(full=False)
    watcher.close()
    history = site.platform.store.history(result.id)
    assert [(entry.state, entry.at - began) for entry in history] == [
        (JobState.PENDING, 0.0),
        (JobState.DEPLOYING, 1.0),
        (JobState.QUEUED, 1.0),
        (JobState.DOWNLOADING, 3.0),
        (JobState.PROCESSING, 4.0),
    ]
    for here in (early, late):
        listed = list_jobs(here.platform, here.caller, since=began)
        assert [job.id for job in listed] == [result.id]
        assert list_jobs(here.platform, here.caller, since=began + 1) == []


@pytest.mark.parametrize("wrong_s", [-600.0, 0.0, 600.0])
@pytest.mark.parametrize("server_wrong_s", [-1200.0, 1200.0])
def test_deployer_measures_age_of_lost_request_by_file_and_database_clocks(
    site: Site, wrong_s: float, server_wrong_s: float
) -> None:
    """The file server stamps the mark, the database the uncertainty; neither is held against the host's clock."""
    file_server = HostClock(site.clock, server_wrong_s)
    platform = replace(skewed(site, wrong_s).platform, file_time=lambda _: file_server.now())
    site.scheduler.swallow = True
    job = site.accept()
    Deployer(platform).step()
    mark = site.attempt(site.job(job.id)).submit_begun
    os.utime(mark, (file_server.now(), file_server.now()))
    site.scheduler.swallow = False
    for passed_s, submitted in ((2.0, 0), (site.scheduler.credential_life_s - 3.0, 0), (2.0, 1)):
        site.clock.tick(passed_s)
        Deployer(platform).step()
        assert len(site.scheduler.submitted) == submitted
    assert site.job(job.id).state is JobState.QUEUED


@pytest.mark.parametrize("wrong_s", [-600.0, 600.0])
def test_watcher_judges_heartbeats_by_clock_of_file_server(site: Site, wrong_s: float) -> None:
    """A scheduler that has forgotten a job is not believed while a controller of it lives."""
    file_server = HostClock(site.clock, wrong_s)
    watcher = Watcher(replace(site.platform, file_time=lambda _: file_server.now()))
    job = site.deployed()
    head = FakeHead(site.platform.root, job, site.clock.now())
    head.starts()
    head.at = file_server.now()
    head.beats()
    native = NativeId.parse(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    for _ in range(2 * FORGOTTEN_AFTER):
        watcher.step(full=True)
    assert site.job(job.id).state is JobState.PROCESSING
    site.clock.tick(STILL_ALIVE_S + 1)
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.PENDING
    watcher.close()


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
