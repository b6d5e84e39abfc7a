"""Steps of the deployer side by side: a scheduler that does not answer one submission holds up no other job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import pytest

from ffdl_batch.domain.job.job import Job, Token
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import ArrayPlan, LaunchPlan
from ffdl_batch.services.deployment.deployer import WORKERS, Deployer
from tests.fakes.arrays import ArrayScheduler
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.conftest import ArraySite, Site, manifest

PATIENCE_S = 60.0
P, D, Q = JobState.PENDING, JobState.DEPLOYING, JobState.QUEUED


@dataclass
class SilentScheduler(FakeScheduler):
    """Answers submissions of the jobs and arrays in `silent` only once `answer` is set."""

    silent: set[str] = field(default_factory=set)
    answer: threading.Event = field(default_factory=threading.Event)
    asked_for: list[Token] = field(default_factory=list)
    """The submissions that it got, in order."""

    def submit(self, plan: LaunchPlan) -> NativeId:
        self._hang(plan.token)
        return super().submit(plan)

    def _hang(self, token: Token) -> None:
        self.asked_for.append(token)
        if any(token.startswith(name) for name in self.silent):
            assert self.answer.wait(PATIENCE_S)


@dataclass
class SilentArrayScheduler(SilentScheduler, ArrayScheduler):
    """The same with native arrays."""

    def submit_array(self, plan: ArrayPlan) -> Mapping[Token, NativeId]:
        self._hang(plan.chunk.token)
        return super().submit_array(plan)


@pytest.fixture(params=[SilentScheduler, SilentArrayScheduler], ids=["jobs", "arrays"])
def scheduler(request: pytest.FixtureRequest, site: Site, monkeypatch: pytest.MonkeyPatch) -> SilentScheduler:
    """The scheduler of the site; by default there is one with native arrays, and one without."""
    monkeypatch.setattr("ffdl_batch.services.deployment.result_writer.AWAIT_S", 0.01)
    made: SilentScheduler = request.param()
    site.scheduler = made
    site.platform.adapters.use("fake", made)
    return made


ONLY_ARRAYS = pytest.mark.parametrize("scheduler", [SilentArrayScheduler], indirect=True, ids=["arrays"])


def step_beside(scheduler: SilentScheduler, deployer: Deployer, act: Callable[[], Any]) -> int:
    """A step during which `act` is called, once later steps may begin. Then the scheduler answers."""
    acted: list[bool] = []

    def begin_next() -> bool:
        acted.append(True)
        try:
            act()
        finally:
            scheduler.answer.set()
        return True

    done = deployer.step(begin_next)
    assert acted == [True], "later steps could not begin, or were asked to begin twice"
    return done


def states(site: Site, *jobs: Job) -> list[JobState]:
    return [site.job(job.id).state for job in jobs]


def elements(site: Site, batch: str, key: str = "array") -> list[Job]:
    return site.platform.storage.store.elements_of(site.send(key, manifest(batch)).id)


def tokens(scheduler: FakeScheduler) -> list[Token]:
    return [token for _, token in scheduler.submitted]


def test_deployer_submits_later_job_while_earlier_submission_is_unanswered(
    site: Site, scheduler: SilentScheduler
) -> None:
    first, deployer = site.accept("first"), site.platform.deployer()
    scheduler.silent = {first.id}
    later: list[Job] = []

    def submit_another() -> None:
        later.append(site.accept("second"))
        assert deployer.step() == 1
        assert states(site, first, *later) == [D, Q]

    assert step_beside(scheduler, deployer, submit_another) == 1
    assert states(site, first, *later) == [Q, Q]
    assert tokens(scheduler) == [f"{later[0].id}-1", f"{first.id}-1"]
    assert site.states(first) == ["PENDING", "DEPLOYING", "QUEUED"]


def test_deployer_hands_over_all_older_jobs_before_next_step_begins(site: Site, scheduler: SilentScheduler) -> None:
    jobs = site.accept_all(3 * WORKERS)
    scheduler.silent = {job.id for job in jobs[:2]}
    seen: list[list[JobState]] = []
    step_beside(scheduler, site.platform.deployer(), lambda: seen.append(states(site, *jobs)))
    assert seen == [[D, D] + [Q] * (len(jobs) - 2)]


def test_deployer_begins_no_next_step_while_older_jobs_wait_for_worker(site: Site, scheduler: SilentScheduler) -> None:
    jobs = site.accept_all(WORKERS + 1)
    scheduler.silent = {job.id for job in jobs}
    asked: list[int] = []

    def begin_next() -> bool:
        asked.append(len(scheduler.asked_for))
        scheduler.answer.set()
        return True

    threading.Timer(0.5, scheduler.answer.set).start()
    assert site.platform.deployer().step(begin_next) == WORKERS + 1
    assert set(asked) <= {WORKERS + 1}
    assert states(site, *jobs) == [Q] * (WORKERS + 1)


def test_deployer_asks_again_whether_next_step_may_begin(site: Site, scheduler: SilentScheduler) -> None:
    job = site.accept()
    scheduler.silent = {job.id}
    replies = [False, False, True]

    def begin_next() -> bool:
        reply = replies.pop(0)
        if reply:
            threading.Timer(0.1, scheduler.answer.set).start()
        return reply

    assert site.platform.deployer().step(begin_next) == 1
    assert replies == []


@ONLY_ARRAYS
def test_deployer_submits_array_of_step_while_single_job_is_unanswered(site: Site, scheduler: SilentScheduler) -> None:
    single, array = site.accept("single"), elements(site, "array: 0-4")
    scheduler.silent = {single.id}
    seen: list[list[JobState]] = []
    assert step_beside(scheduler, site.platform.deployer(), lambda: seen.append(states(site, single, *array))) == 6
    assert seen == [[D] + [Q] * 5]
    assert isinstance(scheduler, ArrayScheduler) and [len(plan.tasks) for plan in scheduler.arrays] == [5]


@ONLY_ARRAYS
def test_deployer_submits_later_array_and_job_while_array_is_unanswered(
    site: Site, scheduler: SilentArrayScheduler
) -> None:
    fleet, deployer = ArraySite(site, scheduler), site.platform.deployer()
    array = fleet.accept("array: 0-4")
    scheduler.silent = {array}

    def submit_others() -> None:
        others = [*elements(site, "array: 0-2", "other"), site.accept("single")]
        assert deployer.step() == 4
        assert (fleet.states(array), states(site, *others)) == ([D] * 5, [Q] * 4)

    assert step_beside(scheduler, deployer, submit_others) == 5
    assert (fleet.states(array), fleet.sizes) == ([Q] * 5, [3, 5])
    assert len(set(tokens(scheduler))) == len(scheduler.submitted) == 9


def test_deployer_enforces_array_limit_while_elements_are_unanswered(
    site: Site, scheduler: SilentScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of eight elements are submitted, singly or as a native array, and the scheduler has confirmed none."""
    for name in ("BATCH", "ELEMENTS"):
        monkeypatch.setattr(f"ffdl_batch.services.deployment.deployer.{name}", 1)
    result = site.send("array", manifest("array: 0-7%2"))
    jobs, deployer = site.platform.storage.store.elements_of(result.id), site.platform.deployer()
    scheduler.silent = {result.id, jobs[0].id, jobs[1].id}

    def step_again() -> None:
        asked = list(scheduler.asked_for)
        for _ in range(3):
            site.clock.tick(20)
            assert deployer.step() == 0
        assert scheduler.asked_for == asked

    assert step_beside(scheduler, deployer, step_again) == 2
    for _ in range(3):
        site.clock.tick(200)
        deployer.step()
    assert states(site, *jobs) == [Q] * 2 + [P] * 6


