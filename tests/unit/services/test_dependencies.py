"""Jobs that wait for trainings."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.views import Resume
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.deployment.deployer import BATCH
from ffdl_batch.services.deployment.waiting_jobs import LONGEST_DEPENDENCY_PAUSE_S
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.submission.dry_run import plan_submission
from ffdl_batch.services.submission.job_dependencies import read_dependency
from ffdl_batch.services.submission.submit import submit
from ffdl_batch.store import Store, StoreUnavailable
from tests.unit.services.conftest import Site

ENDS = (JobState.COMPLETED, JobState.FAILED)


def after(site: Site, key: str, text: str, backend: str = "fake") -> str:
    """Submit a job that depends on others; its id, or the refusal."""
    result = site.send(key, options={"dependency": text}, backend=backend)
    return result.id or str(result.problem)


@dataclass
class Pair:
    """A job that a second one depends on, and a deployer that has made a step."""

    site: Site
    kind: str = "afterok"

    def __post_init__(self) -> None:
        self.deployer = self.site.platform.deployer()
        self.first = self.site.accept("first")
        self.second = after(self.site, "second", f"{self.kind}:{self.first.id}")
        self.deployer.step()

    def moves(self, *states: JobState, code: str = "000") -> None:
        """The first passes through states; the deployer makes a step."""
        move(self.site, self.first.id, *states, code=code)
        self.deployer.step()

    @property
    def job(self) -> Job:
        """The second one."""
        return self.site.job(self.second)


def move(site: Site, job_id: str, *states: JobState, code: str = "000") -> None:
    """What the watcher would write."""
    site.move(site.job(job_id), *states, error_code=code)


def goes_on(site: Site, job_id: str) -> None:
    """Its attempt ended, and the daemon is to make the next one."""
    site.move(site.job(job_id), JobState.PENDING, cause=Cause.REQUEUED)


def sent(site: Site, job_id: str) -> str | None:
    """The dependency that the scheduler got with the job's first attempt; None = it got no job."""
    if not any(token == f"{job_id}-1" for _, token in site.scheduler.submitted):
        return None
    return [one for one in site.scheduler.planned if one.token == f"{job_id}-1"][-1].spec.batch.dependency


def noted(method: Callable[..., object], calls: list[str]) -> Callable[..., object]:
    """`method`, which also notes its name when it is called."""

    def call(*args: object, **options: object) -> object:
        calls.append(method.__name__)
        return method(*args, **options)

    return call


def waits(job: Job) -> str:
    """Why a job waits."""
    assert job.state is JobState.PENDING, job
    return job.pending_reason


def test_dependency_waits_for_job_end_across_continuations(site: Site) -> None:
    pair = Pair(site)
    first = pair.first.id
    for state in (JobState.PROCESSING, JobState.STORING):
        pair.moves(state)
        assert waits(pair.job) == f"Dependency: {first} is {state}"
    goes_on(site, first)
    pair.deployer.step()
    assert (site.job(first).state, site.job(first).attempt) == (JobState.QUEUED, 2)
    pair.deployer.step()
    assert waits(pair.job) == f"Dependency: {first} is QUEUED"
    pair.moves(JobState.PROCESSING, JobState.COMPLETED)
    assert (pair.job.state, pair.job.pending_reason, sent(site, pair.second)) == (JobState.QUEUED, "", "")


