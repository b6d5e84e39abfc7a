"""Arrays: accepted as a whole, counted, listed and stopped together; each element a job of its own."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.submission import Caller, Expected
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, encode_event
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import AccountingUnreachable
from ffdl_batch.services.job_control.stop import cancel_job, get_array, halt_job, stop_array
from ffdl_batch.services.job_files.orphan_cleanup import ORPHAN_AGE_S, sweep
from ffdl_batch.services.monitoring.watcher import ACCOUNTING_LAG_S, FORGOTTEN_AFTER
from ffdl_batch.services.queries.jobs import list_jobs, own_job
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.submission.dry_run import plan_submission
from ffdl_batch.services.submission.submit import submit
from ffdl_batch.store import NewJob, Store
from tests.unit.services.conftest import ArraySite, Site, manifest

GRID = "sweep: {lr: [0.1, 0.01], depth: [2, 4]}"
Q = JobState.QUEUED


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each write of new jobs has."""
    sizes: list[int] = []
    add = Store.add_jobs

    def counted(store: Store, jobs: list[NewJob]) -> object:
        sizes.append(len(jobs))
        return add(store, jobs)

    monkeypatch.setattr(Store, "add_jobs", counted)
    return sizes


def test_submit_writes_all_elements_of_array_in_one_transaction(fleet: ArraySite, calls: list[int]) -> None:
    result = fleet.send(GRID)
    assert is_array_id(result.id) and calls == [4]
    jobs = fleet.elements(result.id)
    assert [job.id for job in jobs] == list(result.elements)
    assert [job.spec.name for job in jobs] == [f"digits[{n}]" for n in range(4)]
    values = [dict(job.spec.batch.env) for job in jobs]
    assert values == [{"lr": lr, "depth": depth} for lr in ("0.1", "0.01") for depth in ("2", "4")]
    assert len({job.id for job in jobs}) == 4 and {job.state for job in jobs} == {JobState.PENDING}
    assert len(fleet.scheduler.planned) == 1
    view = fleet.site.view(jobs[2])
    assert (view.array, view.array_index, dict(view.array_values)) == (result.id, 2, {"lr": "0.01", "depth": "2"})


def test_submit_returns_same_array_for_repeated_request_and_stores_shared_files_once(fleet: ArraySite) -> None:
    batch, environ = "array: 0-2, comment: hunter2", {"TOKEN": "s3cr3t"}
    first, again = (fleet.send(batch, environ=environ) for _ in range(2))
    assert (again.id, again.elements) == (first.id, first.elements)
    assert fleet.site.platform.storage.store.count_live() == 3
    arrays = Path(fleet.site.platform.storage.root.arrays)
    assert [path.name for path in arrays.iterdir()] == [first.id]
    directory = fleet.site.platform.storage.root.array(first.id)
    assert "hunter2" in Path(directory.manifest).read_text()
    assert json.loads(Path(directory.exported).read_text()) == environ
    assert stat.S_IMODE(Path(directory.exported).stat().st_mode) == 0o600
    elements = fleet.elements(first.id)
    assert {job.spec.manifest_text for job in elements} == {""}
    fleet.deploy()
    fleet.start(fleet.elements(first.id)[0])
    assert "hunter2" in Path(fleet.site.platform.storage.root.job(elements[0].id).manifest).read_text()
    assert fleet.scheduler.planned[-1].user_env["TOKEN"] == "s3cr3t"
    assert fleet.send(batch, key="k2").id != first.id


def test_submit_rejects_invalid_array_as_a_whole(fleet: ArraySite) -> None:
    problem = fleet.send("array: 9-0").problem
    assert problem is not None and problem.findings[0].path == "batch.array" and problem.findings[0].line
    assert fleet.site.platform.storage.store.count_live() == 0
    assert not Path(fleet.site.platform.storage.root.arrays).exists()


@pytest.mark.parametrize(
    ("expected", "wrong", "message", "right"),
    [
        (Expected.JOB, "array: 0-1", "this is an array of jobs", "env: {A: 1}"),
        (Expected.ARRAY, "env: {A: 1}", "this is one job", "array: 3"),
    ],
)
def test_submit_rejects_array_or_job_when_the_other_is_expected(
    fleet: ArraySite, expected: Expected, wrong: str, message: str, right: str
) -> None:
    problem = fleet.send(wrong, expected=expected).problem
    assert problem is not None and message in problem.message
    assert fleet.send(right, expected=expected).problem is None


