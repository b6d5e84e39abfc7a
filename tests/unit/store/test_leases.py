"""Leases: exclusive, ended by time or by their holder, opened by their token alone."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier

import pytest

from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.store import Store, open_store
from tests.unit.store.jobs import SUBMITTED_AT, FakeClock, add_job, applied, in_threads, new_job, steps


def test_store_claims_each_job_for_one_owner_until_release(store: Store) -> None:
    jobs = [add_job(store, at=SUBMITTED_AT + n) for n in range(3)]
    first = store.claim_deployable("one", limit=2, lease_s=60)
    assert [leased.job for leased in first] == jobs[:2]
    assert [leased.job for leased in store.claim_deployable("two", limit=9, lease_s=60)] == jobs[2:]
    assert store.claim_deployable("three", limit=9, lease_s=60) == []
    store.release([jobs[1].id], first[1].lease_token)
    assert [leased.job for leased in store.claim_deployable("three", limit=9, lease_s=60)] == [jobs[1]]


def test_store_claims_pending_and_deploying_jobs_with_any_request(store: Store) -> None:
    cancelled = store.set_requested_action(add_job(store).id, RequestedAction.CANCEL)
    half_done = applied(store, add_job(store), steps(JobState.DEPLOYING))
    applied(store, add_job(store), steps(JobState.QUEUED))
    applied(store, add_job(store), steps(JobState.CANCELLED))
    claimed = {leased.job.id for leased in store.claim_deployable("one", limit=9, lease_s=60)}
    assert cancelled is not None
    assert claimed == {cancelled.id, half_done.id}


def test_store_counts_postponed_deployment_and_claims_it_when_due(store: Store) -> None:
    job = add_job(store)
    (leased,) = store.claim_deployable("one", limit=1, lease_s=60)
    assert leased.deploy_tries == 0
    store.release([job.id], leased.lease_token, next_try_at=store.now() + 3600)
    assert store.claim_deployable("one", limit=1, lease_s=60) == []
    other = add_job(store)
    (second,) = store.claim_deployable("one", limit=9, lease_s=60)
    assert second.job == other
    store.release([other.id], second.lease_token, next_try_at=store.now())
    (third,) = store.claim_deployable("one", limit=9, lease_s=60)
    assert (third.job, third.deploy_tries) == (other, 1)


def test_store_postpones_several_jobs_and_makes_them_due(store: Store) -> None:
    jobs = [add_job(store, at=SUBMITTED_AT + n) for n in range(3)]
    leased = store.claim_deployable("one", limit=2, lease_s=60)
    store.release([job.id for job in jobs], leased[0].lease_token, store.now() + 3600)
    (untouched,) = store.claim_deployable("one", limit=9, lease_s=60)
    assert (untouched.job, untouched.deploy_tries) == (jobs[2], 0), "its lease was not this one"
    store.make_due([jobs[1].id])
    (due,) = store.claim_deployable("one", limit=9, lease_s=60)
    assert (due.job, due.deploy_tries) == (jobs[1], 1)


def test_store_postpones_nothing_with_invalid_lease_token(store: Store) -> None:
    job = add_job(store)
    (leased,) = store.claim_deployable("one", limit=1, lease_s=60)
    store.release([job.id], "", store.now())
    store.release([job.id], "another", store.now())
    assert store.claim_deployable("two", limit=1, lease_s=60) == []
    assert store.renew(job.id, leased.lease_token, 60)


def test_store_leases_expire_by_store_clock(tmp_path: Path, clock: FakeClock) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
    job = add_job(store)
    (leased,) = store.claim_deployable("one", limit=1, lease_s=30)
    loop = store.acquire_lease("watcher", "one", 30)
    assert loop is not None
    clock.time += 20
    assert store.renew(job.id, leased.lease_token, 30)
    assert store.renew_lease("watcher", loop, 30)
    clock.time += 29
    assert store.claim_deployable("two", limit=1, lease_s=30) == []
    assert store.acquire_lease("watcher", "two", 30) is None
    clock.time += 1
    assert len(store.claim_deployable("two", limit=1, lease_s=30)) == 1
    assert store.acquire_lease("watcher", "two", 30) is not None
    assert not store.renew_lease("watcher", loop, 30)
    store.close()


def test_store_claims_each_job_once_for_concurrent_owners(store: Store) -> None:
    store.add_jobs([new_job() for _ in range(60)])
    barrier = Barrier(4)
    claimed: list[str] = []

    def claim(number: int) -> None:
        owner = f"owner-{number}"
        barrier.wait()
        # A claimer may find all free rows locked by others for a moment (SKIP LOCKED): look until none is left.
        while len(claimed) < 60:
            claimed.extend(leased.job.id for leased in store.claim_deployable(owner, limit=4, lease_s=60))

    in_threads(claim)
    assert len(claimed) == len(set(claimed)) == 60


def test_store_named_lease_has_one_holder_until_release_or_expiry(store: Store) -> None:
    token = store.acquire_lease("watcher", "one", 60)
    assert token is not None
    assert store.acquire_lease("watcher", "two", 60) is None
    assert store.acquire_lease("watcher", "one", 60) is None
    assert store.acquire_lease("deployer", "two", 60) is not None
    assert store.renew_lease("watcher", token, 60)
    assert not store.renew_lease("watcher", "guess", 60)
    store.release_lease("watcher", "guess")
    assert store.acquire_lease("watcher", "two", 60) is None
    store.release_lease("watcher", token)
    assert not store.renew_lease("watcher", token, 60)
    assert store.acquire_lease("watcher", "two", 0) is not None
    assert store.acquire_lease("watcher", "three", 60) is not None


@pytest.mark.parametrize("held", [False, True])
def test_store_grants_named_lease_to_one_of_concurrent_owners(store: Store, held: bool) -> None:
    if held:  # and has run out
        assert store.acquire_lease("watcher", "gone", 0) is not None
    barrier = Barrier(4)
    tokens: list[str | None] = []

    def acquire(number: int) -> None:
        barrier.wait()
        tokens.append(store.acquire_lease("watcher", f"owner-{number}", 60))

    in_threads(acquire)
    winners = [token for token in tokens if token is not None]
    assert len(tokens) == 4
    assert len(winners) == 1
    assert store.renew_lease("watcher", winners[0], 60)


def test_store_ends_only_leases_of_restarted_daemon(store: Store) -> None:
    mine, other = add_job(store, at=SUBMITTED_AT), add_job(store, at=SUBMITTED_AT + 1)
    (old,) = store.claim_deployable("host:state", limit=1, lease_s=60)
    (foreign,) = store.claim_deployable("host:other", limit=1, lease_s=60)
    old_loop = store.acquire_lease("watcher", "host:state", 60)
    assert old_loop is not None
    store.end_leases_of("host:state")
    assert store.renew(mine.id, old.lease_token, 60) is False
    assert store.renew(other.id, foreign.lease_token, 60) is True
    assert [leased.job for leased in store.claim_deployable("host:state", limit=9, lease_s=60)] == [mine]
    assert store.renew_lease("watcher", old_loop, 60) is False
    assert store.acquire_lease("watcher", "host:state", 60) is not None
