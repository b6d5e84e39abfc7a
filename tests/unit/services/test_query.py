"""Views of jobs with several attempts."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.continuation import Checkpoint, Spent
from ffdl_batch.domain.job import AttemptEnd, Change, Job, JobId, Overrides
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.platform import Caller
from ffdl_batch.services.problems import Refused
from ffdl_batch.services.query import get_job, list_jobs
from tests.unit.services.array_site import with_arrays
from tests.unit.services.conftest import MANIFEST, Site


def test_get_job_includes_all_attempts_and_list_jobs_omits_them(site: Site) -> None:
    job = site.deployed()
    change = Change(
        ((JobState.PROCESSING, site.clock.now()), (JobState.DEPLOYING, site.clock.now())),
        Cause.REQUEUED,
        "the time limit was reached",
        "C203",
        {"spent": Spent(timeouts=1), "nodes": "n1"},
        AttemptEnd("timeout", gpu_seconds=5.0, owed=True),
        succeeded=True,
    )
    assert site.platform.store.apply(job, change) is not None
    view = get_job(site.platform, site.caller, job.id)
    assert [(a.number, a.interruption, a.error_code, a.nodes, a.owed) for a in view.attempts] == [
        (1, "timeout", "C203", "n1", True),
        (2, "", "", "", False),
    ]
    assert (view.attempt, view.native_id, view.nodes) == (2, "", "")
    (listed,) = list_jobs(site.platform, site.caller)
    assert (listed.attempts, listed.attempt) == ((), 2)


def test_job_view_uses_results_and_logs_of_last_attempt_that_ran(site: Site) -> None:
    def run_and_go_on(job: Job) -> None:
        steps = ((JobState.PROCESSING, site.clock.now()), (JobState.PENDING, site.clock.now()))
        assert site.platform.store.apply(job, Change(steps, Cause.REQUEUED)) is not None

    job = site.deployed()
    directory = site.platform.root.job(job.id)
    view = get_job(site.platform, site.caller, job.id)
    assert (view.results, view.logs) == (directory.attempt(1).results, directory.attempt(1).logs), "where they will be"
    assert [(a.results, a.logs) for a in view.attempts] == [("", "")]
    run_and_go_on(job)
    Deployer(site.platform).step()
    assert site.job(job.id).attempt == 2
    (listed,) = list_jobs(site.platform, site.caller)
    for view in (get_job(site.platform, site.caller, job.id), listed):
        assert (view.results, view.logs) == (directory.attempt(1).results, directory.attempt(1).logs)
    view = get_job(site.platform, site.caller, job.id)
    left = (directory.attempt(1).results, directory.attempt(1).logs)
    assert [(a.results, a.logs) for a in view.attempts] == [left, ("", "")]
    run_and_go_on(site.job(job.id))
    view = get_job(site.platform, site.caller, job.id)
    assert (view.results, view.logs) == (directory.attempt(2).results, directory.attempt(2).logs)


def test_job_view_keeps_shared_store_as_results_location(site: Site) -> None:
    job = site.deployed()
    for state in (JobState.PROCESSING, JobState.HALTED):
        change = Change(((state, site.clock.now()),), columns={"results": "/store/training"})
        job = site.platform.store.apply(job, change) or job
    view = get_job(site.platform, site.caller, job.id)
    assert view.results == "/store/training"
    assert view.attempts[0].results == site.platform.root.job(job.id).attempt(1).results


@pytest.mark.parametrize("by_the_head", [True, False], ids=["the head's", "the daemon's"])
def test_job_view_keeps_shared_store_while_next_attempt_is_deploying(site: Site, by_the_head: bool) -> None:
    job = site.deployed()
    now, own = site.clock.now(), site.platform.root.job(job.id).attempt(1)
    job = site.platform.store.apply(job, Change(((JobState.PROCESSING, now),), columns={"results": "/store/a"})) or job
    target = JobState.DEPLOYING if by_the_head else JobState.PENDING
    assert site.platform.store.apply(job, Change(((target, now),), Cause.REQUEUED, succeeded=by_the_head)) is not None
    if not by_the_head:
        (leased,) = site.platform.store.claim_deployable("other", limit=1, lease_s=60)
        assert site.platform.store.begin_attempt(leased.job, leased.lease_token, now)
    for view in (get_job(site.platform, site.caller, job.id), *list_jobs(site.platform, site.caller)):
        assert (view.state, view.attempt, view.results, view.logs) == ("DEPLOYING", 2, "/store/a", own.logs)
    view = get_job(site.platform, site.caller, job.id)
    assert [(a.results, a.logs) for a in view.attempts] == [(own.results, own.logs), ("", "")]


def test_job_view_has_no_results_when_attempt_never_ran(site: Site) -> None:
    job = site.deployed()
    own = site.platform.root.job(job.id).attempt(1).results
    assert site.job(job.id).results == get_job(site.platform, site.caller, job.id).results == own
    change = Change(((JobState.DEPLOYING, site.clock.now()),), Cause.REQUEUED, succeeded=True)
    assert site.platform.store.apply(job, change) is not None
    assert get_job(site.platform, site.caller, job.id).results == ""


def test_job_view_timestamps_cover_current_attempt_only(site: Site) -> None:
    job = site.deployed()
    submitted = site.clock.now()
    site.clock.tick(10)
    change = Change(((JobState.PROCESSING, site.clock.now()), (JobState.PENDING, site.clock.now())), Cause.REQUEUED)
    updated = site.platform.store.apply(job, change)
    assert updated is not None
    view = get_job(site.platform, site.caller, job.id)
    assert (view.submitted_at, view.timestamps) == (submitted, {"PENDING": submitted + 10})
    (leased,) = site.platform.store.claim_deployable("other", limit=1, lease_s=60)
    site.clock.tick(10)
    assert site.platform.store.begin_attempt(leased.job, leased.lease_token, site.clock.now())
    view = get_job(site.platform, site.caller, job.id)
    assert view.timestamps == {"PENDING": submitted + 10, "DEPLOYING": submitted + 20}


def test_job_view_timestamps_start_at_deployment_after_head_controller_continuation(site: Site) -> None:
    job = site.deployed()
    began = site.clock.now()
    steps = ((JobState.PROCESSING, began + 1), (JobState.STORING, began + 2), (JobState.DEPLOYING, began + 3))
    after = site.platform.store.apply(job, Change(steps, Cause.REQUEUED, succeeded=True))
    assert after is not None
    assert site.platform.store.apply(after, Change(((JobState.QUEUED, began + 4),)))
    for view in (get_job(site.platform, site.caller, job.id), *list_jobs(site.platform, site.caller)):
        assert view.timestamps == {"DEPLOYING": began + 3, "QUEUED": began + 4}


def test_job_view_timestamps_cover_latest_run_after_scheduler_requeue(site: Site) -> None:
    job = site.deployed()
    began = site.clock.now()
    job = site.platform.store.apply(job, Change(((JobState.PROCESSING, began + 1),))) or job
    back = site.platform.store.apply(job, Change(((JobState.QUEUED, began + 2),), Cause.REQUEUED))
    assert back is not None
    assert get_job(site.platform, site.caller, job.id).timestamps == {"QUEUED": began + 2}
    assert site.platform.store.apply(back, Change(((JobState.PROCESSING, began + 3),)))
    view = get_job(site.platform, site.caller, job.id)
    assert view.timestamps == {"QUEUED": began + 2, "PROCESSING": began + 3}


def test_job_view_timestamps_start_at_resume(site: Site) -> None:
    """Also of a job that was halted before its first attempt."""
    job = site.accept()
    halted = site.platform.store.apply(job, Change(((JobState.HALTED, site.clock.now()),)))
    assert halted is not None
    site.clock.tick(10)
    assert site.platform.store.apply(halted, Change(((JobState.PENDING, site.clock.now()),), Cause.RESUMED))
    Deployer(site.platform).step()
    times = get_job(site.platform, site.caller, job.id).timestamps
    assert times == dict.fromkeys(("PENDING", "DEPLOYING", "QUEUED"), site.clock.now())


def test_job_view_shows_gpus_of_current_overrides(site: Site) -> None:
    job = site.accept()
    assert site.platform.store.apply(job, Change(columns={"overrides": Overrides(2.0)})) is not None
    assert get_job(site.platform, site.caller, job.id).gpus == 2.0
    assert list_jobs(site.platform, site.caller)[0].gpus == 2.0


def test_job_view_lists_overrides_by_manifest_path(site: Site) -> None:
    job = site.deployed()
    assert get_job(site.platform, site.caller, job.id).overrides == {}
    change = Change(columns={"overrides": Overrides(gpus=2.0, time_s=5400, exclude=("n1", "n2"))})
    assert site.platform.store.apply(job, change) is not None
    assert get_job(site.platform, site.caller, job.id).overrides == {
        "gpus": "2",
        "batch.time": "01:30:00",
        "batch.exclude": "n1,n2",
    }


@pytest.mark.parametrize(("saved_at", "has_one"), [(None, False), (50.0, True)])
def test_job_view_cure_suggests_resume_with_more_time_after_time_limit(
    site: Site, saved_at: float | None, has_one: bool
) -> None:
    job = site.deployed()
    end = AttemptEnd("timeout", Checkpoint(saved_at=saved_at))
    change = Change(((JobState.FAILED, site.clock.now()),), error_code="C203", message="x", attempt_end=end)
    assert site.platform.store.apply(job, change) is not None
    cure = get_job(site.platform, site.caller, job.id).cure
    assert (f"ffdl resume --time TIME {job.id}" in cure) is has_one
    assert "ffdl resume --time" in cure


@pytest.mark.parametrize(("gpu_seconds", "is_cap"), [(3600.0, True), (3599.0, False)])
def test_job_view_cure_names_gpu_hours_when_they_ended_continuation(
    site: Site, gpu_seconds: float, is_cap: bool
) -> None:
    job = site.accept(manifest=MANIFEST + "batch: {retry: {gpu_hours: 1}}\n")
    Deployer(site.platform).step()
    job = site.job(job.id)
    end = AttemptEnd("timeout", Checkpoint(saved_at=50.0))
    columns: dict[str, object] = {"spent": Spent(timeouts=1, gpu_seconds=gpu_seconds)}
    change = Change(((JobState.FAILED, site.clock.now()),), "progress", "x", "C203", columns, end)
    assert site.platform.store.apply(job, change) is not None
    cure = get_job(site.platform, site.caller, job.id).cure
    assert ("--time" not in cure, cure.endswith("batch.retry.gpu_hours")) == (is_cap, is_cap)


def test_get_job_accepts_id_prefix_and_rejects_others(site: Site) -> None:
    job = site.deployed()
    assert get_job(site.platform, site.caller, job.id[: len("training-") + 3]).id == job.id
    for text in (job.id[: len("training-") + 2], "training-???", "training-zzz", job.id[9:]):
        with pytest.raises(Refused, match="there is no job"):
            get_job(site.platform, site.caller, text)
    stranger = Caller(site.caller.uid + 1, is_admin=True)
    with pytest.raises(Refused, match="there is no job"):
        get_job(site.platform, stranger, job.id[:-1])


def test_get_job_names_job_when_given_native_id(site: Site) -> None:
    job = site.deployed()
    with pytest.raises(Refused, match=f"^{job.native_id} is the id that fake gave to {job.id}$") as refused:
        get_job(site.platform, site.caller, job.native_id)
    assert (refused.value.status, refused.value.problem.cure) == (404, f"name it {job.id}")
    assert refused.value.problem.exit_code == 1
    for text in ("4711", f"{job.native_id}_3", job.native_id[:-1]):
        with pytest.raises(Refused, match=f"^there is no job {text}$"):
            get_job(site.platform, site.caller, text)
    with pytest.raises(Refused, match="there is no job"):
        get_job(site.platform, Caller(site.caller.uid + 1), job.native_id)


def test_get_job_names_array_or_element_when_given_native_array_id(site: Site) -> None:
    arrays = with_arrays(site)
    array = arrays.accept("array: 0-3")
    arrays.deploy()
    native = arrays.elements(array)[2].native_id
    with pytest.raises(Refused, match=f"is the id that fake gave to {array}$"):
        get_job(site.platform, site.caller, native.partition("_")[0])
    with pytest.raises(Refused, match=f"gave to {arrays.elements(array)[2].id}$"):
        get_job(site.platform, site.caller, native)


def test_get_job_lists_candidates_for_ambiguous_prefix(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.deployed()
    many = [JobId(f"training-abc00000{n}") for n in range(6)]
    monkeypatch.setattr(site.platform.store, "find_ids", lambda _text, _uid, limit: many[:limit])
    with pytest.raises(Refused, match=r"several ids: training-abc000000, .*training-abc000004 and others") as refused:
        get_job(site.platform, site.caller, "training-abc")
    assert (refused.value.status, refused.value.problem.cure) == (404, "write one of them")
