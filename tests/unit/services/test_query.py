"""Views of jobs with several attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ffdl_batch.domain.job.job import AttemptEnd, Job, JobId, Overrides
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.services.queries.jobs import get_job, list_jobs
from ffdl_batch.services.refusals import Refused
from tests.unit.services.chains import accept, at_work
from tests.unit.services.conftest import Site, with_arrays


def test_get_job_includes_all_attempts_and_list_jobs_omits_them(site: Site) -> None:
    job = site.deployed()
    end = AttemptEnd("timeout", gpu_seconds=5.0, upload_pending=True)
    told: dict[str, Any] = {"message": "the time limit was reached", "error_code": "C203"}
    told |= {"columns": {"spent": Spent(timeouts=1), "nodes": "n1"}, "attempt_end": end}
    requeue(site, job, JobState.PROCESSING, JobState.DEPLOYING, succeeded=True, **told)
    view = site.view(job)
    first, second = [(a.number, a.interruption, a.error_code, a.nodes, a.upload_pending) for a in view.attempts]
    assert (first, second) == ((1, "timeout", "C203", "n1", True), (2, "", "", "", False))
    assert (view.attempt, view.native_id, view.nodes) == (2, "", "")
    (listed,) = list_jobs(site.platform.storage, site.caller)
    assert (listed.attempts, listed.attempt) == ((), 2)


def requeue(site: Site, job: Job, *states: JobState, **fields: Any) -> Job:
    return site.move(job, *states, cause=Cause.REQUEUED, **fields)


def begin_attempt(site: Site) -> None:
    (leased,) = site.platform.storage.store.claim_deployable("other", limit=1, lease_s=60)
    assert site.platform.storage.store.begin_attempt(leased.job, leased.lease_token, site.clock.now())


def test_job_view_uses_results_and_logs_of_last_attempt_that_ran(site: Site) -> None:
    job = site.deployed()
    first, second = (
        (attempt.results, attempt.logs) for attempt in map(site.platform.storage.root.job(job.id).attempt, (1, 2))
    )
    view = site.view(job)
    assert (view.results, view.logs) == first, "where they will be"
    assert [(a.results, a.logs) for a in view.attempts] == [("", "")]
    requeue(site, job, JobState.PROCESSING, JobState.PENDING)
    site.deploy()
    assert site.job(job.id).attempt == 2
    (listed,) = list_jobs(site.platform.storage, site.caller)
    for view in (listed, site.view(job)):
        assert (view.results, view.logs) == first
    assert [(a.results, a.logs) for a in view.attempts] == [first, ("", "")]
    requeue(site, site.job(job.id), JobState.PROCESSING, JobState.PENDING)
    view = site.view(job)
    assert (view.results, view.logs) == second


def test_job_view_keeps_shared_store_as_results_location(site: Site) -> None:
    job = site.deployed()
    for state in (JobState.PROCESSING, JobState.HALTED):
        job = site.move(job, state, columns={"results": "/store/training"})
    view = site.view(job)
    assert view.results == "/store/training"
    assert view.attempts[0].results == site.platform.storage.root.job(job.id).attempt(1).results


@pytest.mark.parametrize("by_the_head", [True, False], ids=["the head's", "the daemon's"])
def test_job_view_keeps_shared_store_while_next_attempt_is_deploying(site: Site, by_the_head: bool) -> None:
    job = site.deployed()
    own = site.platform.storage.root.job(job.id).attempt(1)
    job = site.move(job, JobState.PROCESSING, columns={"results": "/store/a"})
    requeue(site, job, JobState.DEPLOYING if by_the_head else JobState.PENDING, succeeded=by_the_head)
    if not by_the_head:
        begin_attempt(site)
    for view in (*list_jobs(site.platform.storage, site.caller), site.view(job)):
        assert (view.state, view.attempt, view.results, view.logs) == ("DEPLOYING", 2, "/store/a", own.logs)
    assert [(a.results, a.logs) for a in view.attempts] == [(own.results, own.logs), ("", "")]


def test_job_view_has_no_results_when_attempt_never_ran(site: Site) -> None:
    job = site.deployed()
    own = site.platform.storage.root.job(job.id).attempt(1).results
    assert site.job(job.id).results == site.view(job).results == own
    requeue(site, job, JobState.DEPLOYING, succeeded=True)
    assert site.view(job).results == ""


def test_job_view_timestamps_cover_current_attempt_only(site: Site) -> None:
    job = site.deployed()
    submitted = site.clock.now()
    site.clock.tick(10)
    requeue(site, job, JobState.PROCESSING, JobState.PENDING)
    view = site.view(job)
    assert (view.submitted_at, view.timestamps) == (submitted, {"PENDING": submitted + 10})
    site.clock.tick(10)
    begin_attempt(site)
    assert site.view(job).timestamps == {"PENDING": submitted + 10, "DEPLOYING": submitted + 20}


def test_job_view_timestamps_start_at_deployment_after_head_controller_continuation(site: Site) -> None:
    job = requeue(site, site.deployed(), JobState.PROCESSING, JobState.STORING, JobState.DEPLOYING, succeeded=True)
    began = site.clock.now()
    site.clock.tick(10)
    site.move(job, JobState.QUEUED)
    for view in (site.view(job), *list_jobs(site.platform.storage, site.caller)):
        assert view.timestamps == {"DEPLOYING": began, "QUEUED": began + 10}


def test_job_view_timestamps_cover_latest_run_after_scheduler_requeue(site: Site) -> None:
    job = site.move(site.deployed(), JobState.PROCESSING)
    site.clock.tick(10)
    back, at = requeue(site, job, JobState.QUEUED), site.clock.now()
    assert site.view(job).timestamps == {"QUEUED": at}
    site.clock.tick(10)
    site.move(back, JobState.PROCESSING)
    assert site.view(job).timestamps == {"QUEUED": at, "PROCESSING": at + 10}


def test_job_view_timestamps_start_at_resume(site: Site) -> None:
    """Also of a job that was halted before its first attempt."""
    halted = site.move(site.accept(), JobState.HALTED)
    site.clock.tick(10)
    site.move(halted, JobState.PENDING, cause=Cause.RESUMED)
    site.deploy()
    times = site.view(halted).timestamps
    assert times == dict.fromkeys(("PENDING", "DEPLOYING", "QUEUED"), site.clock.now())


def test_job_view_shows_current_overrides_and_their_gpus(site: Site) -> None:
    job = site.deployed()
    assert site.view(job).overrides == {}
    site.move(job, columns={"overrides": Overrides(gpus=2.0, time_s=5400, exclude=("n1", "n2"))})
    view = site.view(job)
    assert view.overrides == {"gpus": "2", "batch.time": "01:30:00", "batch.exclude": "n1,n2"}
    assert view.gpus == list_jobs(site.platform.storage, site.caller)[0].gpus == 2.0


@pytest.mark.parametrize(("saved_at", "has_one"), [(None, False), (50.0, True)])
def test_job_view_cure_suggests_resume_with_more_time_after_time_limit(
    site: Site, saved_at: float | None, has_one: bool
) -> None:
    end = AttemptEnd("timeout", Checkpoint(saved_at=saved_at))
    job = site.move(site.deployed(), JobState.FAILED, error_code="C203", message="x", attempt_end=end)
    cure = site.view(job).cure
    assert (f"ffdl resume --time TIME {job.id}" in cure) is has_one
    assert "ffdl resume --time" in cure


@pytest.mark.parametrize(("gpu_seconds", "is_cap"), [(3600.0, True), (3599.0, False)])
def test_job_view_cure_names_gpu_hours_when_they_ended_continuation(
    site: Site, gpu_seconds: float, is_cap: bool
) -> None:
    job = accept(site, "gpu_hours: 1")
    end = AttemptEnd("timeout", Checkpoint(saved_at=50.0))
    columns = {"spent": Spent(timeouts=1, gpu_seconds=gpu_seconds)}
    site.move(job, JobState.FAILED, message="x", error_code="C203", columns=columns, attempt_end=end)
    cure = site.view(job).cure
    assert ("--time" not in cure, cure.endswith("batch.retry.gpu_hours")) == (is_cap, is_cap)


def test_get_job_accepts_id_prefix_and_rejects_others(site: Site) -> None:
    job = site.deployed()
    assert (
        get_job(site.platform.storage, site.platform.adapters, site.caller, job.id[: len("training-") + 3]).id == job.id
    )
    for text in (job.id[: len("training-") + 2], "training-???", "training-zzz", job.id[9:]):
        with pytest.raises(Refused, match="there is no job"):
            get_job(site.platform.storage, site.platform.adapters, site.caller, text)
    stranger = Caller(site.caller.uid + 1, is_admin=True)
    with pytest.raises(Refused, match="there is no job"):
        get_job(site.platform.storage, site.platform.adapters, stranger, job.id[:-1])


def test_get_job_accepts_native_id_of_callers_job(site: Site) -> None:
    job = site.deployed()
    assert get_job(site.platform.storage, site.platform.adapters, site.caller, job.native_id).id == job.id
    for text in ("4711", f"{job.native_id}_3", job.native_id[:-1]):
        with pytest.raises(Refused, match=f"^there is no job {text}$"):
            get_job(site.platform.storage, site.platform.adapters, site.caller, text)
    with pytest.raises(Refused, match="there is no job"):
        get_job(site.platform.storage, site.platform.adapters, Caller(site.caller.uid + 1), job.native_id)


def test_get_job_refuses_native_id_of_several_jobs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler whose state was lost counts from 1 again."""
    first, second = site.deployed(), site.deployed()
    monkeypatch.setattr(site.platform.storage.store, "find_native", lambda _text, _uid, _limit: [second, first])
    said = f"^{first.native_id} is a scheduler's id of several jobs: {second.id}, {first.id}$"
    with pytest.raises(Refused, match=said) as refused:
        get_job(site.platform.storage, site.platform.adapters, site.caller, first.native_id)
    assert (refused.value.status, refused.value.problem.exit_code) == (404, 1)