def test_submit_splits_large_batches_into_several_transactions(
    fleet: ArraySite, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.services.submission.submit.MAX_ELEMENTS", 5)
    texts = [manifest(f"array: 0-{last}") for last in (2, 1, 3, 0)]
    requests = [fleet.site.submission(str(n), text) for n, text in enumerate(texts)]
    results = submit(
        fleet.site.platform.storage,
        fleet.site.platform.adapters,
        fleet.site.platform.store_checks,
        fleet.site.caller,
        requests,
    )
    assert calls == [5, 5]
    assert [len(result.elements) for result in results] == [3, 2, 4, 1]


def test_get_array_counts_elements_and_own_job_finds_them_by_index_for_owner_only(fleet: ArraySite) -> None:
    array = fleet.accept("array: 2-8:2%3")
    of = fleet.site.platform.storage, fleet.site.caller
    found_by = fleet.site.platform.storage.store, fleet.site.caller
    view = get_array(*of, array)
    assert (view.name, view.elements, dict(view.states)) == ("digits", 4, {"PENDING": 4})
    assert (view.limit, view.ended) == (3, False)
    assert own_job(*found_by, f"{array}_4").spec.name == "digits[4]"
    assert [job.array_index for job in list_jobs(*of, array=array)] == [2, 4, 6, 8]
    assert len(list_jobs(*of, name="digits")) == 4
    for unknown in (f"{array}_3", "array-zzzzzzzzz_0", "array-zzzzzzzzz"):
        with pytest.raises(Refused) as refused:
            own_job(*found_by, unknown)
        assert refused.value.status == 404
    with pytest.raises(Refused, match="is an array of jobs"):
        own_job(*found_by, array)
    stranger = fleet.site.platform.storage, Caller(fleet.site.caller.uid + 1)
    with pytest.raises(Refused, match="there is no array"):
        get_array(*of, "array-zzzzzzzzz")
    with pytest.raises(Refused, match="there is no array"):
        get_array(*stranger, array)
    with pytest.raises(Refused, match="there is no array"):
        stop_array(*stranger, array, RequestedAction.CANCEL)


def test_stop_array_cancels_pending_elements_and_forwards_cancel_for_queued_ones(fleet: ArraySite) -> None:
    array = fleet.accept("array: 0-9")
    fleet.deploy()
    pending = fleet.accept("array: 0-2", "k2")
    view = stop_array(fleet.site.platform.storage, fleet.site.caller, pending, RequestedAction.CANCEL)
    assert (dict(view.states), view.ended) == ({"CANCELLED": 3}, True)
    for action in (RequestedAction.CANCEL, RequestedAction.HALT):
        view = stop_array(fleet.site.platform.storage, fleet.site.caller, array, action)
        assert dict(view.states) == {"QUEUED": 10}
        assert {job.requested_action for job in fleet.elements(array)} == {RequestedAction.CANCEL}
    fleet.site.watch()
    assert fleet.scheduler.stop_calls == [("cancel", 10)]


def test_stop_array_halt_withdraws_queued_and_signals_running_elements(fleet: ArraySite) -> None:
    array = fleet.accept("array: 0-5")
    fleet.deploy()
    for job in fleet.elements(array)[:2]:
        fleet.scheduler.run(NativeId.parse(job.native_id))
    stop_array(fleet.site.platform.storage, fleet.site.caller, array, RequestedAction.HALT)
    fleet.site.watch()
    assert fleet.scheduler.stop_calls == [("withdraw", 4), ("URG", 2)]


def test_plan_submission_shows_native_array_and_keeps_no_files(fleet: ArraySite) -> None:
    submission = fleet.site.submission("k", manifest("array: 0-2%1"))
    view = plan_submission(
        fleet.site.platform.storage,
        fleet.site.platform.adapters,
        fleet.site.platform.node_exclusion,
        fleet.site.caller,
        submission,
        trial=False,
    )
    assert view.script == "#!/bin/sh\n# 1 GPUs, \n"
    names = [file.name for file in view.files]
    assert names[:2] == ["tasks", "script.sh"] and "launch.json" in names
    assert view.files[0].text.count("\n") == 3
    assert any("an array of 3 jobs, 3 in one native array" in warning for warning in view.warnings)
    assert list((Path(fleet.site.platform.storage.root.path) / "jobs").iterdir()) == []


def test_plan_submission_warns_if_elements_are_submitted_singly(site: Site) -> None:
    view = plan_submission(
        site.platform.storage,
        site.platform.adapters,
        site.platform.node_exclusion,
        site.caller,
        site.submission("k", manifest(GRID)),
        trial=False,
    )
    assert any("an array of 4 jobs, each by itself" in warning for warning in view.warnings)
    assert view.environment["lr"] == "0.1"


def test_dependency_on_array_expands_to_all_elements(fleet: ArraySite) -> None:
    array = fleet.accept("array: 0-2")
    ids = [job.id for job in fleet.elements(array)]
    after = fleet.site.accept("all", manifest(f"dependency: 'afterok:{array}'"))
    assert after.spec.batch.dependency == f"afterok:{':'.join(ids)}"
    one = fleet.site.accept("one", manifest(f"dependency: 'afterany:{array}_1'"))
    assert one.spec.batch.dependency == f"afterany:{ids[1]}"
    late = fleet.site.accept("late", manifest(f"dependency: 'after:{array}+5,afterany:{ids[0]}'"))
    assert late.spec.batch.dependency == f"after:{ids[0]}+5:{ids[1]}+5:{ids[2]}+5,afterany:{ids[0]}"
    fleet.deploy(2)
    waiting = fleet.site.job(after.id)
    assert waiting.state is JobState.PENDING and "Dependency" in waiting.pending_reason


def test_aftercorr_dependency_matches_elements_by_index(fleet: ArraySite) -> None:
    first = fleet.accept("array: 0-2")
    second = fleet.accept(f"array: '1,2', dependency: 'aftercorr:{first}'", "k2")
    found = [job.spec.batch.dependency for job in fleet.elements(second)]
    assert found == [f"aftercorr:{job.id}" for job in fleet.elements(first)[1:]]
    problem = fleet.send(f"array: 0-3, dependency: 'aftercorr:{first}'", "k3").problem
    assert problem is not None and "has no element 3 to depend on" in problem.message
    problem = fleet.send("dependency: 'afterok:array-zzzzzzzzz'", "k4").problem
    assert problem is not None and "there is no array array-zzzzzzzzz to depend on" in problem.message
    assert problem.findings[0].line is not None


def test_janitor_removes_old_orphaned_array_directories(fleet: ArraySite) -> None:
    known = fleet.accept("array: 0-1")
    arrays = Path(fleet.site.platform.storage.root.arrays)
    orphan, young, deployed = (arrays / f"array-00000000{n}" for n in range(3))
    for directory in (orphan, young, deployed / "chunk-1"):
        directory.mkdir(parents=True)
    (orphan / "manifest.yml").touch()
    old = fleet.site.platform.storage.file_time(str(arrays)) - ORPHAN_AGE_S - 60
    for directory in (arrays / known, orphan, deployed):
        os.utime(directory, (old, old))
    assert sweep(fleet.site.platform.storage, fleet.site.platform.settings) == 1
    assert sorted(path.name for path in arrays.iterdir()) == sorted([known, young.name, deployed.name])


STEP_S = 2.0
SOON = (FORGOTTEN_AFTER + 1) * STEP_S
assert SOON < ACCOUNTING_LAG_S / 2


@pytest.fixture
def jobs(fleet: ArraySite) -> list[Job]:
    """Four elements that the scheduler has."""
    array = fleet.accept("array: '0-3%1'")
    fleet.deploy()
    jobs = fleet.elements(array)
    assert [job.state for job in jobs] == [Q] * 4
    return jobs


def now(fleet: ArraySite, jobs: list[Job]) -> list[JobState]:
    return [fleet.site.job(job.id).state for job in jobs]


def look(fleet: ArraySite, for_s: float = SOON) -> None:
    """Look for so long."""
    for _ in range(int(for_s / STEP_S)):
        fleet.site.watch()
        fleet.site.clock.tick(STEP_S)


def scancel(fleet: ArraySite, job: Job) -> None:
    """Take a task out of its array, as Slurm does."""
    native = NativeId.parse(job.native_id)
    del fleet.scheduler.seen[native]
    fleet.scheduler.forgotten.add(native)


def test_watcher_cancels_only_the_dropped_array_task_after_repeated_listings(fleet: ArraySite, jobs: list[Job]) -> None:
    look(fleet)
    scancel(fleet, jobs[2])
    for _ in range(FORGOTTEN_AFTER - 1):
        fleet.site.watch()
    assert fleet.site.job(jobs[2].id).state is JobState.QUEUED
    fleet.site.watch()
    ended = fleet.site.job(jobs[2].id)
    assert (ended.error_code, ended.message, ended.pending_reason) == ("000", "cancelled in the scheduler", "")
    assert now(fleet, jobs) == [Q, Q, JobState.CANCELLED, Q]


def test_watcher_cancels_dropped_tasks_from_its_first_listings_if_others_run(fleet: ArraySite, jobs: list[Job]) -> None:
    for job in jobs[1:3]:
        scancel(fleet, job)
    for job in (jobs[0], jobs[3]):
        fleet.scheduler.run(NativeId.parse(job.native_id))
    look(fleet)  # the first looks of this watcher
    assert now(fleet, jobs[1:3]) == [JobState.CANCELLED] * 2


def test_watcher_fails_tasks_after_accounting_lag_when_whole_array_is_missing(
    fleet: ArraySite, jobs: list[Job]
) -> None:
    look(fleet)
    for job in jobs:
        scancel(fleet, job)
    look(fleet)
    assert now(fleet, jobs) == [Q] * 4
    look(fleet, ACCOUNTING_LAG_S + SOON)
    ended = [fleet.site.job(job.id) for job in jobs]
    assert {(job.state, job.error_code) for job in ended} == {(JobState.FAILED, "S106")}


@pytest.mark.parametrize("trace", ["claim", "event", "heartbeat"])
def test_watcher_does_not_cancel_dropped_task_that_had_started(fleet: ArraySite, jobs: list[Job], trace: str) -> None:
    look(fleet)
    attempt = fleet.start(jobs[2])
    if trace == "claim":
        Path(attempt.claim).mkdir()
    elif trace == "event":
        claimed = Event(1, fleet.site.clock.now(), "head", EventKind.CLAIMED, {"restart": 0})
        Path(attempt.events, "head.jsonl").write_text(encode_event(claimed))
    else:
        Path(attempt.heartbeat(0)).touch()
        os.utime(attempt.heartbeat(0), (fleet.site.clock.now() - 1e4,) * 2)
    scancel(fleet, jobs[2])
    look(fleet)
    assert fleet.site.job(jobs[2].id).state is not JobState.CANCELLED
    look(fleet, ACCOUNTING_LAG_S + SOON)
    assert "no record of the job any more" in fleet.site.platform.storage.store.history(jobs[2].id)[-1].message


@pytest.mark.parametrize("but", ["another array reused its id", "it is listed again"])
def test_watcher_keeps_dropped_task_queued_with_reused_id_or_new_listing(
    fleet: ArraySite, jobs: list[Job], but: str
) -> None:
    native = NativeId.parse(jobs[2].native_id)
    look(fleet)
    scancel(fleet, jobs[2])
    if but == "it is listed again":
        for _ in range(FORGOTTEN_AFTER - 1):
            fleet.site.watch()
        fleet.scheduler.forgotten.clear()
        fleet.scheduler.seen[native] = Observation(Phase.PENDING, "PENDING")
    else:
        fleet.scheduler.submitted = [(n, t if n != native else jobs[0].token) for n, t in fleet.scheduler.submitted]
    look(fleet)
    assert now(fleet, jobs)[2] is JobState.QUEUED


def test_watcher_waits_for_accounting_before_cancelling_dropped_task(
    fleet: ArraySite, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may know that the task ran."""
    scancel(fleet, jobs[2])
    with monkeypatch.context() as patched:
        error = AccountingUnreachable("connection refused", 2.0)
        patched.setattr(fleet.scheduler, "find_absent", Mock(side_effect=error))
        look(fleet, 2 * ACCOUNTING_LAG_S)
        assert now(fleet, jobs)[2] is JobState.QUEUED
    look(fleet)
    assert now(fleet, jobs)[2] is JobState.CANCELLED


@pytest.mark.parametrize(
    ("ask", "state", "message"),
    [
        (cancel_job, JobState.CANCELLED, "cancelled by its owner"),
        (halt_job, JobState.HALTED, "halted before it started"),
    ],
)
def test_watcher_ends_dropped_task_as_its_owner_requested(
    fleet: ArraySite, jobs: list[Job], ask: Callable[..., object], state: JobState, message: str
) -> None:
    look(fleet)
    ask(fleet.site.platform.storage, fleet.site.platform.adapters, fleet.site.caller, jobs[2].id)
    scancel(fleet, jobs[2])
    look(fleet)
    ended = fleet.site.job(jobs[2].id)
    assert (ended.state, ended.message) == (state, message)
