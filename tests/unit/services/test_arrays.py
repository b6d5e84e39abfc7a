"""Arrays: accepted as a whole, counted, listed and stopped together; each element a job of its own."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ffdl_batch.domain.array import is_array_id
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.observation import NativeId
from ffdl_batch.domain.submission import Expected
from ffdl_batch.services.arrays import get_array, stop_array
from ffdl_batch.services.janitor import ORPHAN_AGE_S, sweep
from ffdl_batch.services.planning import plan_submission
from ffdl_batch.services.problems import Refused
from ffdl_batch.services.query import get_job, list_jobs, own_job
from ffdl_batch.services.submit import submit
from ffdl_batch.services.watch import Watcher
from ffdl_batch.store import NewJob, Store
from tests.unit.services.array_site import ArraySite, manifest, with_arrays
from tests.unit.services.conftest import Site

GRID = "sweep: {lr: [0.1, 0.01], depth: [2, 4]}"


@pytest.fixture
def fleet(site: Site) -> ArraySite:
    return with_arrays(site)


# ------------------------------------------------------------------------------------------------ accepting


def test_submit_writes_all_elements_of_array_in_one_transaction(
    fleet: ArraySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    add = Store.add_jobs

    def counted(store: Store, jobs: list[NewJob]) -> object:
        calls.append(len(jobs))
        return add(store, jobs)

    monkeypatch.setattr(Store, "add_jobs", counted)
    result = fleet.send(GRID)
    assert is_array_id(result.id) and calls == [4]
    jobs = fleet.elements(result.id)
    assert [job.id for job in jobs] == list(result.elements)
    assert [job.spec.name for job in jobs] == [f"digits[{n}]" for n in range(4)]
    assert [dict(job.spec.batch.env) for job in jobs] == [
        {"lr": "0.1", "depth": "2"}, {"lr": "0.1", "depth": "4"}, {"lr": "0.01", "depth": "2"},
        {"lr": "0.01", "depth": "4"},
    ]  # fmt: skip
    assert len({job.id for job in jobs}) == 4 and {job.state for job in jobs} == {JobState.PENDING}
    assert len(fleet.scheduler.planned) == 1
    view = get_job(fleet.site.platform, fleet.site.caller, jobs[2].id)
    assert (view.array, view.array_index, dict(view.array_values)) == (result.id, 2, {"lr": "0.01", "depth": "2"})


def test_submit_returns_same_array_for_repeated_request(fleet: ArraySite) -> None:
    first = fleet.send("array: 0-9", environ={"TOKEN": "s3cr3t"})
    again = fleet.send("array: 0-9", environ={"TOKEN": "s3cr3t"})
    assert (again.id, again.elements) == (first.id, first.elements)
    assert fleet.site.platform.store.count_live() == 10
    arrays = Path(fleet.site.platform.root.arrays)
    assert [path.name for path in arrays.iterdir()] == [first.id]
    assert fleet.send("array: 0-9", key="k2").id != first.id


def test_submit_stores_shared_files_once_with_array(fleet: ArraySite) -> None:
    array = fleet.accept("array: 0-2, comment: hunter2", environ={"TOKEN": "s3cr3t"})
    directory = fleet.site.platform.root.array(array)
    assert "hunter2" in Path(directory.manifest).read_text()
    assert json.loads(Path(directory.exported).read_text()) == {"TOKEN": "s3cr3t"}
    assert stat.S_IMODE(Path(directory.exported).stat().st_mode) == 0o600
    assert {job.spec.manifest_text for job in fleet.elements(array)} == {""}
    fleet.deploy()
    first = fleet.elements(array)[0]
    assert "hunter2" in Path(fleet.site.platform.root.job(first.id).manifest).read_text()
    assert fleet.scheduler.planned[-1].user_env["TOKEN"] == "s3cr3t"


def test_submit_rejects_invalid_array_as_a_whole(fleet: ArraySite) -> None:
    problem = fleet.send("array: 9-0").problem
    assert problem is not None and problem.findings[0].path == "batch.array" and problem.findings[0].line
    too_many = fleet.send("array: 0-99999").problem
    assert too_many is not None and "an array has 10000 at most" in too_many.message
    assert fleet.site.platform.store.count_live() == 0
    assert not Path(fleet.site.platform.root.arrays).exists()


def test_submit_rejects_array_when_job_is_expected(fleet: ArraySite) -> None:
    problem = fleet.send("array: 0-1", expected=Expected.JOB).problem
    assert problem is not None and "this is an array of jobs" in problem.message
    assert fleet.send("env: {A: 1}", expected=Expected.JOB).problem is None


def test_submit_rejects_single_job_when_array_is_expected(fleet: ArraySite) -> None:
    problem = fleet.send("env: {A: 1}", expected=Expected.ARRAY).problem
    assert problem is not None and "this is one job" in problem.message
    assert fleet.send("array: 3", expected=Expected.ARRAY).problem is None


def test_submit_splits_large_batches_into_several_transactions(
    fleet: ArraySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.services.submit.MAX_ELEMENTS", 5)
    sizes: list[int] = []
    add = Store.add_jobs

    def counted(store: Store, jobs: list[NewJob]) -> object:
        sizes.append(len(jobs))
        return add(store, jobs)

    monkeypatch.setattr(Store, "add_jobs", counted)
    texts = [manifest(f"array: 0-{last}") for last in (2, 1, 3, 0)]
    requests = [fleet.site.submission(str(n), text) for n, text in enumerate(texts)]
    results = submit(fleet.site.platform, fleet.site.caller, requests)
    assert sizes == [5, 5]
    assert [len(result.elements) for result in results] == [3, 2, 4, 1]


# ----------------------------------------------------------------------------------------- reading and stopping


def test_get_array_counts_elements_and_own_job_finds_them_by_index(fleet: ArraySite) -> None:
    array = fleet.accept("array: 2-8:2%3")
    view = get_array(fleet.site.platform, fleet.site.caller, array)
    assert (view.name, view.elements, dict(view.states), view.limit, view.ended) == (
        "digits", 4, {"PENDING": 4}, 3, False,
    )  # fmt: skip
    named = own_job(fleet.site.platform, fleet.site.caller, f"{array}_4")
    assert named.spec.name == "digits[4]"
    listed = list_jobs(fleet.site.platform, fleet.site.caller, array=array)
    assert [job.array_index for job in listed] == [2, 4, 6, 8]
    assert len(list_jobs(fleet.site.platform, fleet.site.caller, name="digits")) == 4
    for unknown in (f"{array}_3", "array-zzzzzzzzz_0", "array-zzzzzzzzz"):
        with pytest.raises(Refused) as refused:
            own_job(fleet.site.platform, fleet.site.caller, unknown)
        assert refused.value.status == 404
    with pytest.raises(Refused, match="is an array of jobs"):
        own_job(fleet.site.platform, fleet.site.caller, array)
    with pytest.raises(Refused, match="there is no array"):
        get_array(fleet.site.platform, fleet.site.caller, "array-zzzzzzzzz")


def test_array_commands_report_other_users_array_as_unknown(fleet: ArraySite) -> None:
    from ffdl_batch.services.platform import Caller

    array = fleet.accept("array: 0-1")
    with pytest.raises(Refused, match="there is no array"):
        get_array(fleet.site.platform, Caller(fleet.site.caller.uid + 1), array)
    with pytest.raises(Refused, match="there is no array"):
        stop_array(fleet.site.platform, Caller(fleet.site.caller.uid + 1), array, Wish.CANCEL)


def test_stop_array_cancels_pending_elements_and_forwards_cancel_for_queued_ones(
    fleet: ArraySite, watcher: Watcher
) -> None:
    array = fleet.accept("array: 0-9")
    fleet.deploy()
    pending = fleet.accept("array: 0-2", "k2")
    view = stop_array(fleet.site.platform, fleet.site.caller, pending, Wish.CANCEL)
    assert (dict(view.states), view.ended) == ({"CANCELLED": 3}, True)
    view = stop_array(fleet.site.platform, fleet.site.caller, array, Wish.CANCEL)
    assert dict(view.states) == {"QUEUED": 10}
    assert {job.wish for job in fleet.elements(array)} == {Wish.CANCEL}
    stop_array(fleet.site.platform, fleet.site.caller, array, Wish.HALT)
    assert {job.wish for job in fleet.elements(array)} == {Wish.CANCEL}
    watcher.step(full=True)
    assert fleet.scheduler.stop_calls == [("cancel", 10)]


def test_stop_array_halt_withdraws_queued_and_signals_running_elements(fleet: ArraySite, watcher: Watcher) -> None:
    array = fleet.accept("array: 0-5")
    fleet.deploy()
    for job in fleet.elements(array)[:2]:
        fleet.scheduler.run(NativeId.parse(job.native_id))
    stop_array(fleet.site.platform, fleet.site.caller, array, Wish.HALT)
    watcher.step(full=True)
    assert fleet.scheduler.stop_calls == [("withdraw", 4), ("URG", 2)]


# ------------------------------------------------------------------------------------------- dry runs, deps


def test_plan_submission_shows_native_array_and_keeps_no_files(fleet: ArraySite) -> None:
    view = plan_submission(
        fleet.site.platform, fleet.site.caller, fleet.site.submission("k", manifest("array: 0-2%1")), trial=False
    )
    assert view.script == "#!/bin/sh\n# 1 GPUs, \n"
    names = [file.name for file in view.files]
    assert names[:2] == ["tasks", "script.sh"] and "launch.json" in names
    assert view.files[0].text.count("\n") == 3
    assert any("an array of 3 jobs, 3 in one native array" in warning for warning in view.warnings)
    assert list((Path(fleet.site.platform.root.path) / "jobs").iterdir()) == []


def test_plan_submission_warns_if_elements_are_submitted_singly(site: Site) -> None:
    view = plan_submission(site.platform, site.caller, site.submission("k", manifest(GRID)), trial=False)
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
    ids = [job.id for job in fleet.elements(first)]
    assert [job.spec.batch.dependency for job in fleet.elements(second)] == [
        f"aftercorr:{ids[1]}",
        f"aftercorr:{ids[2]}",
    ]
    problem = fleet.send(f"array: 0-3, dependency: 'aftercorr:{first}'", "k3").problem
    assert problem is not None and "has no element 3 to depend on" in problem.message
    problem = fleet.send("dependency: 'afterok:array-zzzzzzzzz'", "k4").problem
    assert problem is not None and "there is no array array-zzzzzzzzz to depend on" in problem.message
    assert problem.findings[0].line is not None


def test_janitor_removes_old_orphaned_array_directories(fleet: ArraySite) -> None:
    known = fleet.accept("array: 0-1")
    arrays = Path(fleet.site.platform.root.arrays)
    orphan, young, deployed = (arrays / f"array-00000000{n}" for n in range(3))
    for directory in (orphan, young, deployed / "chunk-1"):
        directory.mkdir(parents=True)
    (orphan / "manifest.yml").touch()
    old = fleet.site.platform.file_time(str(arrays)) - ORPHAN_AGE_S - 60
    for directory in (arrays / known, orphan, deployed):
        os.utime(directory, (old, old))
    assert sweep(fleet.site.platform) == 1
    assert sorted(path.name for path in arrays.iterdir()) == sorted([known, young.name, deployed.name])
