"""The verbs of ffdl as processes against a fake daemon."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from ffdl_batch.domain.incidents.incident import EvidenceRow, IncidentRow
from ffdl_batch.domain.job.views import AttemptView, LearnerView, LogLine, RestartView
from tests import preloaded
from tests.unit.cli.programs import FFDL, FFDL_SUBMIT, environment, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB = "training-000000001"


@pytest.fixture
def job(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that knows one failed job."""
    daemon.jobs[JOB] = make_job(
        JOB, state="FAILED", ended_at=1_800_000_100.0, error_code="C201", message="the learner ended with an error",
        cure="read its log", exit_code=3, exit_signal=9, results="/r", gpu_type="a100",
        timestamps={"PENDING": 1_800_000_000.0, "PROCESSING": 1_800_000_050.0},
        sources={"cpus": "manifest:4", "batch.time": "command line"},
        log_tail=("Traceback", "boom \x1b[2J"), warnings=("memory was rounded",),
    )  # fmt: skip
    return daemon


@pytest.mark.parametrize("verb", ["list", "ls", "ps"])
def test_list_prints_table_of_jobs(job: FakeDaemon, verb: str) -> None:
    job.jobs["b"] = make_job("b", state="QUEUED", nodes="", pending_reason="Resources")
    job.jobs["c"] = make_job("c", requested_action="cancel", name="n" * 60)
    done = run(FFDL, verb, daemon=job, env={"TZ": "UTC"})
    lines = done.stdout.splitlines()
    head = ["ID", "NAME", "FRAMEWORK", "STATE", "GPUS", "TIME", "SUBMITTED", "ENDED", "NODES(REASON)"]
    assert lines[0].split() == head
    first = [JOB, "digits", "pytorch:debian", "FAILED", "0", "0:50", "2027-01-15T08:00:00", "2027-01-15T08:01:40"]
    assert lines[1].split()[:8] == first
    assert lines[1].endswith("(C201 the learner ended with an error)")
    assert lines[2].endswith("N/A                  (Resources)")
    assert lines[3].endswith("(cancel requested)")
    assert "\x1b" not in done.stdout


def test_list_filters_by_state_and_limit_and_reports_jobs_cut_by_default_limit(job: FakeDaemon) -> None:
    done = run(FFDL, "list", "--noheader", "-t", "failed,halted", "-t", "QUEUED", "-l", "5", daemon=job)
    assert len(done.stdout.splitlines()) == 1
    assert job.requests == ["GET /api/v1/jobs?state=FAILED&state=HALTED&state=QUEUED&limit=6"]
    job.jobs["b"] = make_job("b")
    cut = run(FFDL, "ls", "--noheader", "-l", "1", daemon=job)
    assert (len(cut.stdout.splitlines()), cut.stderr) == (1, "")
    wrong = run(FFDL, "list", "-t", "WALKING", daemon=job)
    assert (wrong.returncode, "'WALKING' is not a state; states are PENDING" in wrong.stderr) == (2, True)
    assert json_lines(run(FFDL, "list", "--json", daemon=job).stdout)[0]["jobs"][0]["id"] == JOB
    job.jobs |= {f"training-{n}": make_job(f"training-{n}") for n in range(100)}
    cut = run(FFDL, "ls", "--noheader", daemon=job)
    assert (len(cut.stdout.splitlines()), "more than 100 jobs" in cut.stderr) == (100, True)


