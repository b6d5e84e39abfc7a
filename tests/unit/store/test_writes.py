"""Many jobs in one transaction: what is written for each is what would be written for it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from ffdl_batch.domain.job import Change
from ffdl_batch.domain.job_state import IllegalTransition, JobState, Wish
from ffdl_batch.store import Store, StoreError
from ffdl_batch.store.database import Database
from ffdl_batch.store.schema import JOBS
from ffdl_batch.store.writes import Step, Writes
from tests.unit.store.jobs import SUBMITTED_AT, add_job, assert_consistent, deploying, steps

S = JobState


def test_begin_attempts_starts_several_attempts_in_one_call(store: Store) -> None:
    jobs = [add_job(store, key) for key in "abc"]
    leased = store.claim_deployable("deployer", limit=3, lease_s=60)
    (token,) = {one.lease_token for one in leased}
    begun = store.begin_attempts(jobs, token, SUBMITTED_AT + 1, 120.0)
    assert [(job.state, job.attempt, job.token) for job in begun.values()] == [
        (S.DEPLOYING, 1, f"{job.id}-1") for job in jobs
    ]
    assert store.get_many(list(begun)) == list(begun.values())
    for job in jobs:
        assert_consistent(store, job.id)


def test_begin_attempts_skips_changed_or_unleased_jobs(store: Store) -> None:
    changed, unleased, kept = (add_job(store, key) for key in "abc")
    (first, *_) = store.claim_deployable("deployer", limit=3, lease_s=60)
    store.set_wish(changed.id, Wish.HALT)
    store.release(unleased.id, first.lease_token)
    begun = store.begin_attempts([changed, unleased, kept], first.lease_token, SUBMITTED_AT + 1)
    assert list(begun) == [kept.id]
    assert [store.attempts(job.id) for job in (changed, unleased)] == [[], []]
    for job in (changed, unleased, kept):
        assert_consistent(store, job.id)


def test_begin_attempts_starts_none_if_one_job_is_not_pending(store: Store) -> None:
    deployed, token = deploying(store, "a")
    pending = add_job(store, "b")
    with store.engine.begin() as connection:
        connection.execute(update(JOBS).values(lease_token=token))
    with pytest.raises(IllegalTransition):
        store.begin_attempts([pending, deployed], token, SUBMITTED_AT + 2)
    assert store.get_many([deployed.id, pending.id]) == [deployed, pending]
    assert store.attempts(pending.id) == []


def test_begin_attempts_returns_nothing_without_jobs(store: Store) -> None:
    assert store.begin_attempts([], "token", 1.0) == {}


def test_apply_many_writes_different_columns_in_one_call(store: Store) -> None:
    one, two, three = (add_job(store, key) for key in "abc")
    changes = [steps(S.QUEUED, native_id="1"), steps(S.FAILED), steps(S.QUEUED, native_id="3")]
    updated = store.apply_many(list(zip((one, two, three), changes, strict=True)))
    assert [(job.state, job.native_id) for job in updated] == [(S.QUEUED, "1"), (S.FAILED, ""), (S.QUEUED, "3")]
    assert store.get_many([one.id, two.id, three.id]) == updated
    assert [len(store.history(job.id)) for job in updated] == [2, 2, 2]


def test_apply_many_applies_two_changes_of_one_job_in_order(store: Store) -> None:
    job = add_job(store)
    then = replace(job, revision=job.revision + 1)
    updated = store.apply_many([(job, steps(S.QUEUED)), (then, Change(columns={"nodes": "n1"}))])
    assert [(after.state, after.nodes, after.revision) for after in updated] == [(S.QUEUED, "", 2), (S.QUEUED, "n1", 3)]
    assert store.get(job.id) == updated[-1]


def test_writes_flush_raises_and_writes_nothing_for_row_changed_under_lock(store: Store) -> None:
    job, other = add_job(store, "a"), add_job(store, "b")
    stale = replace(other, revision=7)
    database: Database = store._database
    with pytest.raises(StoreError, match=f"{other.id} changed under its lock"), database.writing() as connection:
        writes = Writes(connection)
        for before in (job, stale):
            writes.add(before, Step(replace(before, nodes="n1")))
        writes.flush()
    assert store.get_many([job.id, other.id]) == [job, other]