@pytest.mark.parametrize(
    ("kind", "end", "goes"),
    [
        *(("afterok", end, end is JobState.COMPLETED) for end in ENDS),
        *(("aftercorr", end, end is JobState.COMPLETED) for end in ENDS),
        *(("afternotok", end, end is not JobState.COMPLETED) for end in ENDS),
        *(("afterany", end, True) for end in ENDS),
        ("after", JobState.FAILED, True),
    ],
)
def test_dependency_kind_decides_outcome_for_each_end_state(site: Site, kind: str, end: JobState, goes: bool) -> None:
    pair = Pair(site, kind)
    pair.moves(end, code="C201" if end is JobState.FAILED else "000")
    while pair.deployer.step():
        pass
    if goes:
        assert (pair.job.state, sent(site, pair.second)) == (JobState.QUEUED, "")
        return
    shown = f"{pair.first.id} is {end}" + (" (C201)" if end is JobState.FAILED else "")
    expected = f"its dependency can never be satisfied: {kind}:{pair.first.id} cannot come true, {shown}"
    assert (pair.job.state, pair.job.error_code, pair.job.message) == (JobState.FAILED, "C105", expected)
    assert sent(site, pair.second) is None


def test_dependency_on_already_ended_job_is_decided_at_once(site: Site) -> None:
    first = site.deployed("first")
    move(site, first.id, JobState.COMPLETED)
    second = after(site, "second", f"afterok:{first.id}")
    third = after(site, "third", f"afternotok:{first.id}")
    assert site.deploy() == 2
    assert (site.job(second).state, site.job(third).state) == (JobState.QUEUED, JobState.FAILED)


def test_dependency_waits_while_halted_job_may_be_resumed(site: Site) -> None:
    pair = Pair(site)
    pair.moves(JobState.HALTED)
    assert waits(pair.job) == f"Dependency: {pair.first.id} is HALTED and may be resumed"
    resume_job(
        site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, pair.first.id, Resume()
    )
    pair.deployer.step()
    pair.moves(JobState.COMPLETED)
    assert pair.job.state is JobState.QUEUED


@pytest.mark.parametrize("restarted", [False, True], ids=["the same daemon", "its next life"])
def test_dependency_on_cancelled_halted_job_is_decided_for_each_kind(site: Site, restarted: bool) -> None:
    deployer = site.platform.deployer()
    first = site.accept("first")
    fail, go = ("afterok", "aftercorr"), ("afterany", "afternotok", "after")
    jobs = {kind: after(site, kind, f"{kind}:{first.id}") for kind in fail + go}
    deployer.step()
    move(site, first.id, JobState.HALTED)
    deployer.step()
    assert {waits(site.job(job)) for job in jobs.values()} == {f"Dependency: {first.id} is HALTED and may be resumed"}
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, first.id)
    if restarted:
        site.clock.tick(LONGEST_DEPENDENCY_PAUSE_S)
        deployer = site.platform.deployer()
    while deployer.step():
        pass
    states = {kind: site.job(job).state for kind, job in jobs.items()}
    assert states == dict.fromkeys(fail, JobState.FAILED) | dict.fromkeys(go, JobState.QUEUED)
    assert f"{first.id} is CANCELLED" in site.job(jobs["afterok"]).message


def test_dependency_is_checked_again_when_both_jobs_are_resumed(site: Site) -> None:
    pair = Pair(site)
    pair.moves(JobState.FAILED, code="C201")
    assert pair.job.state is JobState.FAILED
    for job in (pair.first.id, pair.second):
        resume_job(
            site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, job, Resume()
        )
    pair.deployer.step()
    assert "is QUEUED" in waits(pair.job) or "is PENDING" in waits(pair.job)
    pair.moves(JobState.COMPLETED)
    assert sent(site, pair.second) == ""


def test_dependency_list_waits_for_all_jobs_and_passes_native_ids_to_scheduler(site: Site) -> None:
    deployer = site.platform.deployer()
    first, other = site.accept("first"), site.accept("other")
    second = after(site, "second", f"afterok:{first.id}:4711:{other.id},afterany:4712")
    deployer.step()
    move(site, first.id, JobState.COMPLETED)
    deployer.step()
    assert waits(site.job(second)) == f"Dependency: {other.id} is QUEUED"
    move(site, other.id, JobState.COMPLETED)
    deployer.step()
    assert sent(site, second) == "afterok:4711,afterany:4712"


