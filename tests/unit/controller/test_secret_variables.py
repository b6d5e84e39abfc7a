"""Secrets of learners: into their environment, and nowhere else."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.file_writer import make_private
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.controller.head.final_record import forget_attempt, forget_template, remove_secrets
from ffdl_batch.controller.learner.environment import EnvironmentRefused, pick_secrets
from ffdl_batch.controller.node import learner_setup as seats_module
from ffdl_batch.controller.node.learner_setup import LearnerSetup
from ffdl_batch.domain.launch.launch_file import EnvDelivery, LaunchFile, LearnerCommand
from ffdl_batch.domain.outcome.controller_events import FinalRecord, GoesOn, Outcome
from tests.unit.controller.rig import launch_file

JOB = "training-0a1b2c3d4"


def test_pick_secrets_maps_variables_to_secret_values() -> None:
    text = json.dumps({"hub": "h", "key": "k", "other": "o"})
    found = pick_secrets(text, {"TOKEN": "hub", "KEY": "key", "AGAIN": "hub"})
    assert found == {"TOKEN": "h", "KEY": "k", "AGAIN": "h"}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"hub": 1}', '{"hub": "hunter2'])
def test_pick_secrets_rejects_invalid_file_without_printing_values(text: str) -> None:
    with pytest.raises(EnvironmentRefused, match=r"secrets\.json") as error:
        pick_secrets(text, {"TOKEN": "hub"})
    assert "hunter2" not in str(error.value)
    assert error.value.__cause__ is None and error.value.__suppress_context__ is (text == '{"hub": "hunter2')


def seats(tmp_path: Path, delivery: EnvDelivery) -> LearnerSetup:
    attempt = JobDir(str(tmp_path / JOB)).attempt(1)
    for directory in (attempt.path, attempt.state):
        Path(directory).mkdir(parents=True)
    Path(attempt.environment).write_text(json.dumps({"TOKEN": "in-clear", "PLAIN": "p"}))
    Path(attempt.secrets).write_text(json.dumps({"hub": "it's\nsecret"}))
    command = LearnerCommand(("x", "{env_file}"), {"LEARNER_ID": "1"}, delivery, protected=("LEARNER_ID",))
    launch = launch_file(
        attempt.path, job_id=JOB, token=f"{JOB}-1", job_dir=str(tmp_path / JOB), learner=command,
        scratch_base=str(tmp_path), secrets={"TOKEN": "hub", "LEARNER_ID": "hub"},
    )  # fmt: skip
    found = LearnerSetup(launch, AttemptDir(attempt.path).launch, 0)
    make_private(found.scratch)
    return found


@pytest.fixture(autouse=True)
def undumped(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    calls: list[bool] = []
    monkeypatch.setattr(seats_module, "hide_memory", lambda: calls.append(True))
    return calls


def test_seats_pass_secrets_in_process_environment(tmp_path: Path, undumped: list[bool]) -> None:
    start = seats(tmp_path, EnvDelivery.PROCESS).start(1)
    assert (start.env["TOKEN"], start.env["PLAIN"], start.env["LEARNER_ID"]) == ("it's\nsecret", "p", "1")
    assert "it's" not in " ".join(start.argv) and undumped


def test_seats_pass_secrets_to_container_in_file_removed_after_reading(tmp_path: Path) -> None:
    found = seats(tmp_path, EnvDelivery.FILE)
    start = found.start(1)
    file = Path(start.argv[1])
    assert "it'\"'\"'s\nsecret" in file.read_text() and file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in repr(start.env)
    found.hide(2)
    assert file.exists()
    found.hide(1)
    assert not file.exists()
    found.hide(1)
    found.start(1)
    assert file.exists(), "a learner that is started again needs it again"


def test_seats_keep_environment_file_without_secrets(tmp_path: Path) -> None:
    found = seats(tmp_path, EnvDelivery.FILE)
    found.launch = replace(found.launch, secrets={})
    file = Path(found.start(1).argv[1])
    found.hide(1)
    assert file.exists() and "in-clear" in file.read_text()


def test_hide_memory_disables_core_dumps_for_process_and_children() -> None:
    """Nor does what it starts; but that may ask for one."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    look = (
        "import ctypes, resource, subprocess\n"
        "from ffdl_batch.host.core_dumps import hide_memory\n"
        "hide_memory()\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE), flush=True)\n"
        "subprocess.run(['sh', '-c', 'ulimit -c'], check=True)\n"
    )
    said = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["0", str(min(1, hard) if hard >= 0 else 1), str(hard), "0"]


def test_learner_of_controller_with_secrets_is_preferred_victim_of_kernel() -> None:
    look = (
        "import ctypes, os\n"  # while this user can still read the interpreter's files
        "from ffdl_batch.controller.become import VICTIM_SCORE\n"
        "from ffdl_batch.controller.learner import learner\n"
        "from ffdl_batch.host.core_dumps import hide_memory\n"
        "before = int(open('/proc/self/oom_score_adj').read())\n"
        "os.getuid() or os.setresuid(4321, 4321, 4321)\n"
        "hide_memory()\n"
        "learner._prepare()\n"
        "print(int(open('/proc/self/oom_score_adj').read()) == min(1000, before + VICTIM_SCORE))\n"
    )
    said = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("True\n", "")


def test_seats_remove_secret_files_of_earlier_attempts(tmp_path: Path) -> None:
    found = seats(tmp_path, EnvDelivery.FILE)
    found.launch = replace(found.launch, attempt=3)
    names = [f"ffdl-{JOB}-{number}-{rank}" for number, rank in ((1, 0), (1, 5), (2, 0), (3, 1), (12, 0))]
    for name in (*names, "ffdl-training-zzzzzzzzz-1-0"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "learner-1.env").write_text("TOKEN='x'\n")
    found.clear_earlier()
    left = {path.name for path in tmp_path.glob("ffdl-*")}
    assert left == {f"ffdl-{JOB}-3-1", f"ffdl-{JOB}-12-0", "ffdl-training-zzzzzzzzz-1-0"}


# ------------------------------------------------------------------------------ when the files of secrets are removed


DONE = FinalRecord("7", Outcome.COMPLETED, 1.0, stored=True, exit_code=0)


@pytest.fixture
def launch(tmp_path: Path) -> LaunchFile:
    """An attempt and a template with secrets."""
    job = JobDir(str(tmp_path / "job"))
    for attempt in (job.attempt(1), job.template):
        Path(attempt.path).mkdir(parents=True)
        Path(attempt.secrets).write_text("{}")
    return launch_file(job.attempt(1).path, job_dir=job.path)


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
    """A run of the same attempt needs all of it, a successor the template, and pending uploads are stored with it."""
    forget_template(launch, final)
    forget_attempt(launch, final)
    assert {path.parent.name for path in Path(launch.job_dir).glob("*/secrets.json")} == kept


def test_secret_removal_warns_about_file_it_cannot_remove(
    launch: LaunchFile, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = AttemptDir(launch.attempt_dir)
    remove_secrets(attempt)
    remove_secrets(attempt)
    assert capsys.readouterr().err == ""
    Path(attempt.secrets).mkdir()
    remove_secrets(attempt)
    assert "secrets.json" in capsys.readouterr().err
