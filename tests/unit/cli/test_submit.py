"""ffdl-submit as a process: what it prints, sends and exits with."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ffdl_batch.cli.render.plan import print_plan
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.submission import Submission
from ffdl_batch.domain.job.views import JobView, PlannedFileView, Problem
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand, encode
from tests.unit.cli.programs import FFDL, FFDL_SUBMIT, environment, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job, make_plan


def only_submission(daemon: FakeDaemon) -> Submission:
    (sent,) = daemon.submissions.values()
    return sent


def test_submit_sends_manifests_at_once_and_prints_one_id_each_like_sbatch(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    done = run(FFDL_SUBMIT, manifest, model, daemon=daemon)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job training-000000001\n", "")
    done = run(FFDL_SUBMIT, "--parsable", manifest, manifest, model, daemon=daemon)
    assert (done.returncode, done.stdout) == (0, "training-000000002\ntraining-000000003\n")
    assert (daemon.batches, len(daemon.archives)) == ([1, 2], 1)


@pytest.mark.parametrize("verb", ["submit", "train"])
def test_ffdl_submit_and_train_verbs_submit_job(daemon: FakeDaemon, manifest: Path, model: Path, verb: str) -> None:
    done = run(FFDL, verb, "-Q", "--json", manifest, model, daemon=daemon)
    assert json_lines(done.stdout)[0]["result"]["id"] == "training-000000001"


def test_submit_sends_command_line_and_environment_options(
    daemon: FakeDaemon, manifest: Path, model: Path, tmp_path: Path
) -> None:
    arguments = ["-t", "2:00", "-pgpu", "-A", "a b", "-H", "--gres=gpu:2", "-o", "out-%j", "-C", "$(id)", "--requeue"]
    env = {
        "SBATCH_QOS": "high",
        "SBATCH_OUTPUT": "x",
        "FFDL_NETWORK": "job",
        "FFDL_BACKEND": "local",
        "SBATCH_ARRAY_INX": "0-4",
    }
    done = run(FFDL_SUBMIT, *arguments, manifest, model, daemon=daemon, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    sent = only_submission(daemon)
    named = {"time": "2:00", "partition": "gpu", "account": "a b", "gres": "gpu:2", "constraint": "$(id)"}
    assert sent.options == {**named, "hold": "", "requeue": "", "output": f"{tmp_path}/out-%j"}
    assert sent.environment_options == {"qos": "high", "output": f"{tmp_path}/x", "network": "job", "array": "0-4"}
    assert (sent.backend, sent.environ, sent.strict) == ("local", {}, False)


def test_submit_exports_only_named_variables_without_slurm_variables(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    env = {"SBATCH_EXPORT": "MINE", "MINE": "1", "SLURM_JOB_ID": "7"}
    run(FFDL_SUBMIT, manifest, model, daemon=daemon, env=env)
    assert only_submission(daemon).environ == {"MINE": "1"}
    daemon.submissions.clear()
    done = run(FFDL_SUBMIT, "--export=NOPE,SLURM_JOB_ID,A=b", manifest, model, daemon=daemon, env=env)
    assert only_submission(daemon).environ == {"A": "b"}
    assert "NOPE is not set" in done.stderr
    assert run(FFDL_SUBMIT, "--export='A=b", manifest, model, daemon=daemon).returncode == 2


def test_submit_warns_of_ignored_sbatch_variable(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    env = {"SBATCH_HINT": "nomultithread"}
    assert "SBATCH_HINT is ignored" in run(FFDL_SUBMIT, manifest, model, daemon=daemon, env=env).stderr
    assert run(FFDL_SUBMIT, "-Q", manifest, model, daemon=daemon, env=env).stderr == ""


def test_submit_reads_manifest_from_standard_input(daemon: FakeDaemon, model: Path) -> None:
    done = run(FFDL_SUBMIT, "-", model, daemon=daemon, text="name: x\n")
    assert (done.returncode, only_submission(daemon).manifest) == (0, "name: x\n")


def test_submit_accepts_other_manifests_after_one_refusal(
    daemon: FakeDaemon, manifest: Path, model: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text("x")
    daemon.refuse_names = frozenset({str(bad)})
    done = run(FFDL_SUBMIT, manifest, bad, manifest, model, daemon=daemon)
    assert (done.returncode, done.stdout.count("Submitted")) == (78, 2)
    assert f"ffdl-submit: {bad} is wrong (correct it)" in done.stderr
    assert "1 of 3 manifests were refused" in done.stderr


def test_submit_prints_findings_with_file_and_line(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    finding = Finding(Severity.ERROR, "no such key", "did you mean cpus?", "m.yml", 3, 7, "cpsu")
    others = (Finding(Severity.WARNING, "why", path="cpu"), Finding(Severity.NOTE, "by the way"))
    daemon.refusals["/api/v1/jobs"] = (422, Problem("C101", "the manifest is wrong", 78, findings=(*others, finding)))
    done = run(FFDL_SUBMIT, manifest, model, daemon=daemon)
    assert done.returncode == 78
    said = ["warning: cpu: why", "m.yml:3:7: error: cpsu: no such key (did you mean cpus?)"]
    assert done.stderr.splitlines() == [f"ffdl-submit: {line}" for line in said]


def test_submit_rejects_missing_model_argument_and_conflicting_options(
    daemon: FakeDaemon, manifest: Path, tmp_path: Path
) -> None:
    alone = run(FFDL_SUBMIT, manifest, daemon=daemon)
    assert (alone.returncode, "the model (a directory or zip archive) is missing" in alone.stderr) == (2, True)
    assert run(FFDL_SUBMIT, daemon=daemon).returncode == 2
    both = run(FFDL_SUBMIT, "--requeue", "--no-requeue", manifest, tmp_path, daemon=daemon)
    assert (both.returncode, "exclude each other" in both.stderr) == (2, True)


def test_submit_exits_66_for_missing_manifest_or_model(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    assert run(FFDL_SUBMIT, "/no/m.yml", model, daemon=daemon).returncode == 66
    no_model = run(FFDL_SUBMIT, manifest, "/no/model", daemon=daemon)
    assert no_model.returncode == 66
    assert no_model.stderr.startswith("ffdl-submit: model /no/model: there is no such file or directory")
    assert daemon.submissions == {}


def test_submit_dry_run_prints_plan_as_text_or_json_and_submits_nothing(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    (model / ".git").mkdir()
    done = run(FFDL_SUBMIT, "--dry-run", manifest, model, daemon=daemon)
    assert done.returncode == 0
    assert re.search(r"^model: \d+ B, sha256 [0-9a-f]{64}; left out: '\.git/'$", done.stdout, re.MULTILINE)
    for text in ("sbatch '--job-name=a b'", "#!/bin/bash\nexec head\n", "apptainer exec '{image}'", "A='x y'"):
        assert text in done.stdout
    assert "### file launch.json (mode 0600)\n{}\n" in done.stdout
    assert done.stdout.count("exec head") == 1
    assert done.stderr == "ffdl-submit: warning: a warning\n"
    assert [request.split()[1] for request in daemon.requests] == ["/api/v1/plan"]
    for program in ((*FFDL_SUBMIT, "--dry-run"), (*FFDL, "plan")):
        (document,) = json_lines(run(program, "--json", manifest, model, daemon=daemon).stdout)
        assert document["manifest"] == str(manifest)
        assert document["plan"]["submit_argv"] == ["sbatch", "--job-name=a b"]
        assert document["model"]["left_out"] == [".git/"]


def test_print_plan_shows_commands_as_they_will_run(capsys: pytest.CaptureFixture[str]) -> None:
    learner = LearnerCommand(("exec", "{scratch}/w", "${{HOME-}} {{}}"), {"RANK": "{rank}", "B": "{{b}}", "C": "{{c}}"})
    launch = encode(LaunchFile("training-1", 1, "t", "/j", "/j/1", "/d", learner))
    plan = replace(
        make_plan(Submission("", "", "", "", "")),
        learner_argv=learner.argv,
        environment={"RANK": "{rank}", "B": "{{b}}", "C": "{{mine}}"},
        files=(PlannedFileView("launch.json", launch, 0o600),),
    )
    print_plan(plan, "m.yml", "1 MiB")
    shown, _, file = capsys.readouterr().out.partition("### file launch.json (mode 0600)\n")
    assert "\nexec '{scratch}/w' '${HOME-} {}'\n" in shown
    assert "\nB='{b}'\nC='{{mine}}'\nRANK='{rank}'\n" in shown, "what the user gave is no template"
    assert file == launch


def test_print_plan_writes_kubernetes_objects_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    documents = ("kind: Job\nspec:\n  suspend: true\n", "kind: Secret\n")
    print_plan(
        replace(make_plan(Submission("", "", "", "", "")), backend="kubernetes", objects=documents), "m.yml", "1 MiB"
    )
    shown = capsys.readouterr().out
    assert list(yaml.safe_load_all(shown)) == [{"kind": "Job", "spec": {"suspend": True}}, {"kind": "Secret"}]
    assert "# network isolation: none (asked for: auto)\n" in shown and "### plan of m.yml" in shown


def test_submit_test_only_prints_to_stderr_like_sbatch(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    done = run(FFDL_SUBMIT, "--test-only", "-Q", manifest, model, daemon=daemon)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "ffdl-submit: would start at once\n")


def test_submit_wait_exits_with_largest_exit_status_and_prints_last_line_of_failed_job(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    tail = ("Traceback", "ValueError: boom \x1b[2J", " ")
    failed = make_job(
        "training-000000001", state="FAILED", exit_code=3, error_code="C201", message="it broke", log_tail=tail
    )
    ends = {failed.id: failed, "training-000000002": make_job(state="COMPLETED", exit_code=0)}
    daemon.on_wait = lambda job_id: ends[job_id]
    done = run(FFDL_SUBMIT, "-W", manifest, manifest, model, daemon=daemon)
    assert (done.returncode, done.stderr.splitlines()) == (3, [
        f"ffdl-submit: {failed.id}: FAILED: C201 it broke",
        f"ffdl-submit: {failed.id}: its last line: ValueError: boom \\x1b[2J",
        f"ffdl-submit: {failed.id}: the whole output: ffdl logs {failed.id}; everything else: ffdl show {failed.id}",
    ])  # fmt: skip
    daemon.on_wait = lambda _: make_job(state="FAILED", exit_signal=9)
    assert run(FFDL_SUBMIT, manifest, model, daemon=daemon, env={"SBATCH_WAIT": "1"}).returncode == 137


@pytest.mark.parametrize("elements", [0, 3])
def test_submit_wait_continues_while_no_daemon_answers(
    daemon: FakeDaemon, manifest: Path, model: Path, elements: int
) -> None:
    daemon.elements = elements

    def stop_answering(job_id: str) -> JobView:
        """Answer that the job runs, and end it while no request is answered."""
        going = daemon.jobs.get(job_id, make_job())
        daemon.on_wait, daemon.hang_ups = end, 4
        return going

    def end(job_id: str) -> JobView:
        ended = {one: replace(job, state="FAILED", exit_code=3, ended_at=1.0) for one, job in daemon.jobs.items()}
        daemon.jobs.update(ended)
        return ended.get(job_id, make_job())

    daemon.on_wait = stop_answering
    done = run(FFDL_SUBMIT, "--wait", manifest, model, daemon=daemon)
    assert done.returncode == 3, done.stderr
    assert (done.stderr.count("trying again until the daemon answers"), daemon.hang_ups) == (1, 0)
    assert (len(daemon.submissions), done.stdout.count("Submitted batch job")) == (1, 1)


def test_submit_wait_detaches_on_ctrl_c_without_cancelling(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    asked, release = threading.Event(), threading.Event()

    def hold(job_id: str) -> object:
        asked.set()
        release.wait(120)
        return make_job(job_id)

    daemon.on_wait = hold  # type: ignore[assignment]
    command = [*FFDL_SUBMIT, "--wait", str(manifest), str(model)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(daemon)
    ) as process:
        try:
            assert asked.wait(120)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            release.set()
            process.kill()
    assert process.returncode == 130
    assert out == "Submitted batch job training-000000001\n"
    assert "detached; training-000000001 continues. To follow again: ffdl wait training-000000001" in err
    assert not any("cancel" in request for request in daemon.requests)


def test_submit_prints_traceback_of_unexpected_error_only_in_debug_mode(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    broken = "import ffdl_batch.client.api as a; a.Client.upload = lambda *_: 1/0; "
    program = (sys.executable, "-c", f"{broken}from ffdl_batch.cli.commands.submit import main; main()")
    done = run(program, manifest, model, daemon=daemon)
    assert done.returncode == 1
    assert "ffdl-submit: unexpected error: ZeroDivisionError: division by zero" in done.stderr
    assert f"{daemon.path.parent}/state/daemon.log" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in run(program, manifest, model, daemon=daemon, env={"FFDL_DEBUG": "1"}).stderr


HEAVY = ("pydantic", "sqlalchemy", "yaml", "fastapi", "uvicorn", "alembic", "ffdl_batch.manifest", "ffdl_batch.store")
PROBE = """
import atexit, sys
atexit.register(lambda: print("LOADED", *[m for m in {heavy!r} if m in sys.modules], file=sys.stderr))
from ffdl_batch.cli.commands.submit import main
main()
"""


def test_submit_and_help_import_no_heavy_modules(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    program = (sys.executable, "-c", PROBE.format(heavy=HEAVY))
    for arguments in (["--help"], ["-v", str(manifest), str(model)], ["--dry-run", str(manifest), str(model)]):
        done = run(program, *arguments, daemon=daemon)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "LOADED")
    heavy = (*HEAVY, "ffdl_batch.client", "http.client", "ffdl_batch.cli.commands.submit", "tomllib", "zipfile")
    probe = PROBE.format(heavy=heavy).replace("cli.commands.submit import main", "cli.main import main")
    for arguments in (["--help"], ["version"]):  # of ffdl: no verb and no client
        done = run((sys.executable, "-c", probe), *arguments)
        assert (done.returncode, done.stderr) == (0, "LOADED\n")


@pytest.mark.parametrize("verb", ["halt", "resume", "drill"])
def test_halt_resume_and_drill_import_no_heavy_modules(daemon: FakeDaemon, verb: str) -> None:
    daemon.jobs["training-000000001"] = make_job(state="COMPLETED", ended_at=1.0)
    program = (sys.executable, "-c", PROBE.format(heavy=HEAVY).replace("cli.commands.submit import", "cli.main import"))
    arguments = [verb, "halt", "training-000000001"] if verb == "drill" else [verb, "training-000000001"]
    done = run(program, *arguments, daemon=daemon)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (int(verb == "drill"), "LOADED")


def test_submit_rejects_socket_in_directory_writable_by_others(manifest: Path, model: Path, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    (runtime / "ffdl").mkdir(parents=True)
    os.chmod(runtime / "ffdl", 0o777)  # noqa: PTH101
    env = {"FFDL_SOCKET": "", "XDG_RUNTIME_DIR": str(runtime)}
    done = run(FFDL_SUBMIT, manifest, model, env=env)
    assert done.returncode == 77
    assert "lets others in" in done.stderr


@pytest.mark.parametrize("words", [FFDL_SUBMIT, (*FFDL_SUBMIT, "--dry-run"), (*FFDL, "plan"), (*FFDL, "drill", "halt")])
def test_submit_plan_and_drill_read_files_outside_manifest_directory_only_if_allowed(
    daemon: FakeDaemon, model: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "a key").write_text("planted")
    manifest = tmp_path / "job" / "m.yml"
    manifest.parent.mkdir()
    (manifest.parent / "link").symlink_to("../a key")
    manifest.write_text("name: x\nbatch: {secrets: {KEY: '${file:link}'}}\n")
    done = run(words, manifest, model, daemon=daemon)
    assert (done.returncode, done.stdout, daemon.requests) == (77, "", [])
    assert f"{manifest}:2:25: error: KEY: '${{file:link}}' is not allowed" in done.stderr
    assert f"--allow-file '{tmp_path}/a key')" in done.stderr
    if words == FFDL_SUBMIT:
        run(words, "--allow-file", tmp_path / "a key", manifest, model, daemon=daemon)
        assert only_submission(daemon).references == {"file:link": "planted"}


def test_validate_warns_of_reference_that_submission_refuses(tmp_path: Path) -> None:
    text = (
        "name: x\nframework: {name: custom, version: x, command: y}\nbatch: {secrets: {KEY: '${file:/etc/passwd}'}}\n"
    )
    (tmp_path / "m.yml").write_text(text)
    done = run(FFDL, "validate", tmp_path / "m.yml")
    assert done.returncode == 0
    assert "m.yml:3:25: warning: KEY: '${file:/etc/passwd}' is not allowed" in done.stderr


def test_submit_does_not_take_file_name_for_text_of_manifest(daemon: FakeDaemon, model: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "name: x\nbatch: {secrets: {A: '${env:HOME}'}}\n.yml"
    done = run(FFDL_SUBMIT, manifest.name, model, daemon=daemon, cwd=tmp_path)
    assert (done.returncode, daemon.requests) == (66, [])
    manifest.write_text("name: y\n")
    run(FFDL_SUBMIT, manifest.name, model, daemon=daemon, cwd=tmp_path)
    assert (only_submission(daemon).manifest, only_submission(daemon).references) == ("name: y\n", {})


def test_submit_warns_about_large_model_and_prints_its_size_with_v(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    with (model / "weights").open("wb") as file:
        file.truncate(51 * 1000**2)
    done = run(FFDL_SUBMIT, "-v", manifest, model, daemon=daemon)
    assert f"ffdl-submit: model {model}: 48.6 MiB, sha256 " in done.stderr
    assert f"ffdl-submit: warning: model {model} has 48.6 MiB (the largest: 'weights' 48.6 MiB, " in done.stderr
    (model / ".ffdlignore").write_text("weights\n")
    done = run(FFDL_SUBMIT, manifest, model, daemon=daemon)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(zipfile.ZipFile(io.BytesIO(list(daemon.archives.values())[1])).namelist()) == [
        ".ffdlignore", "train.py",
    ]  # fmt: skip
