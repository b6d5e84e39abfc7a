"""Accepting jobs."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import text

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.sbatch.begin_time import read_absolute
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerMissing
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.runtimes.learner_start import RequestRefused, refusal
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.secrets.user_secrets import set_secret
from ffdl_batch.services.submission.dry_run import DRY_RUN_ID, plan_submission
from ffdl_batch.services.submission.submit import submit
from ffdl_batch.store import NewJob, Store, StoreUnavailable
from tests.unit.services.conftest import MANIFEST, Site


def test_submit_stores_pending_job_without_calling_scheduler(site: Site) -> None:
    result = site.send("a")
    job = site.job(result.id)
    assert site.states(job) == ["PENDING"]
    assert (job.backend, result.backend) == ("fake", "fake")
    assert "a warning of the plan" in job.warnings
    assert site.scheduler.submitted == []


@pytest.mark.parametrize(("umask", "stored"), [(0o027, 0o027), (0, 0), (None, 0o077)])
def test_submit_records_umask_and_group_of_submitter(site: Site, umask: int | None, stored: int) -> None:
    job = site.accept("k", umask=umask, gid=os.getegid())
    assert (job.spec.umask, job.spec.gid) == (stored, os.getegid())
    assert not any("group" in warning for warning in job.warnings)


@pytest.mark.parametrize(
    ("umask", "cure"),
    [(0o277, "umask 0077"), (0o777, "umask 0077"), (0o122, "umask 0022"), (0o407, "umask 0007"), (0o700, "umask 0000")],
)
def test_submit_rejects_umask_that_denies_owner_access(site: Site, umask: int, cure: str) -> None:
    problem = site.send("k", umask=umask).problem
    assert problem is not None
    assert (problem.code, problem.cure) == ("C101", f"before you submit, run: {cure}")
    assert f"umask {umask:04o} denies you access to your own new files" in problem.message


@pytest.mark.parametrize("changes", [{"umask": -1}, {"umask": 0o1000}, {"gid": -1}, {"gid": 2**32 - 1}])
def test_submit_rejects_umask_and_group_that_no_process_has(site: Site, changes: dict[str, int]) -> None:
    problem = site.problem("k", MANIFEST, **changes)
    ((name, value),) = changes.items()
    assert (problem.code, problem.message.startswith(f"{name}: {value} is not between")) == ("C101", True)


def test_submit_warns_if_daemon_lacks_group_of_submitter(site: Site, joined_later: int) -> None:
    (warning,) = (one for one in site.send("k", gid=joined_later).warnings if "group" in one)
    assert f"became a member of the group '{joined_later}' (log in again and run: ffdl daemon restart)" in warning
    (warning,) = (one for one in site.send("l", gid=joined_later + 1).warnings if "group" in one)
    assert f"'{joined_later + 1}': user {os.geteuid()}, who runs the daemon, is not a member of it" in warning


def test_submit_returns_same_job_for_same_key(site: Site) -> None:
    assert site.accept("k").id == site.accept("k").id
    assert site.platform.storage.store.count_live() == 1


def test_submit_accepts_or_rejects_each_submission_separately(site: Site) -> None:
    bad = MANIFEST.replace("gpus: 1", "gpus: many")
    requests = [site.submission("a"), site.submission("b", bad), site.submission("c")]
    results = submit(site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, requests)
    assert [bool(r.id) for r in results] == [True, False, True]
    problem = results[1].problem
    assert problem is not None
    assert (problem.exit_code, "manifest.yml:2" in problem.message) == (78, True)


def test_submit_warning_of_backend_names_manifest_line_of_field(site: Site) -> None:
    said = ("batch.signal: no", "batch.comment: no", "http: no", "just so")
    site.scheduler.warns = lambda _spec: said
    submission = site.submission("k", MANIFEST + "batch:\n  signal: USR1@9\n", options={"comment": "c"})
    (result,) = submit(
        site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, [submission]
    )
    assert result.warnings[-4:] == (
        "manifest.yml:8:1: warning: batch.signal: no",
        "warning: --comment: no",
        *said[2:],
    )
    planned = plan_submission(
        site.platform.storage,
        site.platform.adapters,
        site.platform.node_exclusion,
        site.caller,
        submission,
        trial=False,
    )
    assert result.warnings[-4] in planned.warnings
    assert site.job(result.id).warnings[-4:] == said


@pytest.mark.parametrize(
    ("begin", "hours"), [("16:00", 7), ("now+2hours", 2), ("2027-01-15T18:00:00+02:00", 8), ("tomorrow", 15)]
)
def test_submit_reads_times_in_zone_of_submitter(site: Site, begin: str, hours: int) -> None:
    site.clock.tick(1_800_000_000.0 - site.clock.now())  # 08:00 UTC, 09:00 for the submitter
    text = f"{MANIFEST}batch:\n  begin: {begin}\n  slurm: {{args: ['--deadline={begin}']}}\n"
    (result,) = submit(
        site.platform.storage,
        site.platform.adapters,
        site.platform.store_checks,
        site.caller,
        [site.submission("k", text, utc_offsets=((0, 3600),))],
    )
    batch = site.job(result.id).spec.batch
    assert read_absolute(batch.begin) == 1_800_000_000 + 3600 * hours
    assert batch.slurm_args == (f"--deadline={batch.begin}",) and batch.begin.endswith("+01:00")


@pytest.mark.parametrize(
    ("batch", "path"),
    [("begin: 02/29/27", "batch.begin"), ("slurm: {args: [--deadline=02/29/27]}", "batch.slurm.args[0]")],
)
def test_submit_rejects_day_that_does_not_exist(site: Site, batch: str, path: str) -> None:
    problem = site.problem("k", f"{MANIFEST}batch:\n  {batch}\n")
    (finding,) = problem.findings
    assert (problem.exit_code, finding.line, finding.path) == (78, 8, path)
    assert "'02/29/27' is not a time that sbatch accepts" in finding.message


@pytest.mark.parametrize("deadline", ["now", "now-1hour", "01/14/27", "uts1799999999", "2027-01-15T09:00+01:00"])
def test_submit_rejects_deadline_in_the_past(site: Site, deadline: str) -> None:
    """`begin` may be in the past, as for sbatch."""
    site.clock.tick(1_800_000_000.0 - site.clock.now())  # 2027-01-15T08:00 UTC
    text = f"{MANIFEST}batch:\n  begin: now-1hour\n  slurm: {{args: ['--deadline={deadline}']}}\n"
    problem = site.problem("k", text, utc_offsets=((0, 0),))
    (finding,) = problem.findings
    assert (problem.exit_code, finding.line, finding.path) == (78, 9, "batch.slurm.args[0]")
    assert finding.message == f"the deadline {deadline!r} is not in the future"


@pytest.mark.parametrize(
    ("batch", "line", "path"),
    [
        ("  slurm:\n    args:\n    - --exclusive\n    - --deadline=now-1hour\n", 11, "batch.slurm.args[1]"),
        ("  secrets:\n    A: '${secret:a}'\n    B: '${secret:b}'\n", 10, "batch.secrets.B"),
    ],
)
def test_submit_names_the_line_of_the_member(site: Site, batch: str, line: int, path: str) -> None:
    set_secret(site.platform.storage, "a", "value")
    (finding,) = site.problem("k", f"{MANIFEST}batch:\n{batch}").findings
    assert (finding.file, finding.line, finding.path) == ("manifest.yml", line, path)


@pytest.mark.parametrize(
    ("given", "field", "refused", "shown"),
    [
        ({"options": {"nice": "abc"}}, "batch.slurm.args[0]", "--nice: 'abc' is odd", "--nice: 'abc' is odd"),
        ({"options": {"exclusive": "a"}}, "batch.slurm.args[0]", "--exclusive: 'a' is odd", "--exclusive: 'a' is odd"),
        ({"environment_options": {"SBATCH_PARTITION": "p"}}, "batch.partition", "no 'p'", "SBATCH_PARTITION: no 'p'"),
        ({"options": {"partition": "p"}}, "batch.partition", "no 'p'", "--partition: no 'p'"),
        ({"options": {"gpus": "9"}}, "gpus", "no node has more than 4", "--gpus: no node has more than 4"),
    ],
)
def test_submit_names_the_option_that_the_backend_refuses(
    site: Site, monkeypatch: pytest.MonkeyPatch, given: dict[str, dict[str, str]], field: str, refused: str, shown: str
) -> None:
    """Backends know the keys of manifests only."""

    def refuse(_: LaunchRequest) -> LaunchPlan:
        raise RequestRefused([refusal(field, refused)])

    monkeypatch.setattr(site.scheduler, "plan", refuse)
    (finding,) = site.problem("k", MANIFEST, **given).findings
    assert str(finding) == f"error: {shown}"


def test_submit_names_option_with_time_that_does_not_exist(site: Site) -> None:
    (finding,) = site.problem("k", options={"begin": "02/29/27"}).findings
    assert (finding.file, finding.path) == (None, "--begin")


def test_submit_names_keys_without_lines_in_manifest_that_no_user_wrote(site: Site) -> None:
    text = f"{MANIFEST}gpuz: 3\nbatch:\n  begin: 02/29/27\n"
    warning, error = map(str, site.problem("k", text, manifest_name="").findings)
    assert warning == "warning: gpuz: this key is not known and is ignored (did you mean gpus?)"
    assert error.startswith("error: batch.begin: '02/29/27' is not a time")


@pytest.mark.parametrize("offsets", [((0, 90_000),), ((0,),), ((0, 0),) * 1001])
def test_submit_rejects_invalid_utc_offsets(site: Site, offsets: tuple[tuple[int, int], ...]) -> None:
    (result,) = submit(
        site.platform.storage,
        site.platform.adapters,
        site.platform.store_checks,
        site.caller,
        [site.submission("k", utc_offsets=offsets)],
    )
    assert result.problem is not None and "utc_offsets is not a list of pairs" in result.problem.message


def test_submit_rejects_shell_that_chooses_another_cluster(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(_: object, shell: dict[str, str]) -> tuple[str, str]:
        return ("SLURM_CONF differs", "unset it") if shell["SLURM_CONF"] else ("", "")

    monkeypatch.setattr(type(site.scheduler), "compare_cluster", compare, raising=False)
    asked = [site.submission(f"k{n}", cluster=cluster) for n, cluster in enumerate(({"SLURM_CONF": "/a"}, None))]
    refused, accepted = submit(
        site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, asked
    )
    assert refused.problem is not None and accepted.id
    assert (refused.problem.message, refused.problem.cure, refused.problem.exit_code) == (
        "SLURM_CONF differs", "unset it", 69,
    )  # fmt: skip


def test_submit_rejects_impossible_gpu_count_and_leaves_no_job_directory(site: Site) -> None:
    problem = site.problem("a", MANIFEST.replace("gpus: 1", "gpus: 64"))
    assert (problem.exit_code, "no node has 64 GPUs" in problem.message) == (78, True)
    assert list((Path(site.platform.storage.root.path) / "jobs").iterdir()) == []
    assert site.platform.storage.store.count_live() == 0


@pytest.mark.parametrize("wrong", ["cpus: none\n", "gpus: 64\n", "batch: {secrets: {T: '${secret:absent}'}}\n"])
def test_submit_rejection_has_warnings_of_manifest(site: Site, wrong: str) -> None:
    text = MANIFEST.replace("gpus: 1\n", "") + f"memroy: 1GB\n{wrong}"
    said = [str(finding) for finding in site.problem("a", text).findings]
    assert any("memroy" in one and "did you mean memory?" in one for one in said), said


def test_submit_rejection_by_backend_names_manifest_line_of_each_field(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = "data_stores:\n  - {type: directory, training_data: {container: c}, connection: {path: /d}}\n"
    asked = {"data_stores[0].type": 8, "framework.command": 6, "gpus": 2, "batch.roles": None}
    refusal = InvalidRequest("no", tuple(Finding(Severity.ERROR, "no", path=path) for path in asked))
    monkeypatch.setattr(site.scheduler, "plan", Mock(side_effect=refusal))
    found = site.problem("a", MANIFEST + store).findings
    assert [(f.path, f.file, f.line) for f in found] == [(path, "manifest.yml", line) for path, line in asked.items()]


def reads(directory: Path) -> str:
    """A manifest whose data are `in` of a directory."""
    return MANIFEST + (
        "data_stores:\n- id: s\n  type: directory\n  training_data: {container: in}\n"
        f"  connection: {{path: '{directory}'}}\n"
    )


def test_submit_rejects_missing_data_directory_only_if_its_parent_is_visible(site: Site, tmp_path: Path) -> None:
    site.scheduler.needs_dirs = (str(tmp_path / "in"),)
    problem = site.problem("a", reads(tmp_path))
    assert (problem.code, problem.exit_code) == ("C103", 78)
    assert f"data directory {tmp_path / 'in'} does not exist" in problem.message
    assert "manifest.yml:10" in problem.message
    assert "data_stores[0].training_data.container" in problem.message
    site.scheduler.needs_dirs = ("/only/the/nodes/see/this",)
    site.accept("b", reads(tmp_path))


def test_submit_rejects_any_missing_data_directory_for_local_backend(site: Site, tmp_path: Path) -> None:
    site.scheduler.is_this_machine, site.scheduler.needs_dirs = True, ("/nobody/sees/this",)
    assert "data directory /nobody/sees/this does not exist" in site.problem("a", reads(tmp_path)).message


def test_submit_warns_about_links_that_leave_data_directory_of_container(site: Site, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").symlink_to("/scratch/a")
    site.scheduler.needs_dirs, site.scheduler.in_containers = (str(tmp_path / "in"),), True
    (warning,) = [one for one in site.send("b", reads(tmp_path)).warnings if "links" in one]
    assert "lead out of it: a -> /scratch/a (" in warning and "manifest.yml:10" in warning


def test_submit_warns_about_missing_data_directory_of_dependent_job(site: Site, tmp_path: Path) -> None:
    first = site.accept("a")
    site.scheduler.needs_dirs = (str(tmp_path / "in"),)
    result = site.send("b", reads(tmp_path) + f"batch: {{dependency: 'afterok:{first.id}'}}\n")
    assert result.problem is None
    said = f"data directory {tmp_path / 'in'} does not exist yet (C103) (it must exist when the job starts)"
    place = "manifest.yml:10:1: {}data_stores[0].training_data.container: "
    assert f"{place.format('warning: ')}{said}" in result.warnings
    assert f"{place.format('')}{said}" in site.job(result.id).warnings, "show puts Warning before it"


def test_submit_reports_status_75_when_scheduler_is_unreachable(site: Site) -> None:
    site.scheduler.down = True
    assert site.problem().exit_code == 75


def test_submit_accepts_job_while_known_scheduler_is_unreachable(site: Site) -> None:
    site.accept("first")
    site.scheduler.down = True
    site.clock.tick(3600)
    assert site.accept("second").state == "PENDING"


def test_submit_rejects_unknown_backend_and_model_archive_that_is_missing_or_too_large(site: Site) -> None:
    problem = site.problem(backend="pbs")
    assert ("known: " in problem.message, problem.exit_code) == (True, 78)
    assert site.problem(archive="0" * 64).code == "C102"
    site.scheduler.model_bytes = 3
    problem = site.problem()
    assert (problem.code, "bytes, and fake takes 3 (model_bytes)" in problem.message) == ("C102", True)
    assert site.platform.storage.store.count_live() == 0


def test_submit_reports_status_69_if_host_has_no_scheduler(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    error = InvalidRequest("sinfo is not on the PATH: there is no Slurm here")
    monkeypatch.setattr(site.scheduler, "probe", Mock(side_effect=error))
    assert site.problem().exit_code == 69


@pytest.mark.parametrize(
    ("method", "trial", "message"),
    [
        ("probe", False, "sinfo cannot be run: install Slurm's client commands"),
        ("test_only", True, "sbatch cannot be run"),
    ],
)
def test_plan_submission_reports_same_missing_scheduler_error_when_breaker_is_open(
    site: Site, monkeypatch: pytest.MonkeyPatch, method: str, trial: bool, message: str
) -> None:
    monkeypatch.setattr(site.scheduler, method, Mock(side_effect=SchedulerMissing(message)), raising=False)
    for _ in range(2):  # the second is answered by the circuit breaker
        with pytest.raises(Refused) as refusal:
            plan_submission(
                site.platform.storage,
                site.platform.adapters,
                site.platform.node_exclusion,
                site.caller,
                site.submission("a"),
                trial=trial,
            )
        assert (refusal.value.problem.exit_code, refusal.value.problem.message) == (69, message)
    assert trial or not site.platform.adapters.may_ask("fake")


def test_submit_keeps_exported_variables_and_credentials_only_in_private_files(site: Site) -> None:
    manifest = MANIFEST + (
        "data_stores:\n- id: s\n  type: s3_datastore\n  training_data: {container: in}\n"
        "  connection: {auth_url: 'http://x', user_name: me, password: hunter2}\n"
    )
    job = site.accept("a", manifest, environ={"TOKEN": "s3cr3t"})
    directory = site.platform.storage.root.job(job.id)
    assert "s3cr3t" in Path(directory.exported).read_text()
    assert "hunter2" in Path(directory.secrets).read_text()
    assert stat.S_IMODE(Path(directory.secrets).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(directory.path).stat().st_mode) == 0o700
    with site.platform.storage.store.engine.connect() as connection:
        rows = repr(connection.execute(text("SELECT * FROM jobs")).all())
    assert job.id in rows
    files = [file.read_bytes() for file in Path(site.platform.settings.state_dir).glob("ffdl.sqlite3*")]
    for secret in ("hunter2", "s3cr3t"):
        assert secret not in repr(job) and secret not in rows
        assert not any(secret.encode() in file for file in files)


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
            submit(site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, [submission])
    assert (refused.value.status, refused.value.problem.exit_code) == (503, 75)
    (result,) = submit(
        site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, [submission]
    )
    (job,) = site.platform.storage.store.list_jobs(uid=None)
    assert result.id == job.id
    assert "s3cr3t" in Path(site.platform.storage.root.job(job.id).exported).read_text()


@pytest.mark.parametrize("array", ["", "0-1"], ids=["job", "array"])
def test_submit_removes_job_directory_when_database_disk_is_full(
    site: Site, monkeypatch: pytest.MonkeyPatch, array: str
) -> None:
    """The private files found room, and the record does not."""
    submission = site.submission("a", environ={"TOKEN": "s3cr3t"}, options={"array": array} if array else {})
    kept: list[Path] = []

    def refuse(_: Store, jobs: Sequence[NewJob]) -> None:
        kept.extend(Path(site.platform.storage.root.path).glob("*/*/environment.json"))
        raise StoreUnavailable("the disk is full", is_undone=True)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_jobs", refuse)
        with pytest.raises(Refused, match="the disk is full"):
            submit(site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, [submission])
    assert len(kept) == 1 and not kept[0].parent.exists()


def test_submit_dry_run_stores_no_job_and_no_directory(site: Site) -> None:
    view = plan_submission(
        site.platform.storage,
        site.platform.adapters,
        site.platform.node_exclusion,
        site.caller,
        site.submission("a"),
        trial=True,
    )
    assert (view.backend, view.network) == ("fake", "none")
    assert DRY_RUN_ID in view.files[0].text
    assert "no trial" in view.trial
    assert site.platform.storage.store.count_live() == 0
    assert list((Path(site.platform.storage.root.path) / "jobs").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"options": {"comment": "M\udcfcller"}}, "--comment"),
        ({"options": {"job-name": "x", "output": "/\udcfc/%j"}}, "--output"),
        ({"environment_options": {"SBATCH_ACCOUNT": "\udcfc"}}, "SBATCH_ACCOUNT"),
        ({"environ": {"GREETING": "gr\udcfc\udcdf"}}, "GREETING"),
        ({"environ": {"N\udcfc": "x"}}, "N\\xfc"),
        ({"references": {"env:USER": "M\udcfcller"}}, "env:USER"),
        ({"base_dir": "/home/m\udcfcller"}, "the manifest's directory"),
        ({"manifest_name": "m\udcfcller.yml"}, "the manifest's name"),
    ],
)
def test_submit_rejects_text_that_is_not_utf8_and_names_it(site: Site, changes: dict[str, object], path: str) -> None:
    problem = site.problem(**changes)  # type: ignore[arg-type]
    (finding,) = problem.findings
    assert finding.path == path and finding.cure
    problem.message.encode("utf-8")
    assert "not UTF-8" in problem.message
    assert site.platform.storage.store.list_jobs(uid=None) == []
    assert site.accept("k2", options={"comment": "Müller"}).spec.batch.comment == "Müller"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"BIG": "x" * 131072}, "BIG has 131076 bytes; Linux starts no program with more than 131071"),
        ({f"V{n}": "x" * 100_000 for n in range(20)}, "the job's variables have 2000090 bytes"),
    ],
)
def test_submit_rejects_variables_with_which_linux_starts_no_program(
    site: Site, environ: dict[str, str], said: str
) -> None:
    problem = site.problem(environ=environ)
    assert (problem.exit_code, said in problem.message, "--export" in problem.message) == (78, True, True)
