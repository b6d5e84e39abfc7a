"""Accepting jobs."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.ports.scheduler import BackendFacts, InvalidRequest, LaunchPlan, LaunchRequest, SchedulerMissing
from ffdl_batch.services.planning import DRY_RUN_ID, plan_submission
from ffdl_batch.services.problems import Refused
from ffdl_batch.services.submit import submit
from ffdl_batch.store import NewJob, Store, StoreUnavailable
from tests.unit.services.conftest import MANIFEST, Site


def test_an_accepted_job_is_in_the_store_and_nothing_was_sent(site: Site) -> None:
    job = site.accept()
    assert site.states(job) == ["PENDING"]
    assert job.backend == "fake"
    assert "a warning of the plan" in job.warnings
    assert site.scheduler.submitted == []


def test_an_accepted_job_says_where_it_runs(site: Site) -> None:
    (result,) = submit(site.platform, site.caller, [site.submission("a")])
    assert result.backend == "fake"


def test_the_same_key_gives_the_same_job(site: Site) -> None:
    assert site.accept("k").id == site.accept("k").id
    assert site.platform.store.count_live() == 1


def test_each_submission_is_accepted_or_refused_on_its_own(site: Site) -> None:
    bad = MANIFEST.replace("gpus: 1", "gpus: many")
    results = submit(
        site.platform, site.caller, [site.submission("a"), site.submission("b", bad), site.submission("c")]
    )
    assert [bool(r.id) for r in results] == [True, False, True]
    problem = results[1].problem
    assert problem is not None
    assert problem.exit_code == 78
    assert "manifest.yml:2" in problem.message


def test_a_warning_of_the_backend_names_the_line_of_its_field(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(request: LaunchRequest) -> LaunchPlan:
        return replace(made(request), warnings=("batch.signal: no", "batch.comment: no", "http: no", "just so"))

    made = site.scheduler.plan
    monkeypatch.setattr(site.scheduler, "plan", plan)
    submission = site.submission("k", MANIFEST + "batch:\n  signal: USR1@9\n", options={"comment": "c"})
    (result,) = submit(site.platform, site.caller, [submission])
    assert result.warnings[-4:] == (
        "manifest.yml:8:1: warning: batch.signal: no", "batch.comment: no", "http: no", "just so"
    )  # fmt: skip
    planned = plan_submission(site.platform, site.caller, submission, trial=False)
    assert result.warnings[-4] in planned.warnings
    assert site.job(result.id).warnings[-4:] == ("batch.signal: no", "batch.comment: no", "http: no", "just so")


def test_impossible_resources_are_refused_and_leave_nothing(site: Site) -> None:
    (result,) = submit(site.platform, site.caller, [site.submission("a", MANIFEST.replace("gpus: 1", "gpus: 64"))])
    assert result.problem is not None
    assert (result.problem.exit_code, "no node has 64 GPUs" in result.problem.message) == (78, True)
    assert list((Path(site.platform.root.path) / "jobs").iterdir()) == []
    assert site.platform.store.count_live() == 0


def test_a_refusal_of_the_backend_names_the_line_of_its_field(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = "data_stores:\n  - {type: directory, training_data: {container: c}, connection: {path: /d}}\n"
    asked = {"data_stores[0].type": 8, "framework.command": 6, "gpus": 2, "batch.roles": None}

    def refuse(request: LaunchRequest) -> LaunchPlan:
        raise InvalidRequest("no", tuple(Finding(Severity.ERROR, "no", path=path) for path in asked))

    monkeypatch.setattr(site.scheduler, "plan", refuse)
    (result,) = submit(site.platform, site.caller, [site.submission("a", MANIFEST + store)])
    assert result.problem is not None
    assert [(f.path, f.file, f.line) for f in result.problem.findings] == [
        (path, "manifest.yml", line) for path, line in asked.items()
    ]


def reads(directory: Path) -> str:
    """A manifest whose data are `in` of a directory."""
    return MANIFEST + (
        "data_stores:\n- id: s\n  type: directory\n  training_data: {container: in}\n"
        f"  connection: {{path: '{directory}'}}\n"
    )


def test_data_that_are_surely_missing_are_refused_and_data_out_of_sight_are_not(site: Site, tmp_path: Path) -> None:
    manifest = reads(tmp_path)
    site.scheduler.needs_dirs = (str(tmp_path / "in"),)
    (result,) = submit(site.platform, site.caller, [site.submission("a", manifest)])
    assert result.problem is not None
    assert (result.problem.code, result.problem.exit_code) == ("C103", 78)
    assert f"data directory {tmp_path / 'in'} does not exist" in result.problem.message
    assert "manifest.yml:10" in result.problem.message
    assert "data_stores[0].training_data.container" in result.problem.message
    site.scheduler.needs_dirs = ("/only/the/nodes/see/this",)
    (result,) = submit(site.platform, site.caller, [site.submission("b", manifest)])
    assert result.problem is None


def test_nothing_is_out_of_sight_of_a_backend_that_is_this_machine(site: Site, tmp_path: Path) -> None:
    site.scheduler.is_this_machine, site.scheduler.needs_dirs = True, ("/nobody/sees/this",)
    (result,) = submit(site.platform, site.caller, [site.submission("a", reads(tmp_path))])
    assert result.problem is not None
    assert "data directory /nobody/sees/this does not exist" in result.problem.message


def test_data_that_the_job_before_makes_are_a_warning(site: Site, tmp_path: Path) -> None:
    (first,) = submit(site.platform, site.caller, [site.submission("a")])
    site.scheduler.needs_dirs = (str(tmp_path / "in"),)
    waits = reads(tmp_path) + f"batch: {{dependency: 'afterok:{first.id}'}}\n"
    (result,) = submit(site.platform, site.caller, [site.submission("b", waits)])
    assert result.problem is None
    said = f"data directory {tmp_path / 'in'} does not exist yet (C103) (it has to be there when the job starts)"
    assert [warning for warning in result.warnings if said in warning and "manifest.yml:10" in warning]


def test_no_scheduler_is_try_again(site: Site) -> None:
    site.scheduler.down = True
    (result,) = submit(site.platform, site.caller, [site.submission("a")])
    assert result.problem is not None
    assert result.problem.exit_code == 75


def test_a_scheduler_that_was_seen_once_may_be_away(site: Site) -> None:
    site.accept("first")
    site.scheduler.down = True
    site.clock.tick(3600)
    assert site.accept("second").state == "PENDING"


def test_an_unknown_backend_lists_the_known(site: Site) -> None:
    (result,) = submit(site.platform, site.caller, [site.submission("a", backend="pbs")])
    assert result.problem is not None
    assert "known: " in result.problem.message
    assert result.problem.exit_code == 78


def test_a_machine_without_the_scheduler_is_unavailable(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here() -> BackendFacts:
        raise InvalidRequest("sinfo is not on the PATH: there is no Slurm here")

    monkeypatch.setattr(site.scheduler, "probe", none_here)
    (result,) = submit(site.platform, site.caller, [site.submission("a")])
    assert result.problem is not None
    assert result.problem.exit_code == 69


def test_a_machine_without_the_schedulers_programs_says_the_same_each_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_here() -> BackendFacts:
        raise SchedulerMissing("sinfo cannot be run: install Slurm's client commands")

    monkeypatch.setattr(site.scheduler, "probe", none_here)
    for _ in range(2):  # the second is answered by the circuit breaker
        with pytest.raises(Refused) as refusal:
            plan_submission(site.platform, site.caller, site.submission("a"), trial=False)
        problem = refusal.value.problem
        assert (problem.exit_code, problem.message) == (69, "sinfo cannot be run: install Slurm's client commands")
    assert not site.platform.adapters.may_ask("fake")


def test_a_trial_without_the_schedulers_programs_is_unavailable(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(_plan: LaunchPlan) -> str:
        raise SchedulerMissing("sbatch cannot be run")

    monkeypatch.setattr(site.scheduler, "test_only", none_here, raising=False)
    for _ in range(2):
        with pytest.raises(Refused) as refusal:
            plan_submission(site.platform, site.caller, site.submission("a"), trial=True)
        assert (refusal.value.problem.exit_code, refusal.value.problem.message) == (69, "sbatch cannot be run")


def test_a_missing_archive_is_refused(site: Site) -> None:
    (result,) = submit(site.platform, site.caller, [site.submission("a", archive="0" * 64)])
    assert result.problem is not None
    assert result.problem.code == "C102"


def test_exported_variables_and_credentials_are_private_files_and_not_in_the_record(site: Site) -> None:
    manifest = MANIFEST + (
        "data_stores:\n- id: s\n  type: s3_datastore\n  training_data: {container: in}\n"
        "  connection: {auth_url: 'http://x', user_name: me, password: hunter2}\n"
    )
    (result,) = submit(site.platform, site.caller, [site.submission("a", manifest, environ={"TOKEN": "s3cr3t"})])
    assert result.problem is None
    job = site.job(result.id)
    directory = site.platform.root.job(job.id)
    assert "s3cr3t" in Path(directory.exported).read_text()
    assert "hunter2" in Path(directory.secrets).read_text()
    assert stat.S_IMODE(Path(directory.secrets).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(directory.path).stat().st_mode) == 0o700
    assert "hunter2" not in repr(job)
    assert "s3cr3t" not in repr(job)
    with site.platform.store.engine.connect() as connection:
        rows = repr(connection.execute(text("SELECT * FROM jobs")).all())
    assert job.id in rows and "hunter2" not in rows and "s3cr3t" not in rows
    database = Path(site.platform.settings.state_dir)
    for file in database.glob("ffdl.sqlite3*"):
        assert b"hunter2" not in file.read_bytes()
        assert b"s3cr3t" not in file.read_bytes()


def test_a_commit_whose_reply_was_lost_keeps_its_private_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client submits again with the same key, and gets the job of the first time, whole."""
    submission = site.submission("a", environ={"TOKEN": "s3cr3t"})
    add = Store.add_jobs

    def lose_reply(store: Store, jobs: Sequence[NewJob]) -> None:
        add(store, jobs)
        raise StoreUnavailable("the connection was lost; try again")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_jobs", lose_reply)
        with pytest.raises(Refused) as refused:
            submit(site.platform, site.caller, [submission])
    assert (refused.value.status, refused.value.problem.exit_code) == (503, 75)
    (result,) = submit(site.platform, site.caller, [submission])
    (job,) = site.platform.store.list_jobs(uid=None)
    assert result.id == job.id
    assert "s3cr3t" in Path(site.platform.root.job(job.id).exported).read_text()


@pytest.mark.parametrize("array", ["", "0-1"], ids=["job", "array"])
def test_what_a_full_disk_refuses_leaves_nothing(site: Site, monkeypatch: pytest.MonkeyPatch, array: str) -> None:
    """The private files found room, and the record does not."""
    submission = site.submission("a", environ={"TOKEN": "s3cr3t"}, options={"array": array} if array else {})
    kept: list[Path] = []

    def refuse(_: Store, jobs: Sequence[NewJob]) -> None:
        kept.extend(Path(site.platform.root.path).glob("*/*/environment.json"))
        raise StoreUnavailable("the disk is full", is_undone=True)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_jobs", refuse)
        with pytest.raises(Refused, match="the disk is full"):
            submit(site.platform, site.caller, [submission])
    assert len(kept) == 1 and not kept[0].parent.exists()


def test_a_dry_run_sends_and_keeps_nothing(site: Site) -> None:
    view = plan_submission(site.platform, site.caller, site.submission("a"), trial=True)
    assert view.backend == "fake"
    assert view.network == "none"
    assert DRY_RUN_ID in view.files[0].text
    assert "no trial" in view.trial
    assert site.platform.store.count_live() == 0
    assert list((Path(site.platform.root.path) / "jobs").iterdir()) == []