@pytest.mark.parametrize("verb", ["show", "status", "describe"])
def test_show_prints_all_fields_of_job(job: FakeDaemon, verb: str) -> None:
    done = run(FFDL, verb, JOB, daemon=job, env={"TZ": "UTC"})
    assert done.returncode == 0
    for text in (
        "State:               FAILED",
        "Error code:          C201",
        "What to do:          read its log",
        "Exit code:           3",
        "Ended by signal:     9 (SIGKILL)",
        "CPUs:                2  [manifest:4]",
        "GPUs:                1 of type a100",
        "Memory:              8GB",
        "Network requested:   auto",
        "Network achieved:    none",
        "Results:             /r",
        "  PROCESSING:        2027-01-15T08:00:50",
        "Warning:             memory was rounded",
        "  batch.time: command line",
        "  boom \\x1b[2J",
    ):
        assert text in done.stdout
    (document,) = json_lines(run(FFDL, "show", "--json", JOB, daemon=job).stdout)
    assert document["job"]["exit_signal"] == 9


@pytest.mark.parametrize("verb", ["show", "wait", "halt", "cancel", "resume", "logs", "events"])
def test_verbs_exit_66_for_unknown_job_id(job: FakeDaemon, verb: str) -> None:
    done = run(FFDL, verb, "training-zzzzzzzzz", daemon=job)
    said = "ffdl: there is no job training-zzzzzzzzz\n"
    assert (done.returncode, done.stdout, done.stderr) == (66, "", said)
    if verb == "show":
        both = run(FFDL, verb, "training-zzzzzzzzz", JOB, daemon=job)
        assert (both.returncode, said in both.stderr, JOB in both.stdout) == (66, True, True)


def test_show_prints_table_of_learners_if_states_are_known(job: FakeDaemon) -> None:
    attempt = AttemptView(1, "4711", "slurm", 0.0, learner_restarts=(RestartView(0.0, "learner 2 ended with ..."),))
    job.jobs[JOB] = make_job(
        JOB, learners=3, attempts=(attempt,),
        learner_list=(
            LearnerView(1, "running", "worker", 0, name="l-0", node="n1"),
            LearnerView(2, "ended", "worker", 1, name="l-1", node="n2", exit_code=7, restarts=2),
            LearnerView(3, "ended", "ps", 0, service=True, name="l-2", node="n2", exit_signal=15, ended_by="stop"),
        ),
    )  # fmt: skip
    shown = run(FFDL, "show", JOB, daemon=job, env={"TZ": "UTC"}).stdout
    assert (
        "Learners:\n"
        "LEARNER  ROLE      NAME  NODE  STATE                         AGAIN\n"
        "1        worker 0  l-0   n1    running                       N/A\n"
        "2        worker 1  l-1   n2    ended with exit code 7        2\n"
        "3        ps 0      l-2   n2    was killed by SIGTERM (stop)  N/A\n"
    ) in shown
    assert "In attempt 1:        1970-01-01T00:00:00 learner 2 ended with ...\n" in shown
    (document,) = json_lines(run(FFDL, "show", "--json", JOB, daemon=job).stdout)
    assert document["job"]["learner_list"][1]["node"] == "n2"
    job.jobs[JOB] = make_job(JOB, learners=3)  # as older records, whose files tell nothing
    assert "Learners:\n" not in run(FFDL, "show", JOB, daemon=job).stdout


@pytest.mark.parametrize(
    ("limit_at", "shown"),
    [
        (None, "1970-01-01T01:00:00"),
        (6120.0, "1970-01-01T01:00:00, 42 min before its time limit"),
        (3000.0, "1970-01-01T01:00:00, 10 min after its time limit"),
    ],
)
def test_show_compares_expected_end_with_time_limit(job: FakeDaemon, limit_at: float | None, shown: str) -> None:
    job.jobs[JOB] = make_job(JOB, expected_end=3600.0, limit_at=limit_at)
    assert f"Expected end:        {shown}\n" in run(FFDL, "show", JOB, daemon=job, env={"TZ": "UTC"}).stdout


