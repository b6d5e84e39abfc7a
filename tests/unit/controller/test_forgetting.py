"""When an attempt's secrets go: by its last word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.head.forgetting import forget_attempt, forget_template, remove
from ffdl_batch.domain.events import FinalRecord, GoesOn, Outcome
from ffdl_batch.domain.jobdir import AttemptDir, JobDir
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand

JOB = "training-0a1b2c3d4"
DONE = FinalRecord("7", Outcome.COMPLETED, 1.0, stored=True, exit_code=0)


@pytest.fixture
def launch(tmp_path: Path) -> LaunchFile:
    """An attempt and a template with secrets."""
    job = JobDir(str(tmp_path / JOB))
    for attempt in (job.attempt(1), job.template):
        Path(attempt.path).mkdir(parents=True)
        Path(attempt.secrets).write_text("{}")
    command = LearnerCommand(("x",), {})
    return LaunchFile(JOB, 1, f"{JOB}-1", job.path, job.attempt(1).path, "/bell", command)


@pytest.mark.parametrize(
    ("final", "kept"),
    [
        (DONE, set()),
        (replace(DONE, outcome=Outcome.HALTED), set()),
        (replace(DONE, outcome=Outcome.FAILED, stored=False, error_code="S303"), {"attempt-1"}),
        (replace(DONE, outcome=Outcome.HALTED, goes_on=GoesOn.SUCCESSOR), {"attempt-next"}),
        (replace(DONE, outcome=Outcome.HALTED, goes_on=GoesOn.PLATFORM), set()),
        (replace(DONE, outcome=Outcome.HALTED, goes_on=GoesOn.REQUEUE), {"attempt-1", "attempt-next"}),
        (replace(DONE, outcome=Outcome.CANCELLED), {"attempt-1", "attempt-next"}),
        (replace(DONE, outcome=Outcome.FAILED, error_code="S106"), {"attempt-1", "attempt-next"}),
    ],
)
def test_secret_removal_keeps_only_files_that_later_runs_need(
    launch: LaunchFile, final: FinalRecord, kept: set[str]
) -> None:
    """A run of the same attempt needs all of it, a successor the template, and what is owed is stored with it."""
    forget_template(launch, final)
    forget_attempt(launch, final)
    assert {path.parent.name for path in Path(launch.job_dir).glob("*/secrets.json")} == kept


def test_secret_removal_warns_about_file_it_cannot_remove(
    launch: LaunchFile, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = AttemptDir(launch.attempt_dir)
    remove(attempt)
    remove(attempt)
    assert capsys.readouterr().err == ""
    Path(attempt.secrets).mkdir()
    remove(attempt)
    assert "secrets.json" in capsys.readouterr().err