def test_get_job_names_array_when_given_native_array_id(site: Site) -> None:
    arrays = with_arrays(site)
    array = arrays.accept("array: 0-3")
    arrays.deploy()
    native = arrays.elements(array)[2].native_id
    with pytest.raises(Refused, match=f"is the id that fake gave to jobs of {array}$"):
        get_job(site.platform.storage, site.platform.adapters, site.caller, native.partition("_")[0])
    found = get_job(site.platform.storage, site.platform.adapters, site.caller, native)
    assert found.id == arrays.elements(array)[2].id


def test_get_job_lists_candidates_for_ambiguous_prefix(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.deployed()
    many = [JobId(f"training-abc00000{n}") for n in range(6)]
    monkeypatch.setattr(site.platform.storage.store, "find_ids", lambda _text, _uid, limit: many[:limit])
    with pytest.raises(Refused, match=r"several ids: training-abc000000, .*training-abc000004 and others") as refused:
        get_job(site.platform.storage, site.platform.adapters, site.caller, "training-abc")
    assert (refused.value.status, refused.value.problem.cure) == (404, "write one of them")


FOUND: Mapping[str, str | bool] = {"level": "job", "mechanism": "vxlan", "seen": True}
UNSEEN = {**FOUND, "seen": False}


def view(site: Site, job: Job) -> JobView:
    site.watch()
    return site.view(job)


@pytest.mark.parametrize(
    ("told", "by"),
    [
        ((FOUND,), "vxlan"),
        ((UNSEEN, FOUND), "vxlan"),
        ((UNSEEN,), "vxlan; not looked at"),
        (({**FOUND, "mechanism": "wires (two)"},), "wires (two)"),
    ],
)
def test_job_view_reports_network_and_mechanism_found_by_node_controller(
    site: Site, told: tuple[Mapping[str, str | bool], ...], by: str
) -> None:
    job, head = at_work(site)
    seen = site.view(job)
    assert (seen.network_requested, seen.network, seen.network_by) == ("auto", "none", ""), "nobody has found one yet"
    for fields in told:
        head.says("node-0", EventKind.NETWORK, **fields)
    seen = view(site, job)
    assert (seen.network, seen.network_by) == ("job", by)
    assert view(site, job).updated_at == seen.updated_at  # and is not written again


def test_job_view_reports_network_of_each_attempt(site: Site) -> None:
    job, head = at_work(site)
    head.says("node-0", EventKind.NETWORK, **FOUND)
    view(site, job)
    site.head(job).goes_on()
    site.watch(full=False)
    site.scheduler.accept(site.job(job.id).token)
    site.deploy()
    seen = view(site, job)
    assert (seen.network, seen.network_by) == ("none", "")
    assert [(one.network, one.network_by) for one in seen.attempts] == [("job", "vxlan"), ("none", "")]


def test_job_view_keeps_network_after_job_has_ended(site: Site) -> None:
    """Also where everything is read at once."""
    job = site.deployed()
    head = site.head(job)
    head.starts()
    head.says("node-0", EventKind.NETWORK, **FOUND)
    head.ends(Outcome.COMPLETED)
    site.scheduler.run(NativeId(job.native_id))
    site.watch()
    seen = view(site, job)
    assert (seen.network, seen.network_by) == ("job", "vxlan")
