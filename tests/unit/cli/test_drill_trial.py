"""Trial runs of ffdl drill: one job of the manifest, cancelled on every way out."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from ffdl_batch.cli import trial_runs
from ffdl_batch.cli.options.submission import Manner
from ffdl_batch.domain.job.submission import Expected, Submission, SubmissionResult
from tests.unit.cli.drill_stage import CONFIRMED, JOB, MANIFEST, Silent, Stage, start, wait_for_event
from tests.unit.cli.programs import FFDL, run
from tests.unit.client.fake_daemon import FakeDaemon


def test_drill_trial_submits_named_job_and_cancels_it(daemon: FakeDaemon, trial: Path) -> None:
    Stage(daemon, CONFIRMED).begin()
    done = run(FFDL, "drill", "preempt", "--after", "0.1s", "-p", "gpu", trial / "manifest.yml", daemon=daemon)
    assert done.returncode == 2, "0.1s is no span"
    done = run(FFDL, "drill", "preempt", "--after", "0.1", "-p", "gpu", trial / "manifest.yml", daemon=daemon)
    assert done.returncode == 0, done.stderr
    (sent,) = daemon.submissions.values()
    assert sent.options == {"partition": "gpu", "job-name": "drill-digits"}
    assert sent.archive in daemon.archives
    assert daemon.requests[-1] == f"POST /api/v1/jobs/{JOB}/cancel"
    assert f"trial run {JOB} is being cancelled" in done.stderr


def test_drill_trial_cancels_job_after_timeout(daemon: FakeDaemon, trial: Path, model: Path) -> None:
    Silent(daemon, CONFIRMED).begin()
    options = ("--after", "0", "--timeout", "0", "-J", "mine")
    done = run(FFDL, "drill", "timeout", *options, trial / "manifest.yml", model, daemon=daemon)
    assert done.returncode == 124
    assert done.stderr.splitlines()[-2:] == [
        f"ffdl: trial run {JOB} is being cancelled",
        f"ffdl: attempt 1 of {JOB} has not ended in 0 s of PROCESSING (--timeout); the result is not known",
    ]
    assert next(iter(daemon.submissions.values())).options["job-name"] == "drill-mine"
    assert daemon.requests[-1] == f"POST /api/v1/jobs/{JOB}/cancel"


ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDING)
def test_drill_trial_cancels_job_on_signal(daemon: FakeDaemon, trial: Path, number: signal.Signals) -> None:
    Silent(daemon, CONFIRMED).begin()
    process = start(daemon, "timeout", "--after", "0", trial / "manifest.yml")
    wait_for_event(daemon, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    said = [f"ffdl: trial run {JOB} is being cancelled", f"ffdl: interrupted by {number.name}"]
    assert errors.splitlines()[-2:] == said, errors
    assert f"POST /api/v1/jobs/{JOB}/cancel" in daemon.requests


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a process of one thread that waits, and return when it has dealt with it and waits again."""
    process.send_signal(number)
    while True:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        is_pending = any(int(fields[name][0], 16) >> (number - 1) & 1 for name in ("SigPnd", "ShdPnd"))
        if fields["State"][0] == "Z" or (fields["State"][0] == "S" and not is_pending):
            return
        time.sleep(0.01)


@pytest.mark.parametrize("number", ENDING)
def test_drill_trial_cancels_job_if_signal_arrives_during_submission(
    daemon: FakeDaemon, trial: Path, number: signal.Signals
) -> None:
    """The daemon has the job before the command knows its id."""
    running: list[subprocess.Popen[str]] = []
    accept = daemon.accept

    def accept_late(submission: Submission) -> SubmissionResult:
        while not running:
            time.sleep(0.01)
        interrupt(running[0], number)
        return accept(submission)

    daemon.accept = accept_late  # type: ignore[method-assign]
    running.append(start(daemon, "timeout", trial / "manifest.yml"))
    _, errors = running[0].communicate(timeout=120)
    assert running[0].returncode == 128 + number, errors
    assert f"trial run {JOB} is being cancelled" in errors
    assert daemon.requests[-1] == f"POST /api/v1/jobs/{JOB}/cancel"
    assert daemon.acts == []


def test_drill_trial_reports_possible_submission_after_second_ctrl_c(daemon: FakeDaemon, trial: Path) -> None:
    running: list[subprocess.Popen[str]] = []

    def never_answer(submission: Submission) -> SubmissionResult:
        while not running:
            time.sleep(0.01)
        interrupt(running[0], signal.SIGINT)
        running[0].send_signal(signal.SIGINT)
        running[0].wait(120)
        raise ConnectionError(submission.manifest_name)

    daemon.accept = never_answer  # type: ignore[method-assign]
    running.append(start(daemon, "timeout", trial / "manifest.yml"))
    _, errors = running[0].communicate(timeout=120)
    assert running[0].returncode == 130, errors
    assert "the trial run may have been submitted; find it with ffdl list -n drill-digits" in errors