def test_show_omits_evidence_that_repeats_incident_message(job: FakeDaemon) -> None:
    evidence = (EvidenceRow("controller", "no image"), EvidenceRow("scheduler", "Failed (no image)"))
    row = IncidentRow(
        JOB, 1, "", "container.image_missing", "container", "", "", 0.0, 0.0, "S105", "no image", evidence=evidence
    )
    job.jobs[JOB] = make_job(JOB, incidents=(row,))
    shown = run(FFDL, "show", JOB, daemon=job, env={"TZ": "UTC"}).stdout
    said = "  1970-01-01T00:00:00  container.image_missing: no image (attempt 1)\n    scheduler: Failed (no image)\n"
    assert f"Incidents:\n{said}" in shown
    assert "    controller: " not in shown


def test_logs_prints_merged_or_separate_output_of_learners(job: FakeDaemon) -> None:
    job.jobs[JOB] = make_job(JOB, learners=2)
    job.lines = [LogLine(1, 1, "a"), LogLine(2, 1, "b"), LogLine(1, 2, "c\x1b[31m")]
    assert run(FFDL, "logs", JOB, daemon=job).stdout == "[1] a\n[2] b\n[1] c\x1b[31m\n"
    assert run(FFDL, "logs", "--by-learner", JOB, daemon=job).stdout == "[1] a\n[1] c\x1b[31m\n[2] b\n"
    assert run(FFDL, "logs", "--learner", "2", JOB, daemon=job).stdout == "b\n"
    documents = json_lines(run(FFDL, "logs", "--json", JOB, daemon=job).stdout)
    assert [document["line"]["line"] for document in documents][:2] == ["a", "b"]
    job.requests.clear()
    run(FFDL, "logs", "-f", "-n", "2", "--since", "1700000000", JOB, daemon=job)
    assert job.requests[-1] == f"GET /api/v1/jobs/{JOB}/logs?follow=true&since=1700000000.000000&tail=2"


def test_loglines_pages_lines_like_ffdl(job: FakeDaemon) -> None:
    job.lines = [LogLine(1, n, f"line {n}", 1.5 if n == 3 else None) for n in range(1, 8)]

    def lines(*arguments: str) -> list[str]:
        return run(FFDL, "loglines", *arguments, JOB, daemon=job).stdout.splitlines()

    assert lines("--pos", "3", "--pagesize", "2") == ["3 1500 line 3", "4 N/A line 4"]
    assert lines("--pos=-2") == ["6 N/A line 6", "7 N/A line 7"]
    assert len(lines()) == 7


