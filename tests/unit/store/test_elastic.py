"""Rows of scalers on both databases: sizes of jobs, decisions, paused pools."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.job import Change, Job, Overrides
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.store import JobSize, NamedLease, SizeState, Store, StoredDecision
from ffdl_batch.store.elastic import KEPT
from tests.unit.store.jobs import add_job, applied, new_job, steps

LEASE = "scaler default"
HALT = Change(columns={"requested_action": RequestedAction.HALT})


def elastic_job(store: Store, key: str = "") -> Job:
    new = new_job(key)
    elasticity = Elastic(1, 4, 4, 64, 16, 16)
    command = '"elasticity":{" in a text'
    framework = replace(new.spec.framework, command=command)
    batch = replace(new.spec.batch, elasticity=elasticity)
    (job,) = store.add_jobs([replace(new, spec=replace(new.spec, framework=framework, batch=batch))])
    return job


def lease(store: Store) -> NamedLease:
    token = store.acquire_lease(LEASE, "daemon", 60)
    assert token is not None
    return NamedLease(LEASE, token)


def size(job: Job, state: SizeState = SizeState.ADMITTED, attempt: int = 1) -> JobSize:
    return JobSize(job.id, state, attempt, 2, 32, 1000.0)


def halted_for_size(store: Store) -> tuple[NamedLease, Job]:
    """A job that a scaler halts, and whose attempt has ended."""
    held, job = lease(store), elastic_job(store)
    running = applied(store, job, steps(JobState.DEPLOYING, JobState.QUEUED, JobState.PROCESSING))
    asked = store.elastic.change(held, running, HALT, size(job, SizeState.HALTING), None)
    assert asked is not None and asked.requested_action is RequestedAction.HALT
    return held, applied(store, asked, steps(JobState.HALTED))


def test_only_live_elastic_jobs_and_those_halted_for_a_size_are_listed(store: Store) -> None:
    plain = new_job()
    quoted = replace(plain.spec.framework, command='{"elasticity":{"a":1}}')
    store.add_jobs([replace(plain, spec=replace(plain.spec, framework=quoted))])
    _, halted = halted_for_size(store)
    waiting, ended = elastic_job(store), elastic_job(store)
    applied(store, ended, steps(JobState.HALTED))
    found = {one.job.id: one.size for one in store.elastic.jobs()}
    assert found == {halted.id: size(halted, SizeState.HALTING), waiting.id: None}
    assert [job.id for job in store.elastic.halted()] == [halted.id]


def test_size_is_written_with_change_of_job_or_not_at_all(store: Store) -> None:
    held, job = lease(store), elastic_job(store)
    grant = size(job)
    change = Change(columns={"overrides": Overrides(learners=2, global_batch=32)})
    stale = replace(job, revision=job.revision + 1)
    assert store.elastic.change(held, stale, change, grant, None) is None
    assert store.elastic.change(held, job, change, grant, grant) is None, "no scaler gave it this size"
    assert store.elastic.sizes([job.id]) == {}
    updated = store.elastic.change(held, job, change, grant, None)
    assert updated is not None and updated.overrides.learners == 2
    assert store.elastic.sizes([job.id]) == {job.id: grant}


def test_scaler_whose_lease_another_took_writes_nothing(store: Store) -> None:
    held, job = lease(store), elastic_job(store)
    store.release_lease(LEASE, held.token)
    other = lease(store)
    decision = StoredDecision("default", 1.0, "{}", "{}")
    assert store.elastic.change(held, job, HALT, size(job), None) is None
    assert not store.elastic.add_decision(held, decision) and not list(store.elastic.decisions("default"))
    assert store.elastic.change(other, job, HALT, size(job), None) is not None
    assert store.elastic.add_decision(other, decision)


def test_halt_by_owner_withdraws_size(store: Store) -> None:
    held, job = lease(store), elastic_job(store)
    running = applied(store, job, steps(JobState.DEPLOYING, JobState.QUEUED, JobState.PROCESSING))
    halting = size(job, SizeState.HALTING)
    store.elastic.change(held, running, HALT, halting, None)
    store.set_requested_action(job.id, RequestedAction.HALT)
    assert store.elastic.sizes([job.id])[job.id].state is SizeState.WITHDRAWN
    assert not store.elastic.withdraw(job.id)


def test_withdrawn_size_does_not_resume_halted_job(store: Store) -> None:
    held, job = halted_for_size(store)
    assert store.elastic.withdraw(job.id)
    resumed = Change(((JobState.PENDING, 1100.0),), Cause.RESUMED)
    seen = size(job, SizeState.HALTING)
    assert store.elastic.change(held, job, resumed, size(job, attempt=2), seen) is None
    found = store.get(job.id)
    assert found is not None and found.state is JobState.HALTED


def test_sizes_of_ended_jobs_are_deleted_and_halting_ones_stay(store: Store) -> None:
    held, halted = halted_for_size(store)
    live, ended = elastic_job(store), elastic_job(store)
    for job in (live, ended):
        assert store.elastic.change(held, job, Change(), size(job), None) is not None
    assert store.elastic.forget_ended() == 0
    applied(store, ended, steps(JobState.CANCELLED))
    assert store.elastic.forget_ended() == 1
    assert store.elastic.sizes([halted.id, live.id, ended.id]).keys() == {halted.id, live.id}


def test_restart_time_stays_when_size_changes(store: Store) -> None:
    held, job = lease(store), elastic_job(store)
    store.elastic.change(held, job, Change(), size(job), None)
    store.elastic.note_restart(job.id, 12.5)
    known = store.elastic.sizes([job.id])[job.id]
    assert known == replace(size(job), restart_s=12.5)
    store.elastic.change(held, job, Change(), size(job, attempt=2), known)
    assert store.elastic.sizes([job.id])[job.id] == replace(size(job, attempt=2), restart_s=12.5)


def test_last_decisions_of_pool_are_kept(store: Store) -> None:
    held = lease(store)
    for at in range(KEPT + 2):
        store.elastic.add_decision(held, StoredDecision("default", float(at), "{}", f"[{at}]"))
    store.elastic.add_decision(held, StoredDecision("other", 1.0, "{}", "[]"))
    found = list(store.elastic.decisions("default"))
    assert [one.at for one in found] == [float(at) for at in range(2, KEPT + 2)]
    assert list(store.elastic.decisions("default", 1)) == found[-1:]


def test_large_decisions_are_compressed_and_fewer_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held = lease(store)
    large = json.dumps([{"remaining_s": 100 / (1 + number), "restart_s": 60.0} for number in range(1000)])
    monkeypatch.setattr("ffdl_batch.store.elastic.KEPT_BYTES", len(large))
    for at in range(8):
        store.elastic.add_decision(held, StoredDecision("default", float(at), large, "[]"))
    found = list(store.elastic.decisions("default"))
    assert 2 <= len(found) < 8 and found[-1] == StoredDecision("default", 7.0, large, "[]")
    store.elastic.add_decision(held, StoredDecision("default", 8.0, "".join(map(chr, range(50_000))), "[]"))
    assert [one.at for one in store.elastic.decisions("default")] == [8.0]


def test_decisions_stay_in_their_order_if_the_clock_was_set_back(store: Store) -> None:
    held = lease(store)
    for number in range(KEPT + 1):
        store.elastic.add_decision(held, StoredDecision("default", 5000.0 + number, "{}", f"[{number}]"))
    for text in ("first", "second"):
        store.elastic.add_decision(held, StoredDecision("default", 1000.0, text, "[]"))
    assert [one.inputs for one in store.elastic.decisions("default", 3)] == ["{}", "first", "second"]


def test_pool_stays_paused_since_first_pause_until_it_is_resumed(store: Store) -> None:
    add_job(store)
    store.elastic.pause("default", 5.0)
    store.elastic.pause("default", 6.0)
    assert store.elastic.paused() == {"default": 5.0}
    store.elastic.resume("default")
    assert store.elastic.paused() == {}
