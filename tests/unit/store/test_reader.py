"""Jobs that were read before are not read again, and are never older than their row."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import text

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store import Store, open_store
from ffdl_batch.store.transitions import LockedJob, decide
from tests.benchmarks.usage import io_calls
from tests.unit.store.jobs import SUBMITTED_AT, add_job, applied, deploying, new_job, statements, steps


def test_live_deployed_returns_changed_job_after_earlier_read(store: Store) -> None:
    job, token = deploying(store)
    queued = applied(store, job, steps(JobState.QUEUED, native_id="7"), lease_token=token)
    assert store.live_deployed("local") == [queued]
    running = applied(store, queued, steps(JobState.PROCESSING, nodes="n1"))
    assert store.live_deployed("local") == [running]
    applied(store, running, steps(JobState.FAILED))
    assert store.live_deployed("local") == []


def test_live_deployed_selects_no_spec_of_unchanged_job(store: Store) -> None:
    job, token = deploying(store)
    queued = applied(store, job, steps(JobState.QUEUED, native_id="7"), lease_token=token)
    store.live_deployed("local")
    with statements(store) as sent:
        assert store.live_deployed("local") == [queued]
    (statement,) = [text for text in sent if text.lstrip().upper().startswith("SELECT")]
    assert "spec" not in statement


def test_store_clears_deployment_lease_when_job_is_queued(store: Store) -> None:
    job, token = deploying(store)
    applied(store, job, steps(JobState.QUEUED, native_id="7"), lease_token=token)
    assert not store.renew(job.id, token, 60)
    step = decide(LockedJob(job, token, 2, 0.0), steps(JobState.FAILED), 1.0)
    assert step.beside["lease_token"] == ""


def test_begin_attempt_extends_lease_if_given_longer_time(store: Store) -> None:
    job = add_job(store)
    (leased,) = store.claim_deployable("deployer", limit=1, lease_s=0.0)
    assert store.begin_attempt(job, leased.lease_token, SUBMITTED_AT + 1, 600.0) is not None
    assert store.claim_deployable("other", limit=1, lease_s=1.0) == []


JOBS, PAGES = 1500, 1500
"""Live jobs, and more pages than SQLite keeps by itself (2 MB)."""


@pytest.mark.parametrize("network_fs", [False, True])
def test_store_second_listing_of_live_jobs_reads_no_database_pages(tmp_path: Path, network_fs: bool) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", network_fs=network_fs)
    store.add_jobs([new_job(f"key-{n}", name="n" * 2000) for n in range(JOBS)])
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET state = 'QUEUED', native_id = id"))
        assert connection.exec_driver_sql("PRAGMA page_count").scalar_one() > PAGES
    assert len(store.live_deployed("local")) == JOBS
    before = io_calls(os.getpid())
    assert len(store.live_deployed("local")) == JOBS
    assert io_calls(os.getpid()) - before < 50
    store.close()
