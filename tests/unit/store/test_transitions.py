"""Changing jobs: guards, histories and ends, and many jobs in one transaction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from ffdl_batch.domain.job.job import Change
from ffdl_batch.domain.job_state import Cause, IllegalTransition, JobState, RequestedAction
from ffdl_batch.store import Store, StoreError
from ffdl_batch.store.batched_writes import Step, Writes
from ffdl_batch.store.database import Database
from ffdl_batch.store.schema import JOBS
from tests.unit.store.jobs import SUBMITTED_AT, add_job, applied, assert_consistent, begin, deploying, in_threads, steps

S = JobState


def test_store_records_every_step_of_job_until_end(store: Store) -> None:
    job, token = deploying(store)
    queued = Change(((S.QUEUED, 1002.0),), columns={"native_id": "4711", "network": "none"})
    job = applied(store, job, queued, lease_token=token)
    job = applied(store, job, Change(((S.DOWNLOADING, 1003.0), (S.PROCESSING, 1004.0)), columns={"nodes": "n[1-2]"}))
    ended = Change(((S.STORING, 1005.0), (S.FAILED, 1006.0)), message="exit 3", error_code="C201")
    job = applied(store, job, ended)
    assert (job.state, job.ended_at, job.error_code, job.message) == (S.FAILED, 1006.0, "C201", "exit 3")
    history = store.history(job.id)
    assert [entry.state for entry in history] == [
        S.PENDING, S.DEPLOYING, S.QUEUED, S.DOWNLOADING, S.PROCESSING, S.STORING, S.FAILED,
    ]  # fmt: skip
    assert [(entry.message, entry.error_code) for entry in history[-2:]] == [("", "000"), ("exit 3", "C201")]
    (attempt,) = store.attempts(job.id)
    assert (attempt.native_id, attempt.submitted_at, attempt.ended_at) == ("4711", 1002.0, 1006.0)
    assert (attempt.outcome_code, attempt.network, attempt.nodes) == ("C201", "none", "n[1-2]")
    assert_consistent(store, job.id)


def test_store_never_records_decreasing_times_for_job(store: Store) -> None:
    job = add_job(store)
    job = applied(store, job, Change(((S.QUEUED, 2000.0), (S.PROCESSING, 1500.0))))
    job = applied(store, job, Change(((S.COMPLETED, 10.0),)))
    assert [entry.at for entry in store.history(job.id)] == [SUBMITTED_AT, 2000.0, 2000.0, 2000.0]
    assert job.ended_at == 2000.0


def test_apply_and_apply_many_reject_illegal_change_and_write_nothing(store: Store) -> None:
    job, good = applied(store, add_job(store), steps(S.PROCESSING)), add_job(store)
    with pytest.raises(IllegalTransition):
        store.apply(job, steps(S.STORING, S.QUEUED, nodes="n1"))
    with pytest.raises(ValueError, match="spec"):
        store.apply(job, steps(S.STORING, spec="x"))
    with pytest.raises(IllegalTransition):
        store.apply_many([(good, steps(S.QUEUED)), (job, steps(S.QUEUED))])
    assert store.get_many([good.id, job.id]) == [good, job]
    assert_consistent(store, job.id)


def test_apply_rejects_any_step_after_terminal_state(store: Store) -> None:
    job = applied(store, add_job(store), steps(S.HALTED))
    for cause in (Cause.PROGRESS, Cause.REQUEUED):
        for target in S:
            with pytest.raises(IllegalTransition):
                store.apply(job, Change(((target, 1e9),), cause=cause))
    assert store.set_requested_action(job.id, RequestedAction.CANCEL) == job
    assert store.get(job.id) == job
    assert store.count_live() == 0


def test_apply_changes_nothing_for_stale_revision(store: Store) -> None:
    seen = add_job(store)
    now = applied(store, seen, steps(S.QUEUED))
    assert store.apply(seen, steps(S.FAILED)) is None
    assert store.apply(seen, Change(columns={"nodes": "n9"})) is None
    assert store.apply_many([(seen, steps(S.FAILED))]) == []
    assert store.get(seen.id) == now
    assert_consistent(store, seen.id)


def test_store_changes_nothing_for_stale_or_empty_lease_token(store: Store) -> None:
    job = add_job(store)
    (old,) = store.claim_deployable("one", limit=1, lease_s=0)
    assert store.renew(job.id, old.lease_token, 0) is True  # it has expired, and nobody took it yet
    (new,) = store.claim_deployable("two", limit=1, lease_s=60)
    assert new.lease_token != old.lease_token
    for token in (old.lease_token, "", "guess"):
        assert store.begin_attempt(job, token, 1001.0) is None
        assert store.apply(job, steps(S.FAILED), lease_token=token) is None
        assert store.renew(job.id, token, 60) is False
        store.release([job.id], token, next_try_at=1e12)
    assert store.claim_deployable("three", limit=1, lease_s=60) == []
    assert store.get(job.id) == job
    assert store.attempts(job.id) == []
    begun = store.begin_attempt(job, new.lease_token, 1001.0)
    assert begun is not None
    store.release([job.id], new.lease_token)
    assert store.apply(begun, steps(S.QUEUED), lease_token="") is None
    assert store.apply(begun, steps(S.QUEUED), lease_token=new.lease_token) is None


def test_store_returns_none_or_false_for_unknown_job(store: Store) -> None:
    job = add_job(store)
    unknown = type(job)(**{name: getattr(job, name) for name in job.__slots__} | {"id": "training-000000000"})
    assert store.apply(unknown, steps(S.QUEUED)) is None
    assert store.begin_attempt(unknown, "t", 1.0) is None
    assert store.set_requested_action(unknown.id, RequestedAction.HALT) is None
    assert store.renew(unknown.id, "t", 1) is False


def test_apply_keeps_revision_if_nothing_changes(store: Store) -> None:
    job = applied(store, add_job(store), steps(S.QUEUED, nodes="n1"))
    assert store.apply(job, Change(columns={"nodes": "n1", "pending_reason": ""})) == job
    assert store.apply_many([(job, Change())]) == [job]
    assert store.get(job.id) == job


def test_apply_many_skips_stale_jobs_and_writes_different_columns_of_the_rest(store: Store) -> None:
    one, two, three = (add_job(store) for _ in range(3))
    applied(store, two, steps(S.CANCELLED))
    queued, failed = (steps(S.QUEUED, native_id="3"), steps(S.FAILED))
    updated = store.apply_many([(three, queued), (two, queued), (one, failed), (one, queued)])
    assert [(job.id, job.state, job.native_id) for job in updated] == [
        (three.id, S.QUEUED, "3"),
        (one.id, S.FAILED, ""),
    ]
    assert store.get_many([three.id, one.id]) == updated
    for job in (one, two, three):
        assert_consistent(store, job.id)


def test_store_records_request_without_changing_state(store: Store) -> None:
    job = applied(store, add_job(store), steps(S.PROCESSING))
    halting = store.set_requested_action(job.id, RequestedAction.HALT)
    assert halting is not None
    assert (halting.requested_action, halting.state, halting.revision) == (
        RequestedAction.HALT,
        S.PROCESSING,
        job.revision + 1,
    )
    assert store.set_requested_action(job.id, RequestedAction.HALT) == halting
    cancelling = store.set_requested_action(job.id, RequestedAction.CANCEL)
    assert cancelling is not None
    assert store.set_requested_action(job.id, RequestedAction.HALT) == cancelling
    assert len(store.history(job.id)) == 2
    assert applied(store, cancelling, steps(S.CANCELLED)).requested_action is RequestedAction.NONE


def test_resumed_job_starts_next_attempt_without_old_error(store: Store) -> None:
    job, token = deploying(store)
    change = Change(((S.FAILED, 1005.0),), message="no", error_code="C201", columns={"exit_code": 3, "native_id": "1"})
    job = applied(store, job, change)
    store.release([job.id], token)
    job = applied(store, job, Change(((S.PENDING, 1006.0),), cause=Cause.RESUMED))
    assert (job.state, job.ended_at, job.error_code, job.message, job.exit_code) == (S.PENDING, None, "000", "", None)
    begun = begin(store, 1007.0)
    assert (begun.attempt, begun.native_id, begun.token) == (2, "", f"{job.id}-2")
    assert [attempt.outcome_code for attempt in store.attempts(job.id)] == ["C201", ""]
    assert_consistent(store, job.id)


def test_requeued_job_returns_to_queued_in_same_attempt(store: Store) -> None:
    job, _ = deploying(store)
    job = applied(store, job, steps(S.PROCESSING, native_id="5"))
    job = applied(store, job, Change(((S.QUEUED, 1010.0),), cause=Cause.REQUEUED, message="requeued"))
    assert (job.state, job.attempt, job.native_id) == (S.QUEUED, 1, "5")
    assert store.history(job.id)[-1].cause == "requeued"
    assert_consistent(store, job.id)


def test_apply_many_keeps_gapless_history_with_concurrent_writers(store: Store) -> None:
    jobs = [applied(store, add_job(store), steps(S.PROCESSING)) for _ in range(3)]
    won: list[int] = []

    def apply_ten(number: int) -> None:
        for turn in range(10):
            current = store.get_many([job.id for job in jobs])
            nodes: dict[str, object] = {"nodes": f"{number}-{turn}"}
            change = Change(((S.PROCESSING, 1000.0 + turn),), cause=Cause.REQUEUED, columns=nodes)
            ordered = current if number % 2 else current[::-1]
            won.append(len(store.apply_many([(job, change) for job in ordered])))

    in_threads(apply_ten)
    assert len(won) == 40
    assert sum(len(store.history(job.id)) - 2 for job in jobs) == sum(won)
    for job in jobs:
        assert_consistent(store, job.id)
        after = store.get(job.id)
        assert after is not None
        assert after.revision == len(store.history(job.id))


def test_store_reuses_number_of_unsent_first_attempt(store: Store) -> None:
    job, token = deploying(store)
    back = Change(((S.PENDING, 1002.0),), Cause.REQUEUED, "no room", columns={"pending_reason": "no room"}, unsent=True)
    job = applied(store, job, back, lease_token=token)
    assert (job.state, job.attempt, job.pending_reason, store.attempts(job.id)) == (S.PENDING, 0, "no room", [])
    assert_consistent(store, job.id)
    again = begin(store, 1003.0)
    assert (again.token, again.pending_reason) == (f"{job.id}-1", "")
    history = [(entry.state, entry.attempt, entry.message) for entry in store.history(job.id)]
    assert history == [(S.PENDING, 0, ""), (S.DEPLOYING, 1, ""), (S.PENDING, 0, "no room"), (S.DEPLOYING, 1, "")]
    assert_consistent(store, job.id)


def test_store_removes_unsent_second_attempt_and_keeps_first(store: Store) -> None:
    job, token = deploying(store)
    job = applied(store, job, steps(S.QUEUED, native_id="4711"), lease_token=token)
    job = applied(store, job, Change(((S.PENDING, 1002.0),), Cause.REQUEUED))
    begun = begin(store, 1003.0)
    assert begun.attempt == 2
    job = applied(store, begun, Change(((S.PENDING, 1004.0),), Cause.REQUEUED, unsent=True))
    assert (job.attempt, [attempt.native_id for attempt in store.attempts(job.id)]) == (1, ["4711"])
    assert_consistent(store, job.id)


@pytest.mark.parametrize("target", [S.QUEUED, S.FAILED])
def test_apply_rejects_unsent_change_for_submitted_attempt_or_other_state(store: Store, target: JobState) -> None:
    job, _ = deploying(store)
    with pytest.raises((ValueError, IllegalTransition)):
        store.apply(job, Change(((target, 1002.0),), Cause.REQUEUED, unsent=True))
    queued = applied(store, job, steps(S.QUEUED, native_id="4711"))
    with pytest.raises(ValueError, match="was none"):
        store.apply(queued, Change(((S.PENDING, 1002.0),), Cause.REQUEUED, unsent=True))
    assert store.get(job.id) == queued


def test_begin_attempts_starts_first_attempts_of_several_jobs_in_one_call(store: Store) -> None:
    jobs = [add_job(store, key) for key in "abc"]
    leased = store.claim_deployable("deployer", limit=3, lease_s=60)
    (token,) = {one.lease_token for one in leased}
    assert store.begin_attempts([], token, 1.0) == {}
    begun = store.begin_attempts(jobs, token, SUBMITTED_AT + 1, 120.0)
    assert [(job.state, job.attempt, job.token) for job in begun.values()] == [
        (S.DEPLOYING, 1, f"{job.id}-1") for job in jobs
    ]
    assert store.get_many(list(begun)) == list(begun.values())
    for job in jobs:
        (attempt,) = store.attempts(job.id)
        assert (attempt.token, attempt.backend, attempt.created_at) == (f"{job.id}-1", "local", SUBMITTED_AT + 1)
        assert [(entry.state, entry.attempt) for entry in store.history(job.id)] == [(S.PENDING, 0), (S.DEPLOYING, 1)]
        assert_consistent(store, job.id)


def test_begin_attempts_skips_changed_or_unleased_jobs(store: Store) -> None:
    changed, unleased, kept = (add_job(store, key) for key in "abc")
    (first, *_) = store.claim_deployable("deployer", limit=3, lease_s=60)
    store.set_requested_action(changed.id, RequestedAction.HALT)
    store.release([unleased.id], first.lease_token)
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
    assert (store.attempts(pending.id), len(store.attempts(deployed.id))) == ([], 1)


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