def test_lost_claims_end_without_those_of_running_steps(site: Site, scheduler: SilentScheduler) -> None:
    """Else the answer of the scheduler would be dropped, and its job be searched for."""
    store, owner = site.platform.storage.store, site.platform.leases.owner
    first, deployer = site.accept("first"), site.platform.deployer()
    scheduler.silent = {first.id}

    def lose_claim() -> None:
        second = site.accept("second")
        assert [one.job.id for one in store.claim_deployable(owner, limit=9, lease_s=3600.0)] == [second.id]
        assert deployer.step() == 0
        deployer.end_lost_claims()
        assert deployer.step() == 1
        assert states(site, first, second) == [D, Q]

    assert step_beside(scheduler, deployer, lose_claim) == 1
    assert (len(scheduler.submitted), scheduler.withdrawn) == (2, [])
    assert deployer.step() == 0


def test_two_refusals_of_steps_side_by_side_count_as_one(site: Site, scheduler: SilentScheduler) -> None:
    """As they do within one step; otherwise a limit that two jobs met at the same time would delay others longer."""
    first, deployer = site.accept("first"), site.platform.deployer()
    scheduler.silent, scheduler.full = {first.id}, "Job violates accounting/QOS policy (job submit limit)"
    limits = site.platform.adapters.submit_limits
    waits: list[float] = []

    def refuse_another() -> None:
        second = site.accept("second")
        deployer.step()
        waits.append(limits.wait_s(second))

    step_beside(scheduler, deployer, refuse_another)
    assert states(site, first) == [P]
    assert waits == [limits.wait_s(first)]
