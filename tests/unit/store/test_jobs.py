"""Adding and reading jobs."""

from __future__ import annotations

import dataclasses
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import update

from ffdl_batch.domain.job.job import Change, Job, new_job_id
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    Checkpoint,
    DataStore,
    Egress,
    EvaluationMetrics,
    Framework,
    ImageLocation,
    JobSpec,
    MetricGroup,
    MetricValue,
    NetworkLevel,
    Notify,
    Resources,
    Retry,
    Role,
    StoreType,
)
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.store import DuplicateId, NewJob, Store, open_store
from ffdl_batch.store.schema import JOBS
from tests.unit.store.jobs import (
    SUBMITTED_AT,
    FakeClock,
    add_job,
    applied,
    assert_consistent,
    in_threads,
    new_job,
    statements,
    steps,
)

NASTY = "a\x00b \x1a0000 \udcff\ud800 'x' \"y\" $(id) %j \\ \n\t\r –日本語 🙂 e\u0301\u202e\ufeff \uffff\x7f\x85"


def nasty_spec() -> JobSpec:
    """A spec with every kind of field filled."""
    stores = (
        DataStore("id", StoreType.MOUNT_VOLUME, StoreType.HOST_MOUNT, NASTY, NASTY, {"path": NASTY}),
        DataStore("id2", StoreType.S3_DATASTORE, StoreType.DIRECTORY),
    )
    groups = {"g": MetricGroup("r", "m", {"s": MetricValue("a", "b")})}
    batch = BatchOptions(
        time_s=60, preemptible=True, network=NetworkLevel.EGRESS, egress=(Egress("h", 443),), env={"X": NASTY},
        checkpoint=Checkpoint("USR1", 5, 6, True), retry=Retry(1, 2, 3, 4), notify=Notify("a@b", ("END",), "w"),
        roles={"ps": Role(2, 1.0, None, 5, NASTY, True)}, slurm_args=("--x", NASTY),
    )  # fmt: skip
    return JobSpec(
        name=NASTY, framework=Framework("custom", NASTY, NASTY, "tag", ImageLocation("r", "n", NASTY)),
        description=NASTY, version="1", resources=Resources(4, 1.5, 0.5, "a100", 2**40, 7, {NASTY: 2}),
        data_stores=stores, metrics=EvaluationMetrics("regex", "t", NASTY, 9, ("e",), groups), batch=batch,
        base_dir=NASTY, sources={"batch.time_s": "line 3"},
    )  # fmt: skip


def test_store_returns_every_job_field_unchanged(store: Store) -> None:
    new = NewJob(new_job_id(), 2**32 - 2, NASTY, nasty_spec(), NASTY, NASTY, NASTY, 1234.56789, (NASTY, ""))
    (added,) = store.add_jobs([new])
    forgetful = Store(store._database)
    assert forgetful.get(new.id) == added, "what was kept is not what is stored"
    columns: dict[str, Any] = {
        "native_id": NASTY, "exit_code": 255, "exit_signal": 64, "pending_reason": NASTY, "nodes": NASTY,
        "network": NASTY, "results": NASTY, "uncertain_since": 1235.125, "warnings": (NASTY,),
        "requested_action": RequestedAction.CANCEL,
        "log_tail": (NASTY, "", "x" * 10_000),
    }  # fmt: skip
    happened = ((JobState.DEPLOYING, 1235.25), (JobState.FAILED, 1236.0000001))
    failed = applied(store, added, Change(happened, message=NASTY, error_code="C201", columns=columns))
    expected = Job(
        id=new.id, uid=2**32 - 2, user=NASTY, spec=nasty_spec(), state=JobState.FAILED, backend=NASTY, attempt=0,
        revision=2, submitted_at=1234.56789, updated_at=failed.updated_at, ended_at=1236.0000001, error_code="C201",
        message=NASTY, model_digest=NASTY, **columns,
    )  # fmt: skip
    assert failed == expected
    again = Store(store._database)  # with nothing remembered
    assert again.list_jobs(uid=2**32 - 2, name=NASTY) == [expected]
    removed = applied(store, failed, Change(columns={"removed_at": 1237.0000001}))
    expected = dataclasses.replace(expected, revision=3, updated_at=removed.updated_at, removed_at=1237.0000001)
    assert removed == expected
    assert all(getattr(expected, f.name) not in ("", None, ()) for f in dataclasses.fields(Job)), "a field is untested"
    again = Store(store._database)
    assert again.get(new.id) == expected
    assert again.history(new.id)[-1].message == NASTY
    assert again.list_jobs(uid=2**32 - 2, name=NASTY) == []


def test_store_adds_new_job_as_pending_with_one_history_entry(store: Store) -> None:
    job = add_job(store)
    assert (job.state, job.attempt, job.requested_action, job.native_id, job.revision) == (
        JobState.PENDING,
        0,
        RequestedAction.NONE,
        "",
        1,
    )
    (entry,) = store.history(job.id)
    assert (entry.seq, entry.at, entry.state, entry.attempt) == (1, SUBMITTED_AT, JobState.PENDING, 0)
    assert store.get(job.id) == job
    assert store.get("training-000000000") is None


def test_store_returns_existing_job_for_used_key_of_same_user(store: Store) -> None:
    first = add_job(store, "key")
    again, other, twin = store.add_jobs([new_job("key"), new_job("other"), new_job("other")])
    assert again == first
    assert other == twin
    assert store.add_jobs([new_job("key"), new_job("other")]) == [first, other]
    assert add_job(store, "key", uid=1001).id != first.id
    assert len(store.list_jobs(uid=None)) == 3
    assert add_job(store).id != add_job(store).id
    assert [len(entries) for entries in store.histories([first.id, other.id]).values()] == [1, 1]


