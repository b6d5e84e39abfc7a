"""Jobs that wait for trainings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ffdl_batch.domain.job import Change, Job
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.views import Resume
from ffdl_batch.services.cancel import cancel_job
from ffdl_batch.services.deploy import BATCH, Deployer
from ffdl_batch.services.planning import plan_submission
from ffdl_batch.services.resume import resume_job
from ffdl_batch.services.submit import submit
from ffdl_batch.services.waiting import LONGEST_PAUSE_S
from ffdl_batch.store import Store, StoreUnavailable
from tests.unit.services.conftest import Site


def after(site: Site, key: str, text: str, backend: str = "fake") -> str:
    """Submit a job that depends on others; its id, or the refusal."""
    submission = site.submission(key, options={"dependency": text}, backend=backend)
    (result,) = submit(site.platform, site.caller, [submission])
    return result.id or str(result.problem)


def move(site: Site, job_id: str, *states: JobState, code: str = "000") -> None:
    """What the watcher would write."""
    steps = tuple((state, site.clock.now()) for state in states)
    assert site.platform.store.apply(site.job(job_id), Change(steps, error_code=code)) is not None


def goes_on(site: Site, job_id: str) -> None:
    """Its attempt ended, and the daemon is to make the next one."""
    change = Change(((JobState.PENDING, site.clock.now()),), cause=Cause.REQUEUED.value)
    assert site.platform.store.apply(site.job(job_id), change) is not None


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


# ------------------------------------------------------------------------------------------------------- waiting


def test_dependency_waits_for_job_end_across_continuations(site: Site) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}")
    deployer.step()
    for states in [(JobState.PROCESSING,), (JobState.STORING,)]:
        move(site, first.id, *states)
        deployer.step()
        assert waits(site.job(second)) == f"Dependency: {first.id} is {states[-1]}"
    goes_on(site, first.id)
    deployer.step()
    assert (site.job(first.id).state, site.job(first.id).attempt) == (JobState.QUEUED, 2)
    deployer.step()
    assert waits(site.job(second)) == f"Dependency: {first.id} is QUEUED"
    move(site, first.id, JobState.PROCESSING, JobState.COMPLETED)
    deployer.step()
    job = site.job(second)
    assert (job.state, job.pending_reason, sent(site, second)) == (JobState.QUEUED, "", "")


@pytest.mark.parametrize(
    ("kind", "end", "goes"),
    [
        ("afterok", JobState.COMPLETED, True),
        ("afterok", JobState.FAILED, False),
        ("afterok", JobState.CANCELLED, False),
        ("aftercorr", JobState.COMPLETED, True),
        ("aftercorr", JobState.FAILED, False),
        ("afternotok", JobState.COMPLETED, False),
        ("afternotok", JobState.FAILED, True),
        ("afternotok", JobState.CANCELLED, True),
        ("afterany", JobState.COMPLETED, True),
        ("afterany", JobState.FAILED, True),
        ("afterany", JobState.CANCELLED, True),
        ("after", JobState.CANCELLED, True),
    ],
)
def test_dependency_kind_decides_outcome_for_each_end_state(site: Site, kind: str, end: JobState, goes: bool) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    second = after(site, "second", f"{kind}:{first.id}")
    deployer.step()
    move(site, first.id, end, code="C201" if end is JobState.FAILED else "000")
    while deployer.step():
        pass
    job = site.job(second)
    if goes:
        assert (job.state, sent(site, second)) == (JobState.QUEUED, "")
        return
    shown = f"{first.id} is {end}" + (" (C201)" if end is JobState.FAILED else "")
    expected = f"its dependency can never be satisfied: {kind}:{first.id} cannot come true, {shown}"
    assert (job.state, job.error_code, job.message) == (JobState.FAILED, "C105", expected)
    assert sent(site, second) is None


def test_dependency_on_already_ended_job_is_decided_at_once(site: Site) -> None:
    first = site.deployed("first")
    move(site, first.id, JobState.COMPLETED)
    second = after(site, "second", f"afterok:{first.id}")
    third = after(site, "third", f"afternotok:{first.id}")
    assert Deployer(site.platform).step() == 2
    assert (site.job(second).state, site.job(third).state) == (JobState.QUEUED, JobState.FAILED)


def test_dependency_waits_while_halted_job_may_be_resumed(site: Site) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}")
    deployer.step()
    move(site, first.id, JobState.HALTED)
    deployer.step()
    assert waits(site.job(second)) == f"Dependency: {first.id} is HALTED and may be resumed"
    resume_job(site.platform, site.caller, first.id, Resume())
    deployer.step()
    move(site, first.id, JobState.COMPLETED)
    deployer.step()
    assert site.job(second).state is JobState.QUEUED


@pytest.mark.parametrize("anew", [False, True], ids=["the same daemon", "its next life"])
def test_dependency_on_cancelled_halted_job_is_decided_for_each_kind(site: Site, anew: bool) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    kinds = ("afterok", "afterany", "afternotok", "after", "aftercorr")
    jobs = {kind: after(site, kind, f"{kind}:{first.id}") for kind in kinds}
    deployer.step()
    move(site, first.id, JobState.HALTED)
    deployer.step()
    assert {waits(site.job(job)) for job in jobs.values()} == {f"Dependency: {first.id} is HALTED and may be resumed"}
    cancel_job(site.platform, site.caller, first.id)
    if anew:
        site.clock.tick(LONGEST_PAUSE_S)
        deployer = Deployer(site.platform)
    while deployer.step():
        pass
    assert {kind: str(site.job(job).state) for kind, job in jobs.items()} == {
        "afterok": "FAILED",
        "aftercorr": "FAILED",
        "afterany": "QUEUED",
        "afternotok": "QUEUED",
        "after": "QUEUED",
    }
    assert f"{first.id} is CANCELLED" in site.job(jobs["afterok"]).message


def test_dependency_is_checked_again_when_both_jobs_are_resumed(site: Site) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}")
    deployer.step()
    move(site, first.id, JobState.FAILED, code="C201")
    deployer.step()
    assert site.job(second).state is JobState.FAILED
    resume_job(site.platform, site.caller, first.id, Resume())
    resume_job(site.platform, site.caller, second, Resume())
    deployer.step()
    assert "is QUEUED" in waits(site.job(second)) or "is PENDING" in waits(site.job(second))
    move(site, first.id, JobState.COMPLETED)
    deployer.step()
    assert sent(site, second) == ""


def test_dependency_list_waits_for_all_jobs_and_passes_native_ids_to_scheduler(site: Site) -> None:
    deployer = Deployer(site.platform)
    first, other = site.accept("first"), site.accept("other")
    second = after(site, "second", f"afterok:{first.id}:4711:{other.id},afterany:4712")
    deployer.step()
    move(site, first.id, JobState.COMPLETED)
    deployer.step()
    assert waits(site.job(second)) == f"Dependency: {other.id} is QUEUED"
    move(site, other.id, JobState.COMPLETED)
    deployer.step()
    assert sent(site, second) == "afterok:4711,afterany:4712"


def test_dependency_alternatives_need_one_satisfied_job(site: Site) -> None:
    deployer = Deployer(site.platform)
    first, other = site.accept("first"), site.accept("other")
    second = after(site, "second", f"afterok:{first.id}?afterok:{other.id}")
    deployer.step()
    move(site, first.id, JobState.FAILED, code="C202")
    deployer.step()
    assert waits(site.job(second)) == f"Dependency: {other.id} is QUEUED"
    move(site, other.id, JobState.COMPLETED)
    deployer.step()
    assert sent(site, second) == ""


def test_dependency_fails_job_if_no_alternative_can_be_satisfied(site: Site) -> None:
    deployer = Deployer(site.platform)
    first, other = site.accept("first"), site.accept("other")
    second = after(site, "second", f"afterok:{first.id}?afternotok:{other.id}")
    deployer.step()
    move(site, first.id, JobState.CANCELLED)
    move(site, other.id, JobState.COMPLETED)
    deployer.step()
    job = site.job(second)
    assert job.state is JobState.FAILED
    assert f"afterok:{first.id}" in job.message and f"afternotok:{other.id}" in job.message


def test_dependency_after_is_satisfied_by_start_and_optional_delay(site: Site) -> None:
    deployer = Deployer(site.platform)
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
    deployer = Deployer(site.platform)
    site.platform.adapters.use("other", site.scheduler)
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}", backend="other")
    deployer.step()
    assert waits(site.job(second)).startswith("Dependency: ")
    move(site, first.id, JobState.COMPLETED)
    deployer.step()
    assert (site.job(second).state, site.job(second).backend) == (JobState.QUEUED, "other")


def test_cancel_ends_job_that_waits_for_dependency(site: Site) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}")
    deployer.step()
    assert cancel_job(site.platform, site.caller, second).state == "CANCELLED"
    move(site, first.id, JobState.COMPLETED)
    deployer.step()
    assert sent(site, second) is None


def test_dependency_failure_propagates_to_dependent_jobs(site: Site) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}")
    third = after(site, "third", f"afterok:{second}")
    deployer.step()
    move(site, first.id, JobState.CANCELLED)
    while deployer.step():
        pass
    assert [site.job(one).state for one in (second, third)] == [JobState.FAILED, JobState.FAILED]
    assert f"{second} is FAILED (C105)" in site.job(third).message


def test_dependency_failure_ends_job_when_scheduler_is_down(site: Site) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}")
    deployer.step()
    site.scheduler.down = True
    move(site, first.id, JobState.CANCELLED)
    deployer.step()
    assert site.job(second).state is JobState.FAILED


# ---------------------------------------------------------------------------------------------------- what it costs


def test_deployer_writes_nothing_while_dependencies_do_not_change(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    deployer = Deployer(site.platform)
    first = site.accept("first")
    jobs = [after(site, f"k{n}", f"afterok:{first.id}") for n in range(5)]
    deployer.step()
    deployer.step()
    before = [site.job(job) for job in jobs]
    asked: list[str] = []
    for name in ("release", "put_off", "make_due", "apply_many", "apply", "get_many", "histories"):
        monkeypatch.setattr(Store, name, noted(getattr(Store, name), asked))
    observed = site.scheduler.observe_calls
    assert deployer.step() == 0
    assert asked == ["get_many"], "how is it with all that is waited for"
    assert site.scheduler.observe_calls == observed
    asked.clear()
    site.clock.tick(LONGEST_PAUSE_S)
    deployer.step()
    assert asked == ["get_many", "get_many", "apply_many", "put_off"], "one of each for all jobs together"
    assert [site.job(job) for job in jobs] == before


def test_dependency_is_satisfied_after_daemon_restarts(site: Site) -> None:
    first = site.accept("first")
    second = after(site, "second", f"afterok:{first.id}")
    for _ in range(6):
        Deployer(site.platform).step()
        site.clock.tick(LONGEST_PAUSE_S)
    move(site, first.id, JobState.COMPLETED)
    Deployer(site.platform).step()
    assert site.job(second).state is JobState.QUEUED


def test_deployer_leaves_no_lease_when_store_fails_during_dependency_check(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site.deployed("first")
    second = after(site, "second", f"afterok:{first.id}")

    def fail(*_: object) -> None:
        raise StoreUnavailable("database is locked")

    with monkeypatch.context() as broken, pytest.raises(StoreUnavailable):
        broken.setattr(Store, "apply_many", fail)
        Deployer(site.platform).step()
    move(site, first.id, JobState.COMPLETED)
    Deployer(site.platform).step()
    assert site.job(second).state is JobState.QUEUED


def test_deployer_submits_independent_job_despite_many_waiting_jobs(site: Site) -> None:
    first = site.accept("first")
    deployer = Deployer(site.platform)
    deployer.step()
    waiting = [site.submission(f"w{n}", options={"dependency": f"afterok:{first.id}"}) for n in range(BATCH + 3)]
    submit(site.platform, site.caller, waiting)
    site.clock.tick(1)
    last = site.accept("last")
    assert deployer.step() == 1
    assert site.job(last.id).state is JobState.QUEUED


# ------------------------------------------------------------------------------------------- plans and refusals


def test_plan_submission_shows_only_scheduler_part_of_dependency(site: Site) -> None:
    first = site.deployed("first")
    option = {"dependency": f"afterok:{first.id}:4711"}
    plan_submission(site.platform, site.caller, site.submission("x", options=option), trial=False)
    assert site.scheduler.planned[-1].spec.batch.dependency == "afterok:4711"


def test_submit_passes_dependency_on_unknown_job_to_scheduler(site: Site) -> None:
    after(site, "second", "afterok:training-00000000z")
    assert site.scheduler.planned[-1].spec.batch.dependency == "afterok:training-00000000z"


def test_submit_passes_dependency_on_other_users_job_to_scheduler(site: Site) -> None:
    first = site.accept("first")
    site.platform.uid += 1
    after(site, "second", f"afterok:{first.id}")
    assert site.scheduler.planned[-1].spec.batch.dependency == f"afterok:{first.id}"


def test_submit_rejects_mixed_dependency_operators(site: Site) -> None:
    first = site.accept("first")
    assert "one is enough" in after(site, "second", f"afterok:{first.id}?afterok:{first.id},afterany:{first.id}")
    assert [job.id for job in site.platform.store.list_jobs(uid=None)] == [first.id]