def test_drill_trial_continues_if_hangup_is_ignored(daemon: FakeDaemon, trial: Path) -> None:
    """As under nohup."""
    stage = Silent(daemon, CONFIRMED)
    stage.begin()
    ignoring = ("/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *FFDL)
    process = start(daemon, "timeout", "--after", "0", trial / "manifest.yml", program=ignoring)
    wait_for_event(daemon, process)
    process.send_signal(signal.SIGHUP)
    Stage.act(stage, "drill", JOB)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, "interrupted" in errors) == (0, False), errors


def test_drill_trial_cancel_times_out_if_daemon_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging:
        def cancel(self, _job_id: str) -> None:
            time.sleep(600)

    monkeypatch.setattr(trial_runs, "CANCEL_S", 1)
    alarm = signal.getsignal(signal.SIGALRM)
    trial_runs._cancel(Hanging(), JOB, Manner())  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said == f"ffdl: trial run {JOB} could not be cancelled: no answer in 1 s; try again: ffdl cancel {JOB}\n"
    assert signal.getsignal(signal.SIGALRM) is alarm


@pytest.mark.parametrize(
    ("batch", "arguments", "env", "index"),
    [
        ("{sweep: {LR: [0.1, 0.2]}}", [], {}, "0"),
        ("{array: '3-9%2'}", [], {}, "3"),
        ("{array: '3-9%2'}", ["--array=5,7"], {"SBATCH_ARRAY_INX": "8"}, "5"),
        ("{array: '3-9%2'}", [], {"SBATCH_ARRAY_INX": "8"}, "3"),
        ("{}", [], {"SBATCH_ARRAY_INX": "8-9"}, "8"),
    ],
)
def test_drill_trial_submits_only_first_element_of_array(
    daemon: FakeDaemon, trial: Path, batch: str, arguments: list[str], env: dict[str, str], index: str
) -> None:
    (trial / "manifest.yml").write_text(MANIFEST + f"batch: {batch}\n")
    Stage(daemon, CONFIRMED).begin()
    daemon.elements = 1
    daemon.on_act = None
    element = "training-000001000"
    options = ("--after", "0", "--timeout", "0")
    done = run(FFDL, "drill", "timeout", *options, *arguments, trial / "manifest.yml", daemon=daemon, env=env)
    assert done.returncode == 124, done.stderr
    (sent,) = daemon.submissions.values()
    assert (sent.options["array"], sent.expected) == (index, Expected.ARRAY)
    assert done.stderr.splitlines()[0] == (
        f"ffdl: trial run {element} is submitted; it is element {index} of the array, without the others"
    )
    assert [verb for verb, job_id, _ in daemon.acts if job_id == element] == ["drill"]
    assert daemon.requests[-1] == f"POST /api/v1/jobs/{element}/cancel"


def test_drill_trial_passes_invalid_array_variable_to_daemon(daemon: FakeDaemon, trial: Path) -> None:
    Silent(daemon, CONFIRMED).begin()
    env = {"SBATCH_ARRAY_INX": "many"}
    run(FFDL, "drill", "timeout", "--after", "0", "--timeout", "0", trial / "manifest.yml", daemon=daemon, env=env)
    (sent,) = daemon.submissions.values()
    assert (sent.environment_options["array"], "array" in sent.options) == ("many", False)
    assert sent.expected is Expected.JOB


def test_drill_trial_rejects_shared_checkpoints(daemon: FakeDaemon, trial: Path) -> None:
    (trial / "manifest.yml").write_text(MANIFEST + "batch: {checkpoint: {shared: true}}\n")
    done = run(FFDL, "drill", "halt", trial / "manifest.yml", daemon=daemon)
    assert (done.returncode, "checkpoints of your other jobs" in done.stderr, daemon.submissions) == (78, True, {})


def test_drill_trial_requires_existing_model_and_manifest(daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "m.yml").write_text(MANIFEST)
    done = run(FFDL, "drill", "halt", tmp_path / "m.yml", daemon=daemon)
    assert (done.returncode, f"there is no {tmp_path}/model" in done.stderr) == (2, True)
    assert run(FFDL, "drill", "halt", "/no/m.yml", "/no/model", daemon=daemon).returncode == 66