def test_store_rejects_duplicate_id_and_adds_nothing(store: Store) -> None:
    taken = add_job(store, "first").id
    with pytest.raises(DuplicateId, match=taken):
        store.add_jobs([new_job("good"), new_job("bad", job_id=taken)])
    twice = new_job_id()
    with pytest.raises(DuplicateId, match=twice):
        store.add_jobs([new_job("x", job_id=twice), new_job("y", job_id=twice)])
    assert [job.id for job in store.list_jobs(uid=None)] == [taken]
    assert store.outage is None


def test_store_adds_one_job_per_key_for_concurrent_requests(store: Store) -> None:
    keys = [f"key-{number}" for number in range(10)]
    barrier = Barrier(4)
    answers: list[dict[str, str]] = []

    def add(number: int) -> None:
        order = keys if number % 2 else keys[::-1]
        barrier.wait()
        jobs = store.add_jobs([new_job(key) for key in order])
        answers.append({key: job.id for key, job in zip(order, jobs, strict=True)})

    in_threads(add)
    assert len(answers) == 4
    assert all(answer == answers[0] for answer in answers)
    assert len(store.list_jobs(uid=None)) == 10


def test_store_lists_jobs_newest_first_with_filters_and_pages(store: Store) -> None:
    jobs = [add_job(store, at=SUBMITTED_AT + n // 2, name=f"job-{n % 3}", uid=1000 + n % 2) for n in range(12)]
    ordered = sorted(jobs, key=lambda job: (job.submitted_at, job.id), reverse=True)
    assert store.list_jobs(uid=None) == ordered
    assert store.list_jobs(uid=1001) == [job for job in ordered if job.uid == 1001]
    assert store.list_jobs(uid=None, name="job-1") == [job for job in ordered if job.spec.name == "job-1"]
    assert store.list_jobs(uid=None, since=SUBMITTED_AT + 4) == ordered[:4]
    pages: list[Job] = []
    while page := store.list_jobs(uid=None, limit=5, after=pages[-1].id if pages else None):
        pages += page
    assert pages == ordered
    ended = applied(store, jobs[0], steps(JobState.CANCELLED))
    assert store.list_jobs(uid=None, states={JobState.CANCELLED, JobState.FAILED}) == [ended]
    assert store.list_jobs(uid=None, states=()) == []
    assert store.count_live() == 11


def test_store_get_many_keeps_order_and_omits_unknown_ids(store: Store) -> None:
    one, two = add_job(store), add_job(store)
    assert store.get_many([two.id, "training-000000000", one.id, two.id]) == [two, one]
    assert store.get_many([]) == []


def test_store_live_deployed_needs_two_statements_for_many_jobs_then_one(empty_url: str) -> None:
    store = open_store(empty_url)
    jobs = store.add_jobs([new_job(at=SUBMITTED_AT + n) for n in range(2_000)])
    with store.engine.begin() as connection:
        connection.execute(update(JOBS).values(state="PROCESSING", native_id="7", revision=2))
        connection.execute(update(JOBS).where(JOBS.c.id == jobs[0].id).values(state="PENDING"))
        connection.execute(update(JOBS).where(JOBS.c.id == jobs[1].id).values(state="COMPLETED"))
        connection.execute(update(JOBS).where(JOBS.c.id == jobs[2].id).values(backend="slurm"))
    with statements(store) as sent:
        live = store.live_deployed("local")
    assert len(sent) == 2, sent
    assert [job.id for job in live] == [job.id for job in jobs[3:]]
    assert {(job.state, job.native_id) for job in live} == {(JobState.PROCESSING, "7")}
    with statements(store) as sent:
        assert store.live_deployed("local") == live
    assert len(sent) == 1, sent
    with statements(store) as sent:
        assert len(store.histories([job.id for job in jobs[:500]])) == 500
        assert store.count_live() == 1_999
        assert len(store.list_jobs(uid=1000, limit=10)) == 10
    assert len(sent) == 3, sent
    store.close()


def test_store_lists_live_jobs_by_backend_and_archive_digest(store: Store) -> None:
    def put(backend: str, digest: str) -> Job:
        return store.add_jobs([dataclasses.replace(new_job(), backend=backend, model_digest=digest)])[0]

    assert (store.live_backends(), store.live_digests()) == ([], frozenset())
    running = applied(store, put("slurm", "d1"), steps(JobState.PROCESSING, native_id="1"))
    applied(store, put("other", "d2"), steps(JobState.DEPLOYING))  # no native id: nothing to ask the scheduler
    applied(store, put("ended", "d3"), steps(JobState.COMPLETED, native_id="2"))
    put("local", "d1")
    assert store.live_backends() == ["slurm"]
    assert store.live_deployed("slurm") == [running]
    assert store.live_deployed("other") == []
    assert store.live_digests() == {"d1", "d2"}


def test_store_reads_history_after_given_entry(store: Store) -> None:
    job = applied(store, add_job(store), steps(JobState.DEPLOYING, JobState.QUEUED, JobState.PROCESSING))
    assert [entry.seq for entry in store.history(job.id, after_seq=2)] == [3, 4]
    assert store.history(job.id, after_seq=2**63 - 1) == store.history("training-000000000") == []
    assert store.histories(["training-000000000"]) == {"training-000000000": []}
    assert_consistent(store, job.id)


def test_store_time_comes_from_given_clock_or_database_server(store: Store, clock: FakeClock) -> None:
    if store.engine.dialect.name == "sqlite":
        clock.time = 77.0
        assert store.now() == 77.0
    else:
        first = store.now()
        assert first > 1.6e9
        assert store.now() >= first
