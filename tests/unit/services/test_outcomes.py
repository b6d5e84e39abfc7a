"""Jobs are begun and written in groups; what happens to one of them happens to no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest
from sqlalchemy import update

from ffdl_batch.domain.job import Change, Job
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.services.backends import Adapters
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.outcomes import GROUP, Decided, Outcomes
from ffdl_batch.store import Store, StoreUnavailable
from ffdl_batch.store.schema import JOBS
from tests.unit.services.conftest import Site


def accept_three(site: Site) -> list[Job]:
    return [site.accept(key) for key in ("one", "two", "three")]


def states_of(site: Site, jobs: list[Job]) -> list[JobState]:
    return [site.job(job.id).state for job in jobs]


def at(step: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Acts when the deployer reaches `step` for the first time."""
    acts = [act]

    def reached(name: str) -> None:
        if name == step and acts:
            acts.pop()()

    return reached


def take_lease(site: Site, job: Job) -> None:
    """Another daemon found the lease run out."""
    with site.platform.store.engine.begin() as connection:
        connection.execute(update(JOBS).where(JOBS.c.id == job.id).values(lease_token="others", lease_until=0.0))


def wish_cancel(site: Site, job: Job) -> None:
    site.platform.store.set_wish(job.id, Wish.CANCEL)


def test_deployer_begins_all_claimed_attempts_in_one_write(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = accept_three(site)
    calls: list[int] = []
    begin = Store.begin_attempts

    def counted(store: Store, *arguments: object) -> object:
        calls.append(1)
        return begin(store, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "begin_attempts", counted)
    assert Deployer(site.platform).step() == 3
    assert states_of(site, jobs) == [JobState.QUEUED] * 3
    assert calls == [1]


def test_outcomes_are_written_in_groups(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [site.accept(f"k{number}") for number in range(GROUP + 3)]
    (token,) = {one.lease_token for one in site.platform.store.claim_deployable("me", limit=99, lease_s=30)}
    sizes: list[int] = []
    apply_many = Store.apply_many

    def counted(store: Store, pairs: list[Decided], **more: str) -> list[Job]:
        sizes.append(len(pairs))
        return apply_many(store, pairs, **more)

    monkeypatch.setattr(Store, "apply_many", counted)
    outcomes = Outcomes(site.platform.store, token, lambda: None)
    for job in jobs:
        outcomes.expect(finished((job, Change(((JobState.FAILED, 1.0),)))))
    assert outcomes.write() == len(jobs)
    assert sizes == [GROUP, 3]


def finished(*decided: Decided) -> Future[Sequence[Decided]]:
    outcome: Future[Sequence[Decided]] = Future()
    outcome.set_result(decided)
    return outcome


def test_outcomes_write_nothing_without_decisions(site: Site) -> None:
    written: list[str] = []
    outcomes = Outcomes(site.platform.store, "token", lambda: written.append("written"))
    outcomes.expect(finished())
    assert outcomes.write() == 0
    assert written == []


def test_deployer_skips_only_the_job_cancelled_before_attempt_begins(site: Site) -> None:
    jobs = accept_three(site)
    assert Deployer(site.platform, at("claimed", lambda: wish_cancel(site, jobs[1]))).step() == 2
    assert states_of(site, jobs) == [JobState.QUEUED, JobState.PENDING, JobState.QUEUED]
    assert Deployer(site.platform).step() == 1, "its lease was given back at once"
    assert site.job(jobs[1].id).state is JobState.CANCELLED
    assert len(site.scheduler.submitted) == 2


def test_deployer_skips_only_the_job_that_lost_its_lease_before_attempt_begins(site: Site) -> None:
    jobs = accept_three(site)
    assert Deployer(site.platform, at("claimed", lambda: take_lease(site, jobs[1]))).step() == 2
    assert states_of(site, jobs) == [JobState.QUEUED, JobState.PENDING, JobState.QUEUED]
    assert site.platform.store.attempts(jobs[1].id) == []


def test_deployer_finds_submission_of_job_that_lost_its_lease_after_submitting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.services.deploy.WORKERS", 1)
    jobs = accept_three(site)
    assert Deployer(site.platform, at("submitted", lambda: take_lease(site, jobs[0]))).step() == 2
    assert states_of(site, jobs) == [JobState.DEPLOYING, JobState.QUEUED, JobState.QUEUED]
    assert Deployer(site.platform).step() == 1
    assert states_of(site, jobs) == [JobState.QUEUED] * 3
    assert len(site.scheduler.submitted) == 3, "the submission of the first was found"


def test_deployer_completes_other_jobs_when_one_worker_fails(site: Site) -> None:
    def fail() -> None:
        raise RuntimeError("an error in the program")

    jobs = accept_three(site)
    with pytest.raises(RuntimeError, match="an error in the program"):
        Deployer(site.platform, at("submitted", fail)).step()
    assert sorted(states_of(site, jobs)) == [JobState.DEPLOYING, JobState.QUEUED, JobState.QUEUED]
    assert Deployer(site.platform).step() == 1, "its lease was given back"
    assert len(site.scheduler.submitted) == 3


@pytest.mark.parametrize("method", ["begin_attempts", "apply_many"])
def test_deployer_loses_no_job_when_database_write_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    jobs = accept_three(site)
    with monkeypatch.context() as patched:
        patched.setattr(Store, method, full)
        with pytest.raises(StoreUnavailable):
            Deployer(site.platform).step()
    assert Deployer(site.platform).step() == 3, "the leases were given back"
    assert states_of(site, jobs) == [JobState.QUEUED] * 3
    assert len(site.scheduler.submitted) == 3


def test_deployer_keeps_job_pending_when_scheduler_pause_ends_within_step(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.accept()
    answers = [False, True]
    monkeypatch.setattr(Adapters, "may_ask", lambda *_: answers.pop(0) if answers else True)
    assert Deployer(site.platform).step() == 0
    assert site.job(job.id).state is JobState.PENDING
    assert Deployer(site.platform).step() == 1
    assert site.job(job.id).state is JobState.QUEUED