def test_dependency_alternatives_need_one_satisfied_job_and_fail_without_one(site: Site) -> None:
    deployer = site.platform.deployer()
    first, other = site.accept("first"), site.accept("other")
    second = after(site, "second", f"afterok:{first.id}?afterok:{other.id}")
    third = after(site, "third", f"afterok:{first.id}?afternotok:{other.id}")
    deployer.step()
    move(site, first.id, JobState.FAILED, code="C202")
    deployer.step()
    assert {waits(site.job(one)) for one in (second, third)} == {f"Dependency: {other.id} is QUEUED"}
    move(site, other.id, JobState.COMPLETED)
    deployer.step()
    assert sent(site, second) == ""
    failed = site.job(third)
    assert failed.state is JobState.FAILED
    assert f"afterok:{first.id}" in failed.message and f"afternotok:{other.id}" in failed.message


def test_dependency_after_is_satisfied_by_start_and_optional_delay(site: Site) -> None:
    deployer = site.platform.deployer()
    first = site.accept("first")
    second = after(site, "second", f"after:{first.id}")
    later = after(site, "later", f"after:{first.id}+1")
    deployer.step()
    assert waits(site.job(second)) == f"Dependency: {first.id} is PENDING"
    move(site, first.id, JobState.DOWNLOADING)
    deployer.step()
    assert waits(site.job(second)) == f"Dependency: {first.id} is DOWNLOADING"
    move(site, first.id, JobState.PROCESSING)
    deployer.step()
    assert site.job(second).state is JobState.QUEUED
    assert waits(site.job(later)) == f"Dependency: {first.id} began less than 1 min ago"
    goes_on(site, first.id)  # it has begun, whatever became of that attempt
    deployer.step()
    site.clock.tick(59.5)
    deployer.step()
    assert site.job(later).state is JobState.PENDING
    site.clock.tick(0.5)
    deployer.step()
    assert site.job(later).state is JobState.QUEUED


def test_dependency_accepts_job_of_another_backend(site: Site) -> None:
    deployer = site.platform.deployer()
    site.platform.adapters.use("other", site.scheduler)
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}", backend="other")
    deployer.step()
    assert waits(site.job(second)).startswith("Dependency: ")
    move(site, first.id, JobState.COMPLETED)
    deployer.step()
    assert (site.job(second).state, site.job(second).backend) == (JobState.QUEUED, "other")


def test_cancel_ends_job_that_waits_for_dependency(site: Site) -> None:
    pair = Pair(site)
    assert cancel_job(site.platform.storage, site.platform.adapters, site.caller, pair.second).state == "CANCELLED"
    pair.moves(JobState.COMPLETED)
    assert sent(site, pair.second) is None


def test_dependency_failure_propagates_to_dependent_jobs_even_when_scheduler_is_down(site: Site) -> None:
    pair = Pair(site)
    third = after(site, "third", f"afterok:{pair.second}")
    site.scheduler.down = True
    pair.moves(JobState.CANCELLED)
    while pair.deployer.step():
        pass
    assert [site.job(one).state for one in (pair.second, third)] == [JobState.FAILED, JobState.FAILED]
    assert f"{pair.second} is FAILED (C105)" in site.job(third).message


