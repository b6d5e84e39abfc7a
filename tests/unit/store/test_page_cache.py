"""A look at thousands of live jobs reads the database's file once, not a page for each job again and again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import text

from ffdl_batch.store import open_store
from tests.benchmarks.usage import io_calls
from tests.unit.store.jobs import new_job

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