def test_logs_exits_silently_when_pipe_is_closed(job: FakeDaemon) -> None:
    job.lines = [LogLine(1, n, "x" * 1000) for n in range(1, 2000)]
    with preloaded.Popen(
        [*FFDL, "logs", JOB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(job)
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(120) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("arguments", [["list"], ["logs", "-f", JOB], ["--help"], ["version", "--json"]])
@pytest.mark.parametrize(
    ("redirection", "sentence"),
    [(">&-", "is closed"), (">/dev/full", "cannot be written: No space left on device")],
)
def test_commands_report_closed_or_full_standard_output(
    job: FakeDaemon, arguments: list[str], redirection: str, sentence: str
) -> None:
    job.lines = [LogLine(1, n, "x" * 1000) for n in range(1, 100)]
    done = run(("/bin/sh", "-c", f'exec "$@" {redirection}', "sh"), *FFDL, *arguments, daemon=job)
    assert (done.returncode, done.stderr) == (1, f"ffdl: standard output {sentence}\n")


def test_submit_quiet_ignores_closed_standard_output(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    program = ("/bin/sh", "-c", 'exec "$@" >&-', "sh", *FFDL_SUBMIT)
    done = run(program, "-Q", manifest, model, daemon=daemon)
    assert (done.returncode, done.stderr, len(daemon.submissions)) == (0, "", 1)


def test_wait_exits_with_job_exit_status_or_124_after_timeout(job: FakeDaemon) -> None:
    done = run(FFDL, "wait", JOB, daemon=job)
    assert (done.returncode, done.stdout) == (137, f"{JOB} FAILED\n")
    job.jobs[JOB] = make_job(JOB, state="COMPLETED", ended_at=1.0, warnings=("other", "results: \x1b[2J is a link"))
    done = run(FFDL, "wait", JOB, daemon=job)
    assert (done.returncode, done.stderr) == (0, f"ffdl: {JOB}: results: \\x1b[2J is a link\n")
    job.jobs[JOB] = make_job(JOB)
    late = run(FFDL, "wait", "--timeout", "0", JOB, daemon=job)
    assert (late.returncode, late.stderr) == (124, f"ffdl: {JOB} is PROCESSING after 0 s and continues\n")


def test_wait_for_state_returns_in_that_state_or_with_exit_status_of_ended_job(job: FakeDaemon) -> None:
    job.jobs[JOB] = make_job(JOB)
    done = run(FFDL, "wait", "--for", "RUNNING", JOB, daemon=job)
    assert (done.returncode, done.stdout) == (0, f"{JOB} PROCESSING\n")
    late = run(FFDL, "wait", "--for", "storing", "--timeout", "0", JOB, daemon=job)
    assert (late.returncode, late.stderr) == (
        124, f"ffdl: {JOB} has not ended, and nothing has happened to it in time\n")  # fmt: skip
    job.jobs[JOB] = make_job(JOB, state="COMPLETED", ended_at=1.0)
    assert run(FFDL, "wait", "--for", "PROCESSING,STORING", JOB, daemon=job).returncode == 1
    assert run(FFDL, "wait", "--for", "CD", JOB, daemon=job).returncode == 0
    for wrong in ("NONSENSE", "", "all"):
        refused = run(FFDL, "wait", "--for", wrong, JOB, daemon=job)
        assert (refused.returncode, "Error: --for: " in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_cancel_continues_after_unknown_job_id(job: FakeDaemon, verb: str) -> None:
    job.jobs[JOB] = make_job(JOB)
    done = run(FFDL, verb, "training-zzzzzzzzz", JOB, daemon=job)
    assert (done.returncode, done.stdout) == (66, f"{JOB} PROCESSING, cancel requested\n")
    assert job.jobs[JOB].requested_action == "cancel"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED"])
def test_cancel_warns_if_job_has_ended_but_was_not_cancelled(job: FakeDaemon, state: str) -> None:
    """Of a cancelled job it does not matter when that was: what was asked for is so."""
    job.jobs[JOB] = make_job(JOB, state=state, ended_at=1_800_000_100.0)
    warning = f"ffdl: {JOB} had ended already, as {state}; nothing was cancelled\n" if state != "CANCELLED" else ""
    done = run(FFDL, "cancel", JOB, daemon=job)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{JOB} {state}\n", warning)
    as_json = run(FFDL, "cancel", "--json", JOB, daemon=job)
    (document,) = json_lines(as_json.stdout)
    assert (document["job"]["state"], as_json.stderr) == (state, warning)


def test_validate_checks_manifests_without_daemon(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yml", tmp_path / "bad.yml"
    good.write_text("name: a\nframework: {name: custom, version: custom, command: 'true'}\nmemory: 1GB\n")
    bad.write_text("name: a\nframework: {name: nope, version: 1, command: x}\nmemory: 1\n")
    fine = run(FFDL, "validate", good, good)
    closing = "resources, images and data were not checked; to check them, run: ffdl plan FILE MODEL"
    assert (fine.returncode, fine.stdout.splitlines()) == (0, [f"{good}: ok", f"{good}: ok", closing])
    assert run(FFDL, "validate", "-Q", good).stdout == ""
    both = run(FFDL, "validate", good, bad, "/no/file")
    assert both.returncode == 78
    assert f"{bad}:3:9: error: memory" in both.stderr
    assert "/no/file: No such file or directory" in both.stderr
    whole = run(FFDL, "validate", "--json", good, bad, "/no/file")
    documents = json_lines(whole.stdout)
    assert (whole.returncode, whole.stderr) == (78, "")
    valid = {document["file"]: document["valid"] for document in documents}
    assert (valid, len(documents)) == ({str(good): True, str(bad): False, "/no/file": False}, 3)
    assert documents[1]["findings"][0]["severity"] == "error"
    assert documents[2]["findings"][0]["message"] == "No such file or directory"
    assert run(FFDL, "validate", "--json", "/no/file", good).returncode == 66


@pytest.mark.parametrize(
    ("kind", "connection", "line"),
    [
        ("mount_cos", "auth_url: s3.example.org", "8:17: error: data_stores[0].connection.auth_url: "),
        ("mount_cos", "auth_url: https://bad host.example.org", "8:17: error: data_stores[0].connection.auth_url: "),
        ("mount_cos", "auth_url: https://a..b", "8:17: error: data_stores[0].connection.auth_url: "),
        ("mount_cos", "auth_url: https://h:99999", "8:17: error: data_stores[0].connection.auth_url: "),
        ("mount_cos", "auth_url: https://192.0.2.256", "8:17: error: data_stores[0].connection.auth_url: "),
        ("mount_cos", "user_name: ${env:ME}", "8:18: error: data_stores[0].connection.user_name: "),
        ("mount_cos", "password: ${env:ME}", "8:17: error: data_stores[0].connection.password: "),
        ("swift_datastore", "region: x", "7:5: error: data_stores[0].connection.auth_url: "),
        ("mount_cos", "{user_name: \"a\\n\", password: b}", "8:19: warning: data_stores[0].connection.user_name: "),
        ("mount_cos", "password: ''", "8:7: warning: data_stores[0].connection.password: password is empty"),
        ("mount_cos", "auth_url: 'https://[2001:db8::1]:9000'", ""),
        ("mount_cos", "auth_url: http://minio_1:9000/path", ""),
        ("fsspec_datastore", "{protocol: sftp, host: 'h:99999'}", "8:30: error: data_stores[0].connection.host: "),
    ],
)  # fmt: skip
def test_validate_reports_invalid_address_user_and_password_at_their_line(
    tmp_path: Path, kind: str, connection: str, line: str
) -> None:
    file = tmp_path / "m.yml"
    file.write_text(
        "name: a\nframework: {name: custom, version: custom, command: 'true'}\nmemory: 1GB\ndata_stores:\n"
        f"  - type: {kind}\n    training_data: {{container: c}}\n    connection:\n      {connection}\n"
    )
    done = run(FFDL, "validate", file)
    found = [text for text in done.stderr.splitlines() if "connection." in text]
    assert [text.startswith(f"{file}:{line}") for text in found] == [True] * bool(line)
    assert done.returncode == (78 if "error" in line else 0)


def test_init_writes_manifest_that_validate_accepts(tmp_path: Path) -> None:
    done = run(FFDL, "init", "my-job", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Submit it: ffdl-submit my-job/manifest.yml my-job/model\n")
    assert run(FFDL, "validate", "--strict", "my-job/manifest.yml", cwd=tmp_path).returncode == 0
    assert list((tmp_path / "my-job" / "model").iterdir())
    again = run(FFDL, "init", "my-job", cwd=tmp_path)
    assert (again.returncode, "exists; nothing was changed" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(['a b"$(x)'], ['a b"$(x)/manifest.yml', 'a b"$(x)/model']), (["--", "-x"], ["./-x/manifest.yml", "./-x/model"])],
)
def test_init_quotes_next_command_for_shell(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    done = run(FFDL, "init", *arguments, cwd=tmp_path)
    assert shlex.split(done.stdout.removeprefix("Submit it: ")) == ["ffdl-submit", *words]
    assert all((tmp_path / word).exists() for word in words)


def test_config_prints_origin_of_values_and_rejects_unknown_keys(tmp_path: Path) -> None:
    (tmp_path / "ffdl.toml").write_text('default_memory = "4GB"\n[backend.slurm]\npartition = "gpu"\n')
    done = run(FFDL, "config", "--json", cwd=tmp_path, env={"FFDL_BACKEND": "local"})
    values = json_lines(done.stdout)[0]["settings"]
    assert values["default_memory"] == {"value": "4GB", "origin": str(tmp_path / "ffdl.toml")}
    assert values["backend"] == {"value": "local", "origin": "environment FFDL_BACKEND"}
    assert values["check_images"] == {"value": True, "origin": "default"}
    assert (values["lease_s"]["value"], values["network_minimum"]["value"]) == (30.0, "host")
    assert values["images_dirs"]["value"][-1] == "/opt/ffdl/images"
    assert values["frameworks"]["value"]["custom"]["versions"] == {"python-numpy": "custom"}
    assert values["backend.slurm.partition"] == {"value": "gpu", "origin": str(tmp_path / "ffdl.toml")}
    assert f"ffdl: using {tmp_path / 'ffdl.toml'}: backend.slurm.partition, default_memory\n" in done.stderr
    assert values["backend.slurm.gateway"] == {"value": "cli", "origin": "default"}
    assert values["backend.local.require_gpus"] == {"value": False, "origin": "default"}
    assert values["database"]["value"].startswith("sqlite:///")
    shown = run(FFDL, "config", cwd=tmp_path, env={"PATH": "/nonexistent"}).stdout
    assert '"/usr/local/share/ffdl/images", "/opt/ffdl/images"]' in shown and "local (no sbatch on the PATH)" in shown
    (tmp_path / "ffdl").mkdir()
    (tmp_path / "ffdl/config.toml").write_text("lease_s = 20\n")
    files = {"XDG_CONFIG_HOME": str(tmp_path), "FFDL_CONFIG": str(tmp_path / "ffdl.toml")}
    laid = run(FFDL, "config", cwd=tmp_path, env=files).stderr
    assert "does not replace the other files" in laid and f"from {tmp_path / 'ffdl/config.toml'}" in laid
    (tmp_path / "ffdl.toml").write_text("[backend.slurm]\nbatch_limit = 7\n")
    unknown = run(FFDL, "config", cwd=tmp_path, env={"FFDL_CONFIG": str(tmp_path / "ffdl.toml")})
    said = f"{tmp_path / 'ffdl.toml'}: [backend.slurm]: unknown key 'batch_limit'"
    assert (unknown.returncode, said in unknown.stderr) == (78, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_script_for_each_shell(shell: str) -> None:
    done = run(FFDL, "completion", shell)
    assert done.returncode == 0, done.stderr
    assert "_FFDL_COMPLETE" in done.stdout
    assert "_FFDL_SUBMIT_COMPLETE" in done.stdout


def test_completion_completes_verb_and_option() -> None:
    env = {"_FFDL_COMPLETE": "bash_complete", "COMP_WORDS": "ffdl li", "COMP_CWORD": "1"}
    assert run(FFDL, env=env).stdout == "plain,list\n"
    env = {"_FFDL_SUBMIT_COMPLETE": "bash_complete", "COMP_WORDS": "ffdl-submit --parti", "COMP_CWORD": "1"}
    assert run(FFDL_SUBMIT, env=env).stdout == "plain,--partition\n"


def test_ffdl_suggests_nearest_verb_for_typo() -> None:
    done = run(FFDL, "lits")
    assert (done.returncode, "did you mean list?" in done.stderr) == (2, True)


def test_version_prints_text_and_json_and_schema_prints_json_schema() -> None:
    assert json.loads(run(FFDL, "schema").stdout)["type"] == "object"
    assert run(FFDL, "version").stdout.startswith("ffdl ")
    assert json_lines(run(FFDL, "version", "--json").stdout)[0]["version"]
