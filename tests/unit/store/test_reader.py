"""Jobs that were read before are not read again, and are never older than their row."""

from __future__ import annotations

from sqlalchemy import event

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store import Store
from ffdl_batch.store.transitions import LockedJob, decide
from tests.unit.store.jobs import SUBMITTED_AT, add_job, applied, deploying, steps


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
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        assert store.live_deployed("local") == [queued]
    finally:
        event.remove(store.engine, "before_cursor_execute", note)
    (statement,) = [text for text in statements if text.lstrip().upper().startswith("SELECT")]
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
