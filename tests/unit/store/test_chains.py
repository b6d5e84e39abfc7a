"""Attempts that follow one another: successors of heads, returns to PENDING, resumes, ends and pending uploads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.job import AttemptEnd, Change, Job, Overrides, attempt_token
from ffdl_batch.domain.job.spec import BatchOptions, Resources
from ffdl_batch.domain.job_state import Cause, IllegalTransition, JobState
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.store import Store
from tests.unit.store.jobs import add_job, applied, assert_consistent, begin, deploying, new_job, steps

S = JobState
END = AttemptEnd("timeout", Checkpoint(asked=True, confirmed=True, answered=True, took_s=4.5, saved_at=99.25), 7200.5)
SPENT = Spent(timeouts=1, gpu_seconds=7200.5)


def processing(store: Store, native_id: str = "47") -> Job:
    job, token = deploying(store)
    queued = steps(S.QUEUED, native_id=native_id, network="job", results="/r/1")
    job = applied(store, job, queued, lease_token=token)
    return applied(store, job, steps(S.PROCESSING, nodes="n1"))


def succession(*before: tuple[JobState, float], at: float = 1010.0, **changes: object) -> Change:
    values: dict[str, object] = {"cause": Cause.REQUEUED, "succeeded": True, "attempt_end": END} | changes
    return Change(steps=(*before, (S.DEPLOYING, at)), **values)  # type: ignore[arg-type]


def test_store_starts_next_attempt_and_ends_previous_on_continuation(store: Store) -> None:
    job = processing(store)
    said = "the time limit was reached"
    change = succession((S.STORING, 1009.0), message=said, error_code="C203", columns={"spent": SPENT})
    after = applied(store, job, change)
    assert (after.state, after.attempt, after.token) == (S.DEPLOYING, 2, f"{job.id}-2")
    assert (after.native_id, after.nodes, after.network, after.results) == ("", "", "", "/r/1")
    assert (after.spent, after.uncertain_since, after.ended_at, after.error_code) == (SPENT, None, None, "000")
    first, second = store.attempts(job.id)
    assert (first.native_id, first.network, first.nodes, first.ended_at) == ("47", "job", "n1", 1010.0)
    assert (first.outcome_code, first.interruption, first.checkpoint) == ("C203", "timeout", END.checkpoint)
    assert (second.learners, second.global_batch) == (1, None)
    assert (first.gpu_seconds, first.upload_pending) == (7200.5, False)
    assert (second.token, second.created_at, second.native_id) == (attempt_token(job.id, 2), 1010.0, "")
    assert (second.ended_at, second.interruption, second.checkpoint) == (None, "", Checkpoint())
    last = store.history(job.id)[-2:]
    assert [(e.state, e.attempt, e.cause, e.message) for e in last] == [
        (S.STORING, 1, "progress", ""),
        (S.DEPLOYING, 2, "requeued", said),
    ]
    assert store.get(job.id) == after
    assert_consistent(store, job.id)


def test_store_claims_and_adopts_next_attempt_at_once_after_continuation(store: Store) -> None:
    after = applied(store, processing(store), succession())
    (leased,) = store.claim_deployable("deployer", limit=5, lease_s=60)
    assert (leased.job, leased.deploy_tries) == (after, 0)
    queued = applied(store, after, steps(S.QUEUED, native_id="48", at=1011.0), lease_token=leased.lease_token)
    assert [attempt.native_id for attempt in store.attempts(queued.id)] == ["47", "48"]
    assert [attempt.submitted_at for attempt in store.attempts(queued.id)] == [1001.0, 1011.0]
    assert store.live_deployed("local") == [queued]
    assert_consistent(store, queued.id)


def test_store_accepts_several_continuations_in_order(store: Store) -> None:
    job = processing(store)
    for number in (2, 3, 4):
        job = applied(store, job, succession(at=1000.0 + 10 * number, columns={"spent": Spent(timeouts=number)}))
    assert (job.attempt, job.spent.timeouts) == (4, 4)
    assert [entry.attempt for entry in store.history(job.id)][-3:] == [2, 3, 4]
    assert_consistent(store, job.id)


def test_store_makes_postponed_deployment_due_on_continuation(store: Store) -> None:
    job, token = deploying(store)
    store.release([job.id], token, 5000.0)
    applied(store, job, succession())
    assert len(store.claim_deployable("deployer", limit=1, lease_s=60)) == 1


def test_store_rejects_writes_with_lease_of_previous_attempt(store: Store) -> None:
    job, token = deploying(store)
    after = applied(store, job, succession())
    assert store.apply(job, steps(S.QUEUED, native_id="1"), lease_token=token) is None
    assert store.apply(after, steps(S.QUEUED, native_id="1"), lease_token=token) is None
    assert not store.renew(job.id, token, 60)


@pytest.mark.parametrize(
    "change",
    [
        Change(((S.DEPLOYING, 1.0),), cause=Cause.PROGRESS, succeeded=True),
        Change(((S.QUEUED, 1.0),), cause=Cause.REQUEUED, succeeded=True),
        Change(cause=Cause.REQUEUED, succeeded=True),
    ],
)
def test_store_rejects_invalid_continuation_change(store: Store, change: Change) -> None:
    job = processing(store)
    with pytest.raises((ValueError, IllegalTransition)):
        store.apply(job, change)
    assert store.get(job.id) == job
    assert len(store.attempts(job.id)) == 1


def test_store_rejects_continuation_of_job_without_attempt_or_after_end(store: Store) -> None:
    fresh = applied(store, add_job(store), steps(S.QUEUED))
    with pytest.raises(ValueError, match="follows one before"):
        store.apply(fresh, succession())
    ended = applied(store, processing(store), steps(S.HALTED))
    with pytest.raises(IllegalTransition):
        store.apply(ended, succession())


def test_store_begins_second_attempt_after_job_returns_to_pending(store: Store) -> None:
    job = processing(store)
    end = AttemptEnd("node_failure", Checkpoint(saved_at=5.0), 60.0, upload_pending=True)
    columns = {"nodes": "n7", "spent": Spent(node_failures=1), "overrides": Overrides(exclude=("n7",))}
    change = Change(((S.PENDING, 1010.0),), Cause.REQUEUED, "a node failed", "S110", columns, end)
    after = applied(store, job, change)
    assert (after.state, after.attempt, after.native_id, after.nodes, after.network) == (S.PENDING, 1, "", "", "")
    assert (after.overrides.exclude, after.effective_spec.batch.exclude) == (("n7",), "n7")
    (attempt,) = store.attempts(job.id)
    assert (attempt.native_id, attempt.nodes, attempt.network, attempt.ended_at) == ("47", "n7", "job", 1010.0)
    assert (attempt.outcome_code, attempt.interruption, attempt.upload_pending) == ("S110", "node_failure", True)
    assert store.live_deployed("local") == []
    assert_consistent(store, job.id)
    begun = begin(store, 1011.0)
    assert (begun.attempt, begun.spent, begun.overrides) == (2, after.spent, after.overrides)
    assert_consistent(store, job.id)


def test_store_keeps_end_of_attempt_when_pending_job_ends(store: Store) -> None:
    job = applied(store, processing(store), Change(((S.PENDING, 1010.0),), Cause.REQUEUED, attempt_end=END))
    applied(store, job, Change(((S.HALTED, 1020.0),), error_code="C201", attempt_end=AttemptEnd("halt")))
    (attempt,) = store.attempts(job.id)
    assert (attempt.ended_at, attempt.interruption, attempt.outcome_code) == (1010.0, "timeout", "000")
    assert_consistent(store, job.id)


def test_store_records_end_of_attempt_alone_or_with_end_of_job(store: Store) -> None:
    job = processing(store)
    after = applied(store, job, Change(attempt_end=END))
    assert (after.revision, after.state) == (job.revision + 1, job.state)
    assert store.attempts(job.id)[0].interruption == "timeout"
    job = processing(store)
    applied(store, job, Change(((S.HALTED, 1010.0),), attempt_end=AttemptEnd("halt", Checkpoint(asked=True), 1.5)))
    (attempt,) = store.attempts(job.id)
    assert (attempt.interruption, attempt.checkpoint, attempt.gpu_seconds) == ("halt", Checkpoint(asked=True), 1.5)


def test_store_resets_retry_budget_and_applies_overrides_on_resume(store: Store) -> None:
    job = applied(store, processing(store), Change(((S.HALTED, 1010.0),), columns={"spent": SPENT}, attempt_end=END))
    assert job.spent == SPENT
    columns: dict[str, object] = {"overrides": Overrides(2.0, 3600)}
    job = applied(store, job, Change(((S.PENDING, 1020.0),), Cause.RESUMED, "resumed", columns=columns))
    assert (job.spent, job.overrides, job.native_id, job.nodes) == (Spent(), Overrides(2.0, 3600), "", "")
    assert (job.effective_spec.resources.gpus, job.effective_spec.batch.time_s) == (2.0, 3600)
    assert store.get(job.id) == job
    assert store.attempts(job.id)[0].ended_at == 1010.0
    assert_consistent(store, job.id)


def test_store_records_size_that_each_attempt_begins_with(store: Store) -> None:
    elastic = BatchOptions(elasticity=Elastic(1, 8, 32, 512, 64, 32))
    fresh = new_job()
    spec = replace(fresh.spec, resources=Resources(learners=2), batch=elastic)
    store.add_jobs([replace(fresh, spec=spec)])
    columns: dict[str, object] = {"overrides": Overrides(learners=4, global_batch=130)}
    job = applied(store, begin(store, 1001.0), steps(S.QUEUED, S.PROCESSING, native_id="47"))
    with pytest.raises(ValueError, match="its size can only change between two attempts"):
        store.apply(job, Change(columns=columns))
    with pytest.raises(ValueError, match="its size can only change between two attempts"):
        store.apply(job, succession(columns=columns))
    job = applied(store, job, Change(((S.PENDING, 1010.0),), Cause.REQUEUED, columns=columns))
    begun = begin(store, 1011.0)
    assert (begun.attempt, begun.overrides.size) == (2, (4, 130))
    after = applied(store, applied(store, begun, steps(S.QUEUED, S.PROCESSING, native_id="48")), succession())
    sizes = [(one.learners, one.global_batch) for one in store.attempts(after.id)]
    assert sizes == [(2, 32), (4, 128), (4, 128)]


def test_store_reads_overrides_and_spent_budget_from_database(store: Store) -> None:
    overrides, spent = Overrides(0.5, None, ("n1", "n\u00e4")), Spent(1, 2, 3, 4, 0.1, 2)
    job = applied(store, add_job(store), Change(columns={"overrides": overrides, "spent": spent}))
    store._reader._jobs.clear()  # as a daemon that has just started
    assert store.get(job.id) == job


def test_store_returns_attempts_of_several_jobs_by_job_id(store: Store) -> None:
    one, two, none = processing(store), processing(store), add_job(store)
    applied(store, two, succession())
    found = store.attempts_of([two.id, one.id, none.id, "training-000000000"])
    numbers = {job_id: [a.number for a in attempts] for job_id, attempts in found.items()}
    assert numbers == {two.id: [1, 2], one.id: [1], none.id: [], "training-000000000": []}


def test_store_lists_pending_uploads_until_completed(store: Store) -> None:
    jobs = [processing(store) for _ in range(3)]
    for number, job in enumerate(jobs):
        end = AttemptEnd("preemption", upload_pending=number != 1)
        applied(store, job, Change(((S.PENDING, 1010.0 + number),), Cause.REQUEUED, attempt_end=end))
    pending = store.pending_uploads()
    assert {attempt.job_id for attempt in pending} == {jobs[0].id, jobs[2].id}
    assert len(store.pending_uploads(limit=1)) == 1
    before = store.get(jobs[0].id)
    assert store.note_uploaded(jobs[0].id, 1, 1020.0)
    assert not store.note_uploaded(jobs[0].id, 1, 1020.0)
    assert not store.note_uploaded(jobs[0].id, 2, 1020.0)
    assert store.get(jobs[0].id) == before
    assert [attempt.job_id for attempt in store.pending_uploads()] == [jobs[2].id]


@pytest.mark.parametrize(("uploaded", "noted"), [(2000.0, 2000.0), (900.0, 1010.0)])
def test_store_adds_completed_upload_to_history_of_ended_job(store: Store, uploaded: float, noted: float) -> None:
    """It is no earlier than the end; a wrong clock may say so."""
    job = processing(store)
    ended = applied(
        store, job, Change(((S.FAILED, 1010.0),), error_code="S303", attempt_end=AttemptEnd(upload_pending=True))
    )
    assert store.note_uploaded(job.id, 1, uploaded)
    last = store.history(job.id)[-1]
    assert (last.at, last.state, last.attempt, last.cause) == (noted, S.FAILED, 1, "stored")
    assert last.message == "what attempt 1 could not store is stored now"
    assert store.get(job.id) == ended
    assert not store.note_uploaded(job.id, 1, uploaded) and store.history(job.id)[-1] == last


def test_store_adds_no_history_for_upload_that_storing_job_waits_for(store: Store) -> None:
    job = processing(store)
    storing = applied(store, job, Change(((S.STORING, 1010.0),), attempt_end=AttemptEnd(upload_pending=True)))
    before = store.history(job.id)
    assert store.note_uploaded(storing.id, 1, 2000.0)
    assert store.history(job.id) == before


def test_store_keeps_own_end_time_of_attempt_that_ends_before_job(store: Store) -> None:
    job = processing(store)
    pending = Change(((S.STORING, 1010.0),), attempt_end=AttemptEnd(upload_pending=True, at=1011.0))
    job = applied(store, job, pending)
    (attempt,) = store.attempts(job.id)
    assert (job.state, job.ended_at, attempt.ended_at, attempt.upload_pending) == (S.STORING, None, 1011.0, True)
    again = applied(store, job, Change(((S.QUEUED, 1020.0),), Cause.REQUEUED, attempt_end=AttemptEnd()))
    (attempt,) = store.attempts(job.id)
    assert (attempt.ended_at, attempt.upload_pending) == (None, False)
    job = applied(store, again, Change(((S.COMPLETED, 1090.0),), attempt_end=AttemptEnd(at=1030.0)))
    (attempt,) = store.attempts(job.id)
    assert (job.ended_at, attempt.ended_at, attempt.outcome_code) == (1090.0, 1030.0, "000")
    assert_consistent(store, job.id)
