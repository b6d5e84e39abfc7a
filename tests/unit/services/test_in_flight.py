"""A scheduler that takes its time over a submission: its job says so, and those behind it what they wait for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import pytest
from sqlalchemy import update

from ffdl_batch.domain.job.job import Change, Job, Token
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import ArrayPlan, LaunchPlan, LaunchRequest
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.deployment.deployer import WORKERS
from ffdl_batch.services.deployment.result_writer import BEHIND, GROUP, UNANSWERED, Decided, InFlight, Outcomes
from ffdl_batch.services.deployment.step_lease import StepLease
from ffdl_batch.store import Store, StoreUnavailable
from ffdl_batch.store.schema import JOBS
from tests.fakes.arrays import ArrayScheduler
from tests.unit.services.conftest import ArraySite, Site

PATIENCE_S = 60.0


@dataclass
class SlowScheduler(ArrayScheduler):
    """Answers a submission when it is let; `asked_for` are those that it was asked for."""

    let: threading.Event = field(default_factory=threading.Event)
    asked_for: list[Token] = field(default_factory=list)

    def submit(self, plan: LaunchPlan) -> NativeId:
        self._hang(plan.token)
        return super().submit(plan)

    def submit_array(self, plan: ArrayPlan) -> Mapping[Token, NativeId]:
        self._hang(plan.chunk.token)
        return super().submit_array(plan)

    def _hang(self, token: Token) -> None:
        self.asked_for.append(token)
        assert self.let.wait(PATIENCE_S)


@pytest.fixture
def slow(site: Site, monkeypatch: pytest.MonkeyPatch) -> SlowScheduler:
    monkeypatch.setattr("ffdl_batch.services.deployment.result_writer.AWAIT_S", 0.01)
    scheduler = SlowScheduler()
    site.scheduler = scheduler
    site.platform.adapters.use("fake", scheduler)
    return scheduler


@contextmanager
def stepping(site: Site, slow: SlowScheduler, asked: int) -> Iterator[None]:
    """A step of the deployer beside the test, which has asked for so many submissions; it is over at the end."""
    failures: list[BaseException] = []

    def step() -> None:
        try:
            site.deploy()
        except BaseException as error:  # noqa: BLE001 - for the test
            failures.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    try:
        wait_for(lambda: len(slow.asked_for) == asked)
        yield
    finally:
        slow.let.set()
        thread.join(PATIENCE_S)
    assert (failures, thread.is_alive()) == ([], False)


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def reasons(site: Site, jobs: list[Job]) -> Counter[str]:
    return Counter(site.job(job.id).pending_reason for job in jobs)


def test_deployer_sets_and_clears_pending_reasons_while_submission_is_unanswered(
    site: Site, slow: SlowScheduler
) -> None:
    jobs = [site.accept(f"k{number}") for number in range(WORKERS + 2)]
    with stepping(site, slow, WORKERS):
        site.clock.tick(4.0)
        time.sleep(0.1)
        assert reasons(site, jobs) == {"": WORKERS + 2}
        jobs.append(site.accept("later"))
        site.clock.tick(2.0)
        told = {UNANSWERED.format(5): WORKERS, BEHIND: 3}
        wait_for(lambda: reasons(site, jobs) == told)
        before = [site.job(job.id).revision for job in jobs]
        site.clock.tick(10.0)
        time.sleep(0.1)
        assert [site.job(job.id).revision for job in jobs] == before
        site.clock.tick(20.0)
        wait_for(lambda: reasons(site, jobs) == {UNANSWERED.format(30): WORKERS, BEHIND: 3})
    assert reasons(site, jobs) == {"": WORKERS + 2, BEHIND: 1}
    site.deploy()
    assert {site.job(job.id).state for job in jobs} == {JobState.QUEUED}
    assert reasons(site, jobs) == {"": WORKERS + 3}
    assert all(site.states(job) == ["PENDING", "DEPLOYING", "QUEUED"] for job in jobs)
    assert Counter(token for _, token in slow.submitted) == {f"{job.id}-1": 1 for job in jobs}
    assert slow.withdrawn == []


def test_deployer_finds_submission_when_reply_is_lost_after_pending_reason_is_set(
    site: Site, slow: SlowScheduler
) -> None:
    job = site.accept()
    slow.lose_reply = True
    with stepping(site, slow, 1):
        site.clock.tick(6.0)
        wait_for(lambda: bool(site.job(job.id).pending_reason))
    assert site.job(job.id).uncertain_since is not None
    slow.lose_reply = False
    site.clock.tick(60.0)
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).pending_reason) == (JobState.QUEUED, "")
    assert len(slow.submitted) == 1


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "lost"])
def test_deployer_sets_pending_reason_of_array_elements_while_submission_is_unanswered(
    site: Site, slow: SlowScheduler, lost: bool
) -> None:
    arrays = ArraySite(site, slow)
    array = arrays.accept("array: 0-9")
    slow.lose_reply = lost
    with stepping(site, slow, 1):
        site.clock.tick(6.0)
        wait_for(lambda: reasons(site, arrays.elements(array)) == {UNANSWERED.format(5): 10})
    slow.lose_reply = False
    elements = arrays.elements(array)
    if lost:
        assert all(job.uncertain_since is not None for job in elements)
        for _ in range(3):  # one of them first: whether the scheduler answers
            site.clock.tick(60.0)
            arrays.deploy()
    assert arrays.states(array) == [JobState.QUEUED] * 10
    assert reasons(site, elements) == {"": 10}
    assert len(slow.submitted) == 10


def test_deployer_marks_elements_uncertain_when_pending_reason_changes_at_lost_reply(
    site: Site, slow: SlowScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since then a request may still land; without that moment its elements would be submitted again too early."""
    arrays = ArraySite(site, slow)
    array = arrays.accept("array: 0-2")
    slow.lose_reply = True
    slow.let.set()
    told: list[Job] = []
    get_many = Store.get_many

    def overtaken(store: Store, ids: Collection[str]) -> list[Job]:
        found = get_many(store, ids)
        if slow.asked_for and not told:
            told.extend(store.apply_many([(found[0], Change(columns={"pending_reason": UNANSWERED.format(5)}))]))
        return found

    monkeypatch.setattr(Store, "get_many", overtaken)
    arrays.deploy()
    assert len(told) == 1
    assert all(job.uncertain_since is not None for job in arrays.elements(array))


