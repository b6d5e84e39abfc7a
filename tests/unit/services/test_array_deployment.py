"""Arrays on their way to the scheduler: handed over together, found after a crash, held back by their limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.job.array import chunk_name, mark_of, read_marks
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.views import Resume
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.services.deployment.deployer import BATCH
from ffdl_batch.services.deployment.step_lease import StepLease
from ffdl_batch.services.deployment.waiting_jobs import PAUSE_S, Throttle
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import halt_job
from ffdl_batch.services.job_files.attempt_directory import begun_at, mark_begun, unmark_begun
from tests.unit.services.conftest import ArraySite, Site, manifest


def test_deployer_submits_array_larger_than_batch_as_one_native_array(fleet: ArraySite) -> None:
    count = 2 * BATCH
    array = fleet.accept(f"array: 0-{count - 1}")
    fleet.deploy()
    jobs = fleet.elements(array)
    assert {job.state for job in jobs} == {JobState.QUEUED}
    assert fleet.sizes == [count]
    assert [job.native_id for job in jobs] == [f"100_{n}" for n in range(count)]
    assert {entry.native_id for entry in fleet.site.platform.storage.store.attempts(jobs[7].id)} == {"100_7"}
    assert fleet.site.states(jobs[7]) == ["PENDING", "DEPLOYING", "QUEUED"]


def test_deployer_splits_array_by_max_array_size(fleet: ArraySite) -> None:
    fleet.scheduler.max_array_size = 4
    array = fleet.accept("array: 0-9")
    fleet.deploy()
    assert fleet.sizes == [4, 4, 2]
    assert [job.native_id for job in fleet.elements(array)] == [f"{100 + n // 4}_{n % 4}" for n in range(10)]
    assert [plan.chunk.token for plan in fleet.scheduler.arrays] == [f"{array}-{n}" for n in (1, 2, 3)]


def test_deployer_writes_tables_for_chunk_from_which_tasks_make_directories_and_marks(fleet: ArraySite) -> None:
    array = fleet.accept("array: '3,7'")
    fleet.deploy()
    chunk = fleet.site.platform.storage.root.array(array).chunk(1)
    attempts = [fleet.site.attempt(job) for job in fleet.elements(array)]
    assert not any(Path(attempt.path).exists() for attempt in attempts)
    assert Path(chunk.elements).stat().st_mode & 0o777 == 0o600
    for job in fleet.elements(array):
        fleet.start(job)
    assert Path(chunk.tasks).read_text() == f"3 {attempts[0].path}\n7 {attempts[1].path}\n"
    assert Path(chunk.script).stat().st_mode & 0o777 == 0o700
    marks = [Path(attempt.submit_begun).read_text().splitlines()[1:] for attempt in attempts]
    assert marks == [[f"array {array}-1 3"], [f"array {array}-1 7"]]
    assert Path(fleet.site.platform.storage.root.job(fleet.elements(array)[0].id).template.launch).is_file()


def test_deployer_submits_each_array_separately_and_single_jobs_and_elements_with_other_resources_alone(
    fleet: ArraySite,
) -> None:
    arrays = [fleet.accept("array: 0-1", "a"), fleet.accept("array: 0-3", "b")]
    single, odd = fleet.site.accept("c"), fleet.elements(arrays[1])[2]
    halt_job(fleet.site.platform.storage, fleet.site.platform.adapters, fleet.site.caller, odd.id)
    resume_job(
        fleet.site.platform.storage,
        fleet.site.platform.adapters,
        fleet.site.platform.store_checks,
        fleet.site.caller,
        odd.id,
        Resume(gpus=3),
    )
    fleet.deploy()
    assert sorted(fleet.sizes) == [2, 3]
    assert [set(fleet.states(array)) for array in arrays] == [{JobState.QUEUED}] * 2
    assert not any("_" in fleet.site.job(job.id).native_id for job in (single, odd))


@pytest.mark.parametrize(("elements", "refuse"), [("5", False), ("0-2", True)])
def test_deployer_submits_single_jobs_for_one_element_or_if_backend_refuses_arrays(
    fleet: ArraySite, elements: str, refuse: bool
) -> None:
    fleet.scheduler.refuse_arrays = refuse
    array = fleet.accept(f"array: {elements}")
    fleet.deploy()
    assert (fleet.sizes, set(fleet.states(array))) == ([], {JobState.QUEUED})
    assert [native.task for native, _ in fleet.scheduler.submitted] == [None] * len(fleet.elements(array))


def test_deployer_submits_next_attempt_of_element_as_single_job(fleet: ArraySite) -> None:
    array = fleet.accept("array: 0-1")
    fleet.deploy()
    first, second = fleet.elements(array)
    fleet.scheduler.run(NativeId.parse(first.native_id))
    fleet.site.watch()
    fleet.scheduler.end(NativeId.parse(first.native_id), EndCause.NODE_FAIL, fleet.site.clock.now())
    fleet.site.clock.tick(60)
    fleet.site.watch()
    fleet.deploy()
    again = fleet.site.job(first.id)
    assert (again.attempt, again.state, "_" in again.native_id) == (2, JobState.QUEUED, False)
    assert fleet.sizes == [2]
    assert fleet.site.job(second.id).native_id == "100_1"
    assert fleet.scheduler.planned[-1].array_dir is None


def test_deployer_fails_every_element_when_submission_is_rejected(fleet: ArraySite) -> None:
    fleet.scheduler.refuse = "Invalid account or account/partition combination specified"
    array = fleet.accept("array: 0-2")
    fleet.deploy()
    assert set(fleet.states(array)) == {JobState.FAILED}
    assert {(job.error_code, "Invalid account" in job.message) for job in fleet.elements(array)} == {("S101", True)}
    assert fleet.scheduler.tried == [3]


def test_deployer_keeps_whole_array_pending_after_unknown_submission_failure(fleet: ArraySite) -> None:
    fleet.scheduler.fails = "sbatch exited with status 1 (fork: Cannot allocate memory)"
    array = fleet.accept("array: 0-4")
    fleet.deploy(times=3)
    assert set(fleet.states(array)) == {JobState.PENDING}
    assert {job.pending_reason for job in fleet.elements(array)} == {fleet.scheduler.fails}
    assert fleet.scheduler.tried == [5]
    assert not any(Path(fleet.site.attempt(job).submit_begun).exists() for job in fleet.elements(array))
    fleet.scheduler.fails = ""
    steps(fleet, 3, 600)  # one of them goes for all
    assert set(fleet.states(array)) == {JobState.QUEUED}


def steps(fleet: ArraySite, times: int, pause_s: float) -> None:
    """So many steps of deployers, each after a pause."""
    for _ in range(times):
        fleet.site.clock.tick(pause_s)
        fleet.deploy()


def settle(fleet: ArraySite) -> None:
    """Some steps, with time for every pause in between."""
    steps(fleet, 4, 40)


def test_deployer_submits_elements_up_to_job_submit_limit_and_keeps_rest_pending(fleet: ArraySite) -> None:
    fleet.scheduler.room = 20
    array = fleet.accept("array: 0-63")
    fleet.deploy()
    states = fleet.states(array)
    assert states[:20] == [JobState.QUEUED] * 20
    assert states.count(JobState.QUEUED) == 20
    waiting = fleet.elements(array)[-1]
    assert "job submit limit" in waiting.pending_reason
    assert begun_at(fleet.site.attempt(waiting)) is None
    assert len(fleet.scheduler.tried) < 10
    fleet.scheduler.room = None
    steps(fleet, 5, 600)
    assert set(fleet.states(array)) == {JobState.QUEUED}
    assert len(fleet.scheduler.submitted) == 64


def test_deployer_retries_array_without_marks_when_scheduler_is_unreachable(fleet: ArraySite) -> None:
    array = fleet.accept("array: 0-2")
    fleet.scheduler.down = True
    for _ in range(3):
        fleet.deploy()
        fleet.site.clock.tick(120)
    assert set(fleet.states(array)) == {JobState.DEPLOYING}
    assert {begun_at(fleet.site.attempt(job)) for job in fleet.elements(array)} == {None}
    assert all("does not answer" in job.pending_reason for job in fleet.elements(array))
    fleet.scheduler.down = False
    settle(fleet)
    assert set(fleet.states(array)) == {JobState.QUEUED}
    assert len(fleet.scheduler.submitted) == 3


def outlive_requests(fleet: ArraySite, array: str) -> None:
    """Let the credential's life pass since the scheduler was asked. Marks have the real clock's time."""
    root = fleet.site.platform.storage.root
    places = [*map(fleet.site.attempt, fleet.elements(array)), root.array(array).chunk(1)]
    asked_at = [begun_at(place) or 0.0 for place in places]
    fleet.site.clock.at = max(fleet.site.clock.at, *asked_at) + 400


Q, P = JobState.QUEUED, JobState.PENDING
STEPS = ("claimed", "deploying", "planned together", "chunk written", "chunk marked", "chunk submitted", "queued")
ALONE = ("written", "template", "chunk written", "chunk marked", "chunk submitted")


@pytest.mark.parametrize(
    ("output", "step"), [*(("out.txt", step) for step in STEPS), *(("out-%a.txt", step) for step in ALONE)]
)
def test_deployer_submits_each_element_once_after_crash_at_any_step(fleet: ArraySite, output: str, step: str) -> None:
    class Crashed(BaseException):
        """Stands for SIGKILL: nothing after it runs in that step."""

    def crash(reached: str) -> None:
        if reached == step:
            raise Crashed

    array = fleet.accept(f"array: 0-4, output: {output}")
    with pytest.raises(Crashed):
        fleet.site.platform.deployer(
            crash,
        ).step()
    outlive_requests(fleet, array)
    settle(fleet)
    assert_submitted_once(fleet, array)
    natives = {str(native): token for native, token in fleet.scheduler.submitted}
    assert all(natives[job.native_id] == job.token for job in fleet.elements(array))


def assert_submitted_once(fleet: ArraySite, array: str) -> None:
    assert set(fleet.states(array)) == {JobState.QUEUED}
    assert sorted(token for _, token in fleet.scheduler.submitted) == sorted(j.token for j in fleet.elements(array))


def test_deployer_adopts_every_element_after_lost_reply(fleet: ArraySite) -> None:
    fleet.scheduler.lose_reply = True
    array = fleet.accept("array: 0-99")
    fleet.deploy()
    assert set(fleet.states(array)) == {JobState.DEPLOYING}
    assert all(job.uncertain_since is not None for job in fleet.elements(array))
    fleet.scheduler.lose_reply = False
    settle(fleet)
    assert set(fleet.states(array)) == {JobState.QUEUED}
    assert fleet.sizes == [100]
    assert fleet.scheduler.find_calls <= 2, "one element finds out that the scheduler answers again, then all others"


def test_deployer_resubmits_lost_array_request_after_credential_lifetime(fleet: ArraySite) -> None:
    fleet.scheduler.swallow = True
    array = fleet.accept("array: 0-4")
    fleet.deploy()
    fleet.scheduler.swallow = False
    steps(fleet, 10, 25)
    assert fleet.scheduler.submitted == []
    outlive_requests(fleet, array)
    settle(fleet)
    assert_submitted_once(fleet, array)


def test_mark_begun_keeps_earlier_native_array_marks(fleet: ArraySite) -> None:
    """A request that was abandoned may still arrive, and is found under its own name then."""
    job = fleet.site.deployed()
    attempt = fleet.site.attempt(job)
    first, second = (mark_of(chunk_name("array-0a1b2c3d4", number), "3") for number in (1, 2))
    mark_begun(attempt, by="one daemon", task=first)
    mark_begun(attempt, by="another", task=second)
    mark_begun(attempt, by="another")
    found = read_marks(Path(attempt.submit_begun).read_text())
    assert found == [("array-0a1b2c3d4-1", "3"), ("array-0a1b2c3d4-2", "3")]
    unmark_begun(attempt, by="one daemon")
    assert begun_at(attempt) is not None
    unmark_begun(attempt, by="another")
    assert begun_at(attempt) is None


def test_deployer_adopts_native_id_from_claim_of_element(fleet: ArraySite) -> None:
    fleet.scheduler.swallow = True
    array = fleet.accept("array: 0-1")
    fleet.deploy()
    claimed = fleet.elements(array)[1]
    claim = Path(fleet.start(claimed).claim)
    claim.mkdir()
    (claim / "owner.json").write_text('{"native_id": "77_1"}')
    settle(fleet)
    assert [job.native_id for job in fleet.elements(array)] == ["", "77_1"]


def test_deployer_passes_array_limit_to_scheduler_and_holds_further_chunks(fleet: ArraySite) -> None:
    fleet.scheduler.max_array_size = 5
    array = fleet.accept("array: 0-7%2")
    fleet.deploy(3)
    assert (fleet.sizes, fleet.scheduler.arrays[0].chunk.limit) == ([5], 2)
    assert [job.native_id != "" for job in fleet.elements(array)] == [True] * 5 + [False] * 3
    assert "2 elements of its array run at once" in fleet.elements(array)[7].pending_reason


def elements(site: Site, batch: str) -> list[Job]:
    return site.platform.storage.store.elements_of(site.send("k", manifest(batch)).id)


def test_deployer_enforces_array_limit_when_elements_are_submitted_singly(site: Site) -> None:
    jobs = elements(site, "array: 0-4%2")
    deployer = site.platform.deployer()
    for _ in range(3):
        deployer.step()
    jobs = [site.job(job.id) for job in jobs]
    assert [job.state for job in jobs] == [Q, Q, P, P, P]
    assert "2 elements of its array run at once" in jobs[2].pending_reason
    site.scheduler.end(NativeId.parse(jobs[0].native_id), EndCause.CANCELLED, site.clock.now())
    site.clock.tick(60)
    site.watch()
    deployer.step()
    states = [site.job(job.id).state for job in jobs]
    assert states[0].is_terminal
    assert states[1:] == [Q, Q, P, P]


def test_deployer_releases_held_elements_after_taking_over(site: Site) -> None:
    jobs = elements(site, "array: 0-2%1")
    site.deploy()
    site.move(site.job(jobs[0].id), JobState.CANCELLED)
    site.deploy()
    assert [site.job(job.id).state for job in jobs] == [JobState.CANCELLED, Q, P]


def lease(site: Site, throttle: Throttle, lease_s: float) -> list[int]:
    """The elements, by index, that the throttle lets go of those that are leased next."""
    leased = site.platform.storage.store.claim_deployable("me", limit=2, lease_s=lease_s)
    of = StepLease(site.platform.storage.store, leased[0].lease_token)
    found = [one.job.spec.element for one in throttle.sort_out(of, leased)]
    return [element.index for element in found if element is not None]


def test_throttle_releases_elements_by_index_when_capacity_frees_between_calls(site: Site) -> None:
    elements(site, "array: 0-5%1")
    throttle = Throttle(site.platform.storage.store, site.platform.adapters)
    assert lease(site, throttle, 1000.0) == [0]  # and ends at once: there is room for another
    assert lease(site, throttle, 1000.0) == []  # 2 and 3, of which nobody knew, while 1 waits
    throttle.wake()
    assert lease(site, throttle, 1000.0) == [1]
    throttle.wake()
    throttle.wake()  # 2 was not leased meanwhile
    assert lease(site, throttle, 1000.0) == [2]


def test_throttle_skips_cancelled_element_after_pause(site: Site) -> None:
    jobs = elements(site, "array: 0-5%1")
    throttle = Throttle(site.platform.storage.store, site.platform.adapters)
    assert lease(site, throttle, 1.0) == [0]
    for job in jobs[:2]:
        site.move(site.job(job.id), JobState.CANCELLED)
    assert lease(site, throttle, 1.0) == []  # 2 and 3: as far as anybody has told, 1 comes before
    site.clock.tick(PAUSE_S + 1)
    assert lease(site, throttle, 1.0) == [2]


def test_deployer_parks_array_that_cannot_be_prepared_and_submits_others(
    fleet: ArraySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd text")

    array, other = fleet.accept("array: 0-9"), fleet.site.accept("other")
    with monkeypatch.context() as broken:
        broken.setattr(fleet.scheduler, "plan_array", fail)
        fleet.deploy()
    assert fleet.site.job(other.id).state is JobState.QUEUED
    assert all("ValueError in the daemon: odd text" in job.pending_reason for job in fleet.elements(array))
    fleet.site.clock.tick(30)
    fleet.deploy()
    assert set(fleet.states(array)) == {JobState.QUEUED}
