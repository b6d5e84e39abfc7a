"""When the scaler decides: lease, interval, pause and resume of a pool."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.services.elastic.pool_queries import pause_pool, resume_pool, show_pools
from ffdl_batch.services.elastic.scaler import Scaler
from tests.unit.services.conftest import MANIFEST, Site
from tests.unit.services.pool_bench import ELASTIC, POOL, Bench, first_shrinks_for_second


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


def test_scaler_without_lease_changes_nothing(bench: Bench) -> None:
    store = bench.site.platform.storage.store
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    bench.scaler._leases["default"].take()
    bench.accept("second")
    bench.deployer.step()
    stale = bench.scaler
    bench.site.clock.tick(31)  # the lease has expired, and another daemon has it
    assert store.acquire_lease("scaler default", "other", 3600) is not None
    stale._leases["default"]._renewed_at = bench.site.clock.monotonic()  # it has not noticed
    stale.step()
    assert bench.halts(first) == [False]
    bench.site.clock.tick(31)
    stale.step()
    assert bench.halts(first) == [False], "it does not hold the lease"


def test_paused_pool_admits_jobs_as_submitted_and_changes_none(bench: Bench) -> None:
    store = bench.site.platform.storage.store
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    store.elastic.pause("default", bench.site.clock.now())
    second = bench.accept("second")
    bench.turn(tick_s=61)
    assert bench.site.job(second.id).state is JobState.QUEUED
    assert (bench.learners(first, second), bench.halts(first)) == ([4, 4], [False])
    store.elastic.resume("default")
    bench.start(second)
    bench.turn(tick_s=61)
    assert any(bench.halts(first, second)), "8 learners do not fit into 4 GPUs"


def test_paused_pool_finishes_change_that_has_begun(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    bench.site.platform.storage.store.elastic.pause("default", bench.site.clock.now())
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    assert bench.site.job(first.id).state is JobState.QUEUED


def test_decision_is_due_after_interval_or_when_a_job_comes_or_ends(site: Site) -> None:
    bench = Bench(site, replace(POOL, interval_s=100.0))
    first = bench.arrive("first")
    store = site.platform.storage.store

    def decisions() -> int:
        return len(list(store.elastic.decisions("default")))

    bench.turn(tick_s=50)
    assert decisions() == 1
    bench.turn(tick_s=51)
    assert decisions() == 2
    bench.completes(site.job(first.id))
    second = bench.accept("second")
    bench.turn(tick_s=2)
    assert decisions() == 3 and site.job(second.id).state is JobState.QUEUED


def test_daemon_without_numpy_runs_jobs_as_submitted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.services.deployment.elastic_pools.missing_modules", lambda: ("scipy",))
    site.set_settings(elastic={"default": POOL})
    assert site.platform.scaler() is None
    job = site.accept("k", f"{MANIFEST}learners: 4\nbatch: {{elastic: {ELASTIC}}}\n")
    site.deploy()
    assert site.job(job.id).state is JobState.QUEUED


def test_pool_that_is_resumed_is_decided_about_at_once(bench: Bench) -> None:
    platform = bench.site.platform
    job = bench.accept("k")
    bench.deployer.step()
    pause_pool(platform.storage, platform.elastic_pools, "default")
    bench.turn()
    assert bench.site.job(job.id).state is JobState.QUEUED
    (pool,) = show_pools(platform.storage, platform.elastic_pools, bench.site.caller)
    assert (pool.paused_at, pool.next_at) == (bench.site.clock.now(), None)
    resume_pool(platform.storage, platform.elastic_pools, "default")
    bench.turn(tick_s=2)
    assert len(list(platform.storage.store.elastic.decisions("default"))) == 1


def test_daemon_imports_numpy_only_for_a_scaler() -> None:
    code = "import sys, ffdl_batch.daemon.loops, ffdl_batch.daemon.server; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def other_daemon(bench: Bench) -> Scaler:
    """The scaler of another daemon with the same database."""
    made = replace(bench.site.platform, owner="other").scaler()
    assert made is not None
    return made


def test_daemon_without_lease_or_with_paused_pool_looks_twice_in_the_time_of_a_lease(bench: Bench) -> None:
    half = bench.site.platform.leases.seconds / 2
    bench.scaler.step()
    assert other_daemon(bench).step() == (0, half)
    bench.site.platform.storage.store.elastic.pause("default", bench.site.clock.now())
    bench.site.clock.tick(3600)
    assert bench.scaler.step() == (0, half)


def test_lease_of_pool_does_not_expire_between_two_decisions(site: Site) -> None:
    bench = Bench(site, replace(POOL, interval_s=1000.0))
    pause_s = bench.scaler.step()[1]
    other = other_daemon(bench)
    for _ in range(4):
        site.clock.tick(pause_s)
        other.step()
        bench.scaler.step()
    assert not other._leases["default"].is_ours


def test_only_daemon_with_lease_deletes_sizes_of_ended_jobs_because_it_decides_then(bench: Bench) -> None:
    first = bench.arrive("first")
    bench.completes(first)
    other_daemon(bench).step()
    assert bench.size(first) is not None
    decisions = len(list(bench.site.platform.storage.store.elastic.decisions("default")))
    second = bench.accept("second")
    bench.turn(tick_s=2)
    assert bench.size(first) is None and bench.site.job(second.id).state is JobState.QUEUED
    assert len(list(bench.site.platform.storage.store.elastic.decisions("default"))) == decisions + 1