def test_deployer_writes_nothing_while_dependencies_do_not_change(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    deployer = site.platform.deployer()
    first = site.accept("first")
    jobs = [after(site, f"k{n}", f"afterok:{first.id}") for n in range(5)]
    deployer.step()
    deployer.step()
    before = [site.job(job) for job in jobs]
    asked: list[str] = []
    for name in ("release", "make_due", "apply_many", "apply", "get_many", "histories"):
        monkeypatch.setattr(Store, name, noted(getattr(Store, name), asked))
    observed = site.scheduler.observe_calls
    assert deployer.step() == 0
    assert asked == ["get_many"], "how is it with all that is waited for"
    assert site.scheduler.observe_calls == observed
    asked.clear()
    site.clock.tick(LONGEST_DEPENDENCY_PAUSE_S)
    deployer.step()
    assert asked == ["get_many", "get_many", "apply_many", "release"], "one of each for all jobs together"
    assert [site.job(job) for job in jobs] == before


def test_deployer_leaves_no_lease_when_store_fails_during_dependency_check(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site.deployed("first")
    second = after(site, "second", f"afterok:{first.id}")
    with monkeypatch.context() as broken, pytest.raises(StoreUnavailable):
        broken.setattr(Store, "apply_many", Mock(side_effect=StoreUnavailable("database is locked")))
        site.deploy()
    move(site, first.id, JobState.COMPLETED)
    site.deploy()
    assert site.job(second).state is JobState.QUEUED


def test_deployer_submits_independent_job_despite_many_waiting_jobs(site: Site) -> None:
    first = site.accept("first")
    deployer = site.platform.deployer()
    deployer.step()
    waiting = [site.submission(f"w{n}", options={"dependency": f"afterok:{first.id}"}) for n in range(BATCH + 3)]
    submit(site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, waiting)
    site.clock.tick(1)
    last = site.accept("last")
    assert deployer.step() == 1
    assert site.job(last.id).state is JobState.QUEUED


def test_plan_submission_shows_only_scheduler_part_of_dependency(site: Site) -> None:
    first = site.deployed("first")
    option = {"dependency": f"afterok:{first.id}:4711"}
    plan_submission(
        site.platform.storage,
        site.platform.adapters,
        site.platform.node_exclusion,
        site.caller,
        site.submission("x", options=option),
        trial=False,
    )
    assert site.scheduler.planned[-1].spec.batch.dependency == "afterok:4711"


def test_submit_passes_dependency_on_unknown_or_other_users_job_to_scheduler(site: Site) -> None:
    first = site.accept("first")
    site.platform.storage.uid += 1
    for key, job in (("second", "training-00000000z"), ("third", first.id)):
        after(site, key, f"afterok:{job}")
        assert site.scheduler.planned[-1].spec.batch.dependency == f"afterok:{job}"


def test_submit_rejects_mixed_dependency_operators(site: Site) -> None:
    first = site.accept("first")
    assert "one is enough" in after(site, "second", f"afterok:{first.id}?afterok:{first.id},afterany:{first.id}")
    assert [job.id for job in site.platform.storage.store.list_jobs(uid=None)] == [first.id]


A, B = "training-00000000a", "training-00000000b"


def test_read_dependency_separates_job_conditions_from_scheduler_ids() -> None:
    read = read_dependency(f"afterok:12:{A}:13,after:{B}+5,afterany:{B},singleton,afterany:7+3", {A, B})
    assert [str(one) for one in read.conditions] == [f"afterok:{A}", f"after:{B}+5", f"afterany:{B}"]
    assert read.rest == "afterok:12:13,singleton,afterany:7+3"
    assert not read.any_of


def test_read_dependency_leaves_unknown_jobs_to_scheduler() -> None:
    read = read_dependency(f"afterok:{A},afterok:{B}", {A})
    assert read.rest == f"afterok:{B}"
    assert read_dependency("afterok:1?afterany:2", {A}).rest == "afterok:1?afterany:2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"afterok:{A}?afterok:{B},afterok:{B}", "has both ',' (all of them) and '?' (one is enough)"),
        (f"afterok:{A}?afterok:4711", "afterok:4711 is not a training of yours, but other alternatives are"),
        (f"expand:{A}", f"expand cannot be said of {A}"),
        (f"afterok:{A}+5", f"afterok:{A}+5: minutes can be counted from a begin only"),
    ],
)
def test_read_dependency_rejects_unsupported_conditions(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_dependency(text, {A, B})
    assert said in str(refused.value)
    assert [finding.path for finding in refused.value.findings] == ["batch.dependency"]
