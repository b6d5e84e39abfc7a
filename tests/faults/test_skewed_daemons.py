"""Two daemons whose hosts' clocks are ten minutes apart, nodes with a third clock, and the database's own."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.client.api import JobFilter
from ffdl_batch.domain.job_state import JobState
from tests.crash.world import Findings
from tests.faults.two_daemons import OneDaemon, Pair, SharedWorld, running_pair
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres

SKEW_S, NODE_SKEW_S = 300.0, 200.0
NEAR_S = 60.0
"""What is further from the truth than this was told by the wrong clock."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, migrated_template: str) -> Iterator[Pair]:
    with postgres.database(migrated_template) as name:
        base = tmp_path_factory.mktemp("skewed")
        world = SharedWorld(base, postgres.url(name), python=str(skewed_python(base)), life_s=60.0)
        slow, fast = ({"TEST_CLOCK_S": str(skew)} for skew in (-SKEW_S, SKEW_S))
        with running_pair(world, slow, fast) as pair:
            yield pair


def skewed_python(base: Path) -> Path:
    """The nodes' interpreter: whatever it runs, and starts, lives in the future. Files keep the right time."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    path = base / "python-of-the-nodes"
    path.write_text(
        f"#!/bin/sh\nexport LD_PRELOAD={library} FAKETIME=+{NODE_SKEW_S:g}s NO_FAKE_STAT=1 "
        f'FAKETIME_DONT_FAKE_MONOTONIC=1\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def both_live(pair: Pair) -> None:
    pair.start()


def examine(pair: Pair) -> None:
    """Nothing lost or executed twice, no time that goes back, and none that is not true."""
    jobs = pair.world.jobs()
    assert pair.world.examine([str(job.id) for job in jobs]) == Findings(), pair.world.diagnosis()
    store, now = pair.world.store(), time.time()
    for job in jobs:
        sent, acknowledged = pair.world.submitted[job.id]
        assert sent - NEAR_S < job.submitted_at < acknowledged + NEAR_S and job.submitted_at <= (job.ended_at or now)
        for entry in store.history(job.id):
            assert job.submitted_at <= entry.at <= now + 1.0, (entry, now)
    store.close()


def test_skewed_daemons_run_jobs_once_in_database_clock_order(pair: Pair) -> None:
    jobs = [daemon.surely_submit() for _ in range(3) for daemon in (pair.one, pair.two)]
    pair.finish(*jobs)
    assert [job.id for job in pair.world.jobs()] == jobs
    examine(pair)


def test_skewed_daemons_filter_list_by_database_clock(pair: Pair) -> None:
    before = pair.one.surely_submit()
    pair.world.wait(lambda: pair.world.job(before) is not None, "the row")
    moment = pair.world.job(before).submitted_at + 1e-3
    time.sleep(0.05)
    after = pair.two.surely_submit()
    for daemon in (pair.one, pair.two):
        with daemon.client() as client:
            assert [job.id for job in client.list(replace(JobFilter(), since=moment))] == [after]
    pair.finish(before, after)


def test_skewed_daemons_both_end_wait_promptly_when_job_completes(pair: Pair) -> None:
    pair.world.hold()
    job = pair.one.surely_submit()
    pair.world.wait(lambda: pair.world.job(job).state is JobState.QUEUED, "the submission")
    pair.world.release()
    for daemon in (pair.one, pair.two):
        began = time.time()
        with daemon.client() as client:
            assert client.wait(job, timeout_s=300).state == JobState.COMPLETED
        ended = pair.world.job(job).ended_at or 0.0
        assert time.time() - max(began, ended) < 25, "else it was found out when the wait of 30 s was over"


@pytest.mark.parametrize("fault", ["lose_reply", "late"])
def test_skewed_daemons_submit_once_after_lost_or_delayed_sbatch_reply(pair: Pair, fault: str) -> None:
    """By a clock that is ten minutes off it would be resubmitted at once, or in ten minutes."""
    world = pair.world
    world.spoil("sbatch", fault)
    job = pair.two.surely_submit()
    pair.finish(job)
    assert len([record for record in world.accepted() if record["name"].startswith(job)]) == 1
    examine(pair)


@pytest.mark.parametrize("fallen", ["one", "two"])
def test_skewed_daemons_complete_job_while_other_daemon_is_stopped(pair: Pair, fallen: str) -> None:
    daemon: OneDaemon = getattr(pair, fallen)
    other = pair.two if daemon is pair.one else pair.one
    daemon.send(signal.SIGSTOP)
    try:
        job = other.surely_submit()
        pair.finish(job)  # a clock that is wrong makes it five minutes
    finally:
        daemon.send(signal.SIGCONT)
    examine(pair)