def accept_three(site: Site) -> list[Job]:
    return [site.accept(key) for key in ("one", "two", "three")]


Q, P, D = JobState.QUEUED, JobState.PENDING, JobState.DEPLOYING


def states_of(site: Site, jobs: list[Job]) -> list[JobState]:
    return [site.job(job.id).state for job in jobs]


def counted(monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
    """How many jobs each call of this method of the store got."""
    sizes: list[int] = []
    real = getattr(Store, method)

    def call(store: Store, *arguments: Any, **more: Any) -> object:
        sizes.append(len(arguments[0]))
        return real(store, *arguments, **more)

    monkeypatch.setattr(Store, method, call)
    return sizes


def at(step: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Acts when the deployer reaches `step` for the first time."""
    acts = [act]

    def reached(name: str) -> None:
        if name == step and acts:
            acts.pop()()

    return reached


def take_lease(site: Site, job: Job) -> None:
    """Another daemon found the lease run out."""
    with site.platform.storage.store.engine.begin() as connection:
        connection.execute(update(JOBS).where(JOBS.c.id == job.id).values(lease_token="others", lease_until=0.0))


def request_cancel(site: Site, job: Job) -> None:
    site.platform.storage.store.set_requested_action(job.id, RequestedAction.CANCEL)


def test_deployer_begins_all_claimed_attempts_in_one_write(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = accept_three(site)
    sizes = counted(monkeypatch, "begin_attempts")
    assert site.deploy() == 3
    assert states_of(site, jobs) == [Q] * 3
    assert sizes == [3]


def test_outcomes_are_written_in_groups(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [site.accept(f"k{number}") for number in range(GROUP + 3)]
    (token,) = {one.lease_token for one in site.platform.storage.store.claim_deployable("me", limit=99, lease_s=30)}
    sizes = counted(monkeypatch, "apply_many")
    outcomes = outcomes_of(site, token, lambda: None)
    for job in jobs:
        outcomes.expect(finished((job, Change(((JobState.FAILED, 1.0),)))))
    assert outcomes.write() == len(jobs)
    assert sizes == [GROUP, 3]


def outcomes_of(site: Site, token: str, written: Callable[[], None]) -> Outcomes:
    lease = StepLease(site.platform.storage.store, token)
    return Outcomes(lease, InFlight(site.platform.storage, lease, ()), written)


def finished(*decided: Decided) -> Future[Sequence[Decided]]:
    outcome: Future[Sequence[Decided]] = Future()
    outcome.set_result(decided)
    return outcome


def test_outcomes_write_nothing_without_decisions(site: Site) -> None:
    written: list[str] = []
    outcomes = outcomes_of(site, "token", lambda: written.append("written"))
    outcomes.expect(finished())
    assert outcomes.write() == 0
    assert written == []


def test_deployer_skips_only_the_job_cancelled_before_attempt_begins(site: Site) -> None:
    jobs = accept_three(site)
    assert (
        site.platform.deployer(
            at("claimed", lambda: request_cancel(site, jobs[1])),
        ).step()
        == 2
    )
    assert states_of(site, jobs) == [Q, P, Q]
    assert site.deploy() == 1, "its lease was given back at once"
    assert site.job(jobs[1].id).state is JobState.CANCELLED
    assert len(site.scheduler.submitted) == 2


def test_deployer_skips_only_the_job_that_lost_its_lease_before_attempt_begins(site: Site) -> None:
    jobs = accept_three(site)
    assert (
        site.platform.deployer(
            at("claimed", lambda: take_lease(site, jobs[1])),
        ).step()
        == 2
    )
    assert states_of(site, jobs) == [Q, P, Q]
    assert site.platform.storage.store.attempts(jobs[1].id) == []


def test_deployer_finds_submission_of_job_that_lost_its_lease_after_submitting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.services.deployment.deployer.WORKERS", 1)
    jobs = accept_three(site)
    assert (
        site.platform.deployer(
            at("submitted", lambda: take_lease(site, jobs[0])),
        ).step()
        == 2
    )
    assert states_of(site, jobs) == [D, Q, Q]
    assert site.deploy() == 1
    assert states_of(site, jobs) == [Q] * 3
    assert len(site.scheduler.submitted) == 3, "the submission of the first was found"


def test_deployer_completes_other_jobs_when_one_worker_fails(site: Site) -> None:
    def fail() -> None:
        raise RuntimeError("an error in the program")

    jobs = accept_three(site)
    assert (
        site.platform.deployer(
            at("submitted", fail),
        ).step()
        == 2
    )
    assert sorted(states_of(site, jobs)) == [D, Q, Q]
    [failed] = [job for job in jobs if site.job(job.id).state is D]
    assert "RuntimeError in the daemon: an error in the program" in site.view(failed).pending_reason
    site.clock.tick(60)
    assert site.deploy() == 1, "it was tried again later"
    assert len(site.scheduler.submitted) == 3


@pytest.mark.parametrize(
    "error",
    [ValueError("odd text"), KeyError("odd text"), RecursionError("odd text"), AssertionError("odd text"),
     UnicodeEncodeError("utf-8", "\udce4", 0, 1, "odd text"), OSError(5, "odd text")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_deployer_parks_single_job_that_cannot_be_planned_and_submits_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ill, *others = accept_three(site)
    plan = site.scheduler.plan

    def fail(request: LaunchRequest) -> LaunchPlan:
        if request.job_id == ill.id:
            raise error
        return plan(request)

    with monkeypatch.context() as broken:
        broken.setattr(site.scheduler, "plan", fail)
        for _ in range(2):
            site.deploy()
            site.clock.tick(60)
    assert states_of(site, [ill, *others]) == [D, Q, Q]
    assert "odd text" in site.view(site.job(ill.id)).pending_reason
    site.deploy()
    assert states_of(site, [ill, *others]) == [Q, Q, Q]
    assert (site.job(ill.id).attempt, len(site.scheduler.submitted)) == (1, 3)


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
            site.deploy()
    assert site.deploy() == 3, "the leases were given back"
    assert states_of(site, jobs) == [Q] * 3
    assert len(site.scheduler.submitted) == 3


def test_deployer_keeps_job_pending_when_scheduler_pause_ends_within_step(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.accept()
    answers = [False, True]
    monkeypatch.setattr(Adapters, "may_ask", lambda *_: answers.pop(0) if answers else True)
    assert site.deploy() == 0
    assert site.job(job.id).state is JobState.PENDING
    assert site.deploy() == 1
    assert site.job(job.id).state is JobState.QUEUED
