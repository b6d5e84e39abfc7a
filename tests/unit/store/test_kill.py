"""kill -9 between any two statements: what was acknowledged is there, and every job is whole."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

import psycopg
import pytest

from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store import open_store
from tests import preloaded
from tests.unit.store.jobs import assert_consistent, finish_all

# Adds two jobs, walks each to its end, says after each call what was acknowledged, and kills itself before the
# statement (or the commit) of the given number.
VICTIM = """
    import os, signal, sys
    from sqlalchemy import event
    from ffdl_batch.store import open_store
    from tests.unit.store.jobs import finish_all, new_job

    url, kill_at = sys.argv[1], int(sys.argv[2])
    store = open_store(url)
    done = 0

    def count(*_):
        global done
        done += 1
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(store.engine, "before_cursor_execute", count)
    event.listen(store.engine, "commit", count)

    def say(job):
        print(job.id, job.state, job.attempt, flush=True)

    for job in store.add_jobs([new_job("a"), new_job("b")]):
        say(job)
    finish_all(store, say)
    print("end", done, flush=True)
    """


def run_victim(url: str, kill_at: int) -> tuple[int, list[str]]:
    """Its exit status, and what it said."""
    argv = [sys.executable, "-c", textwrap.dedent(VICTIM), url, str(kill_at)]
    root = Path(__file__).parents[3]
    ended = preloaded.run(argv, check=False, capture_output=True, text=True, cwd=root, timeout=120)
    assert ended.stderr == ""
    if url.startswith("postgresql"):
        await_end_of_connections(url.replace("postgresql+psycopg", "postgresql"))
    return ended.returncode, ended.stdout.splitlines()


def await_end_of_connections(url: str) -> None:
    """The server notices a moment later that a process was killed, and until then rows are locked: whoever claims jobs
    passes them over."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    end = time.monotonic() + 60.0
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(others).fetchone() != (0,):
            assert time.monotonic() < end, "the killed process has its connection still"
            time.sleep(0.01)


# 1-7 lie in add_jobs, then come the claim, the attempt's beginning, and the changes.
@pytest.mark.parametrize("kill_at", [4, 11, 13, 18, 24, 29])
def test_store_keeps_acknowledged_consistent_jobs_when_process_is_killed(empty_url: str, kill_at: int) -> None:
    open_store(empty_url).close()
    status, said = run_victim(empty_url, kill_at)
    assert status == -9
    acknowledged = {JobId(line.split()[0]): line.split()[1:] for line in said}
    store = open_store(empty_url)
    jobs = {job.id: job for job in store.list_jobs(uid=None)}
    assert len(jobs) in (0, 2), "jobs of one request came apart"
    order = list(JobState)
    for job_id, (state, attempt) in acknowledged.items():
        assert order.index(jobs[job_id].state) >= order.index(JobState(state))
        assert jobs[job_id].attempt >= int(attempt)
    for job_id in jobs:
        assert_consistent(store, job_id)
    finish_all(store, lambda _: None)
    for job in store.list_jobs(uid=None):
        assert (job.state, job.attempt) == (JobState.COMPLETED, 1)
        assert_consistent(store, job.id)
    store.close()


def test_kill_points_are_within_statements_of_store_process(empty_url: str) -> None:
    status, said = run_victim(empty_url, 0)
    assert status == 0
    assert int(said[-1].split()[1]) >= 29
    assert [line.split()[1] for line in said[:-1]] == 2 * ["PENDING"] + 2 * ["DEPLOYING", "QUEUED"] + 2 * ["COMPLETED"]
