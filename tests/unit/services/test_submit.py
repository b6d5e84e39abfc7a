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


def test_submit_stores_pending_job_without_calling_scheduler(site: Site) -> None:
    job = site.accept()
    assert site.states(job) == ["PENDING"]
    assert job.backend == "fake"
    assert "a warning of the plan" in job.warnings
    assert site.scheduler.submitted == []


def test_submit_result_names_backend_of_accepted_job(site: Site) -> None:
    (result,) = submit(site.platform, site.caller, [site.submission("a")])
    assert result.backend == "fake"


def test_submit_returns_same_job_for_same_key(site: Site) -> None:
    assert site.accept("k").id == site.accept("k").id
    assert site.platform.store.count_live() == 1


def test_submit_accepts_or_rejects_each_submission_separately(site: Site) -> None:
    bad = MANIFEST.replace("gpus: 1", "gpus: many")
    results = submit(
        site.platform, site.caller, [site.submission("a"), site.submission("b", bad), site.submission("c")]
    )
    assert [bool(r.id) for r in results] == [True, False, True]
    problem = results[1].problem
    assert problem is not None
    assert problem.exit_code == 78
    assert "manifest.yml:2" in problem.message


def test_submit_warning_of_backend_names_manifest_line_of_field(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_submit_rejects_impossible_gpu_count_and_leaves_no_job_directory(site: Site) -> None:
    (result,) = submit(site.platform, site.caller, [site.submission("a", MANIFEST.replace("gpus: 1", "gpus: 64"))])
    assert result.problem is not None
    assert (result.problem.exit_code, "no node has 64 GPUs" in result.problem.message) == (78, True)
    assert list((Path(site.platform.root.path) / "jobs").iterdir()) == []
    assert site.platform.store.count_live() == 0


def test_submit_rejection_by_backend_names_manifest_line_of_each_field(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_submit_rejects_missing_data_directory_only_if_its_parent_is_visible(site: Site, tmp_path: Path) -> None:
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


def test_submit_rejects_any_missing_data_directory_for_local_backend(site: Site, tmp_path: Path) -> None:
    site.scheduler.is_this_machine, site.scheduler.needs_dirs = True, ("/nobody/sees/this",)
    (result,) = submit(site.platform, site.caller, [site.submission("a", reads(tmp_path))])
    assert result.problem is not None
    assert "data directory /nobody/sees/this does not exist" in result.problem.message


def test_submit_warns_about_missing_data_directory_of_dependent_job(site: Site, tmp_path: Path) -> None:
    (first,) = submit(site.platform, site.caller, [site.submission("a")])
    site.scheduler.needs_dirs = (str(tmp_path / "in"),)
    waits = reads(tmp_path) + f"batch: {{dependency: 'afterok:{first.id}'}}\n"
    (result,) = submit(site.platform, site.caller, [site.submission("b", waits)])
    assert result.problem is None
    said = f"data directory {tmp_path / 'in'} does not exist yet (C103) (it has to be there when the job starts)"
    assert [warning for warning in result.warnings if said in warning and "manifest.yml:10" in warning]


def test_submit_reports_status_75_when_scheduler_is_unreachable(site: Site) -> None:
    site.scheduler.down = True
    (result,) = submit(site.platform, site.caller, [site.submission("a")])
    assert result.problem is not None
    assert result.problem.exit_code == 75


def test_submit_accepts_job_while_known_scheduler_is_unreachable(site: Site) -> None:
    site.accept("first")
    site.scheduler.down = True
    site.clock.tick(3600)
    assert site.accept("second").state == "PENDING"


def test_submit_rejects_unknown_backend_and_lists_known_backends(site: Site) -> None:
    (result,) = submit(site.platform, site.caller, [site.submission("a", backend="pbs")])
    assert result.problem is not None
    assert "known: " in result.problem.message
    assert result.problem.exit_code == 78


def test_submit_reports_status_69_if_host_has_no_scheduler(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here() -> BackendFacts:
        raise InvalidRequest("sinfo is not on the PATH: there is no Slurm here")

    monkeypatch.setattr(site.scheduler, "probe", none_here)
    (result,) = submit(site.platform, site.caller, [site.submission("a")])
    assert result.problem is not None
    assert result.problem.exit_code == 69


def test_submit_plan_reports_same_missing_scheduler_error_when_breaker_is_open(
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


def test_submit_trial_reports_status_69_if_sbatch_is_missing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(_plan: LaunchPlan) -> str:
        raise SchedulerMissing("sbatch cannot be run")

    monkeypatch.setattr(site.scheduler, "test_only", none_here, raising=False)
    for _ in range(2):
        with pytest.raises(Refused) as refusal:
            plan_submission(site.platform, site.caller, site.submission("a"), trial=True)
        assert (refusal.value.problem.exit_code, refusal.value.problem.message) == (69, "sbatch cannot be run")


def test_submit_rejects_missing_model_archive(site: Site) -> None:
    (result,) = submit(site.platform, site.caller, [site.submission("a", archive="0" * 64)])
    assert result.problem is not None
    assert result.problem.code == "C102"


def test_submit_keeps_exported_variables_and_credentials_only_in_private_files(site: Site) -> None:
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


def test_submit_keeps_private_files_when_commit_reply_is_lost(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_submit_removes_job_directory_when_database_disk_is_full(
    site: Site, monkeypatch: pytest.MonkeyPatch, array: str
) -> None:
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


def test_submit_dry_run_stores_no_job_and_no_directory(site: Site) -> None:
    view = plan_submission(site.platform, site.caller, site.submission("a"), trial=True)
    assert view.backend == "fake"
    assert view.network == "none"
    assert DRY_RUN_ID in view.files[0].text
    assert "no trial" in view.trial
    assert site.platform.store.count_live() == 0
    assert list((Path(site.platform.root.path) / "jobs").iterdir()) == []
