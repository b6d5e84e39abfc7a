"""ffdl drill against a fake daemon that plays the course of a job."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.views import AttemptView
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand, encode
from ffdl_batch.domain.launch.limits import LeadFrom, Limits
from ffdl_batch.domain.outcome.continuation import DrillEvent
from tests.unit.cli.drill_stage import CONFIRMED, IGNORED, JOB, MANIFEST, Silent, Stage, start, wait_for_event
from tests.unit.cli.programs import FFDL, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job


def write_launch(job_dir: Path, lead_s: int | None, origin: LeadFrom = LeadFrom.DEFAULT, attempt: int = 1) -> None:
    directory = job_dir / f"attempt-{attempt}"
    directory.mkdir(parents=True)
    launch = LaunchFile(JOB, attempt, f"{JOB}-{attempt}", str(job_dir), str(directory), "/d", LearnerCommand((), {}))
    limits = Limits(lead_s=lead_s, lead_from=origin)
    (directory / "launch.json").write_text(encode(replace(launch, limits=limits)))


def test_drill_timeout_reports_checkpoint_lead_and_next_attempt(daemon: FakeDaemon, tmp_path: Path) -> None:
    write_launch(tmp_path, 12, LeadFrom.MANIFEST)
    Stage(daemon, CONFIRMED).begin(str(tmp_path))
    done = run(FFDL, "drill", "timeout", JOB, daemon=daemon, env={"TZ": "UTC"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"Drill:               timeout on attempt 1 of {JOB}",
        "Ended because:       what ended it",
        "Checkpoint:          asked for, confirmed after 3.2 s",
        "Newest file:         2027-01-15T08:00:00",
        "Lead:                15 s needed; this job has 12 s (from: manifest)",
        "Warning:             12 s before a time limit is too late to save; "
        "set batch: checkpoint: lead_s: 15 in the manifest",
        "Next attempt:        2, PROCESSING 11.0 s after the attempt's end",
        "Result:              a checkpoint was confirmed",
    ]
    assert f"sending timeout to attempt 1 of {JOB}" in done.stderr
    assert daemon.acts == [("drill", JOB, {"event": "timeout"})]
    assert not any("cancel" in request for request in daemon.requests)


def test_drill_halt_resumes_job_unless_no_resume_is_given(daemon: FakeDaemon) -> None:
    stage = Stage(daemon, CONFIRMED, ends_as="HALTED")
    stage.begin()
    (document,) = json_lines(run(FFDL, "drill", "halt", "--json", JOB, daemon=daemon).stdout)
    report = document["drill"]
    assert (report["passed"], report["lead_needed_s"], report["lead_known"]) == (True, 15, False)
    assert (report["next_attempt"], report["next_started_after_s"]) == (2, 10.0)
    assert [verb for verb, _, _ in daemon.acts] == ["drill", "resume"]
    daemon.acts.clear()
    stage.begin()
    done = run(FFDL, "drill", "-Q", "halt", "--no-resume", JOB, daemon=daemon)
    assert (done.returncode, done.stderr, [verb for verb, _, _ in daemon.acts]) == (0, "", ["drill"])
    assert f"Next attempt:        none; to continue: ffdl resume {JOB}" in done.stdout


def test_drill_preempt_fails_if_learners_ignore_checkpoint_request(daemon: FakeDaemon) -> None:
    Stage(daemon, IGNORED, ends_as="FAILED").begin()
    done = run(FFDL, "drill", "preempt", JOB, daemon=daemon)
    assert done.returncode == 1
    assert "Checkpoint:          asked for; the learners did not react and were ended" in done.stdout
    assert "Lead:                nothing was measured; the lead of this job is not known" in done.stdout
    assert "Next attempt:        none; the job is FAILED" in done.stdout
    assert "Result:              no checkpoint was confirmed\nWhat to do:          catch the checkpoint" in done.stdout


def test_drill_node_fail_passes_with_saved_checkpoint_once_next_attempt_started(daemon: FakeDaemon) -> None:
    saved = AttemptView(1, "4711", "slurm", 0.0, checkpoint_saved_at=time.time() - 30.0)
    Stage(daemon, saved, goes_on=True).begin()
    done = run(FFDL, "drill", "node-fail", JOB, daemon=daemon)
    result = "Result:              a checkpoint exists, and the next attempt started"
    assert (done.returncode, result in done.stdout.splitlines()) == (0, True)
    assert " s before the event" in done.stdout
    assert "What to do:" not in done.stdout and "Lead:" not in done.stdout


@pytest.mark.parametrize(
    ("event", "rest"),
    [
        ("timeout", f"{JOB} continues by itself; to follow it: ffdl events -f {JOB}"),
        ("halt", f"{JOB} becomes HALTED; to continue it: ffdl resume {JOB}"),
    ],
)
def test_drill_does_not_cancel_job_after_timeout(daemon: FakeDaemon, event: str, rest: str) -> None:
    Silent(daemon, CONFIRMED).begin()
    done = run(FFDL, "drill", event, "--timeout", "0", JOB, daemon=daemon)
    assert (done.returncode, done.stdout) == (124, "")
    assert done.stderr.splitlines()[-1] == (
        f"ffdl: attempt 1 of {JOB} has not ended in 0 s of PROCESSING (--timeout); the result is not known; {rest}"
    )
    assert not any("cancel" in request for request in daemon.requests)


def test_drill_plays_nothing_if_queue_timeout_expires(daemon: FakeDaemon) -> None:
    stage = Silent(daemon, CONFIRMED)
    stage.begin()
    stage.change("QUEUED", cause="requeued", pending_reason="Priority")
    done = run(FFDL, "drill", "timeout", "--timeout", "0", "--queue-timeout", "0.1", JOB, daemon=daemon)
    assert done.returncode == 124
    assert done.stderr.splitlines() == [
        f"ffdl: {JOB} is QUEUED (Priority); waiting until it is PROCESSING; --timeout counts from then",
        f"ffdl: {JOB} is QUEUED (Priority) after 0.1 s (--queue-timeout), and not PROCESSING; "
        f"{JOB} was not interrupted and continues",
    ]
    assert daemon.acts == []


def test_drill_exits_124_if_next_attempt_after_node_failure_exceeds_queue_timeout(daemon: FakeDaemon) -> None:
    Stage(daemon, replace(CONFIRMED, checkpoint_saved_at=50.0), goes_on=False).begin()
    done = run(FFDL, "drill", "node-fail", "--queue-timeout", "0", JOB, daemon=daemon)
    assert done.returncode == 124, done.stdout
    waited = "Next attempt:        the job is PENDING; the drill stopped waiting (--queue-timeout)"
    assert waited in done.stdout.splitlines()
    assert "a checkpoint was confirmed" not in done.stdout


def test_drill_prints_how_job_continues_after_ctrl_c(daemon: FakeDaemon) -> None:
    Silent(daemon, CONFIRMED).begin()
    process = start(daemon, "halt", JOB)
    wait_for_event(daemon, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    # Where it came between two lines of ours, Python may say behind it that a connection was not closed.
    assert f"ffdl: detached; {JOB} becomes HALTED; to continue it: ffdl resume {JOB}" in errors.splitlines()


def test_drill_rejects_ended_job_and_unknown_array_element(daemon: FakeDaemon) -> None:
    daemon.jobs[JOB] = make_job(JOB, state="FAILED", ended_at=1.0, error_code="C201", message="it broke")
    done = run(FFDL, "drill", "halt", JOB, daemon=daemon)
    assert (done.returncode, daemon.acts) == (1, [])
    assert f"{JOB}: FAILED: C201 it broke" in done.stderr
    assert f"{JOB} is FAILED and was not interrupted: an event is possible only while" in done.stderr
    element = "array-000000001_3"  # which is asked for as a job, and is no manifest
    done = run(FFDL, "drill", "halt", element, daemon=daemon)
    assert f"GET /api/v1/jobs/{element}" in daemon.requests
    assert (done.returncode, daemon.submissions) == (66, {}), done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["halt"], "a manifest or the id of a job is needed"),
        (["halt", JOB, JOB], "one job at a time"),
        (["halt", "a", "b", "c"], "only one manifest and one model"),
        (
            ["halt", "array-000000001"],
            "array-000000001 is an array; name one of its jobs: ffdl drill halt array-000000001_",
        ),
        (["halt", "array-000000001_3", JOB], "one job at a time"),
        (["power-cut", JOB], "power-cut"),
        (["halt", JOB, "--after", "soon"], "'soon' is not a time span"),
        (["halt", JOB, "--after", "5m ago"], "is not a time span"),
        (["halt", JOB, "--timeout", "2s", "--after", "3s"], "would be exceeded before the event (--after 3s)"),
        (["halt", "m.yml", "--timeout", "2s"], "would be exceeded before the event (--after 10s)"),
        (["halt", JOB, "-p", "gpu", "--hold"], "--hold, --partition: options of the job are for trial runs"),
    ],
)
def test_drill_rejects_invalid_arguments(daemon: FakeDaemon, arguments: list[str], message: str) -> None:
    done = run(FFDL, "drill", *arguments, daemon=daemon)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_drill_reports_lead_of_next_attempt(daemon: FakeDaemon, tmp_path: Path) -> None:
    write_launch(tmp_path, 12, LeadFrom.DEFAULT)
    write_launch(tmp_path, 15, LeadFrom.MEASURED, attempt=2)
    Stage(daemon, CONFIRMED).begin(str(tmp_path))
    done = run(FFDL, "drill", "timeout", JOB, daemon=daemon)
    assert "Lead:                15 s needed; this job has 15 s (from: measured)" in done.stdout.splitlines()
    assert "Warning:" not in done.stdout


@pytest.mark.parametrize("name", ["manifest.yml", "manifest.yaml"])
def test_drill_rejects_directory_and_names_its_manifest(daemon: FakeDaemon, tmp_path: Path, name: str) -> None:
    done = run(FFDL, "drill", "halt", tmp_path, daemon=daemon)
    assert (done.returncode, f"{tmp_path} is a directory without a manifest.yml" in done.stderr) == (2, True)
    (tmp_path / name).write_text(MANIFEST)
    done = run(FFDL, "drill", "halt", tmp_path, "/a model", daemon=daemon)
    assert done.returncode == 2
    assert f"name the manifest: ffdl drill halt {tmp_path}/{name} '/a model'" in done.stderr


def test_drill_help_lists_drill_options_before_job_options() -> None:
    text = run(FFDL, "drill", "--help").stdout
    own, _, jobs = text.partition("Options of the job, for a trial run (MANIFEST) only:")
    assert all(f"  --{name} " in own for name in ("after", "timeout", "queue-timeout", "no-resume"))
    assert "--partition" in jobs and "--partition" not in own
    words = [line.split()[0] for line in own.splitlines() if line.startswith("  ")]
    assert [word for word in words if word in list(DrillEvent)] == list(DrillEvent)
