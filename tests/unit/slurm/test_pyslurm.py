"""The gateway over libslurm: what it says of a worker that refuses, dies or is silent. pyslurm itself is a fake."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerUnreachable, SubmissionUncertain
from ffdl_slurm.gateway_pyslurm import PyslurmGateway
from ffdl_slurm.pyslurm_worker import Unmapped, describe_fields
from ffdl_slurm.replies import recover_reply
from ffdl_slurm.script import SbatchOption, render_script

WORKER = Path(__file__).with_name("fake_worker.py")
Make = Callable[[str], PyslurmGateway]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Gateways in a mode of the fake."""
    gateways: list[PyslurmGateway] = []

    def build(mode: str) -> PyslurmGateway:
        gateways.append(PyslurmGateway(30, worker=(sys.executable, str(WORKER), mode, str(tmp_path))))
        return gateways[-1]

    yield build
    for gateway in gateways:
        gateway.close()


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    """A script to submit."""
    directory = AttemptDir(str(tmp_path / "attempt-1"))
    Path(directory.path).mkdir()
    options = [SbatchOption("job-name", "t"), SbatchOption("gres", "gpu:2"), SbatchOption("export", "ALL")]
    Path(directory.script).write_text(render_script(options, ["true"]))
    return directory


def test_a_submission_sends_the_scripts_options_and_a_clean_environment(
    make: Make, attempt: AttemptDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "x")
    assert make("").submit(attempt) == "4711"
    sent = json.loads((tmp_path / "submitted").read_text())
    assert (sent["name"], sent["gres_per_node"]) == ("t", "gpu:2")
    assert sent["script"] == Path(attempt.script).read_text()
    assert "SECRET_OF_THE_DAEMON" not in sent["environment"] and "LC_ALL" not in sent["environment"]
    assert sent["environment"]["SLURM_UMASK"].startswith("0")
    assert recover_reply(attempt) == {"4711"}


def test_an_id_that_is_none_leaves_a_submission_open(make: Make, attempt: AttemptDir) -> None:
    with pytest.raises(SubmissionUncertain, match="'0'"):
        make("zero").submit(attempt)
    assert recover_reply(attempt) == set()


def test_own_jobs_are_listed(make: Make) -> None:
    gateway = make("noise")
    records = gateway.list_own_jobs()
    assert [(r.job, r.name, r.observation.restarts, r.observation.nodes) for r in records] == [
        ("7", "training-0a1b2c3d4-1", 1, "n1")
    ]
    assert gateway.list_named("other") == []


def test_tasks_of_arrays_are_listed_by_the_arrays_number(make: Make) -> None:
    """Tasks that started (pyslurm has no number for the first), the tasks that wait, and what is left of tasks that
    were cancelled while they waited."""
    records = make("array").list_own_jobs()
    assert [(record.job, record.tasks) for record in records] == [("9", "0"), ("9", "1"), ("9", "2-4%1"), ("9", "0")]
    records = make("rest").list_own_jobs()
    assert [(record.job, record.tasks) for record in records] == [("9", "0"), ("9", None)]


def test_slurms_words_mean_the_same_as_with_the_commands(make: Make, attempt: AttemptDir) -> None:
    with pytest.raises(InvalidRequest, match="Invalid qos"):
        make("refuse").submit(attempt)
    with pytest.raises(SchedulerUnreachable, match="connect failure"):
        make("down").list_own_jobs()
    make("").cancel("404")


def test_a_cancellation_is_asked_of_libslurm(make: Make, tmp_path: Path) -> None:
    make("").cancel("7")
    assert (tmp_path / "cancelled").read_text() == "7"


def test_tasks_and_many_jobs_are_cancelled_by_the_command(make: Make, scancel: Path, tmp_path: Path) -> None:
    """pyslurm takes the number of one job."""
    gateway = make("")
    gateway.cancel("9_4")
    gateway.cancel("7", "9_[0-2]")
    assert scancel.read_text().splitlines() == ["9_4", "7 9_[0-2]"]
    assert not (tmp_path / "cancelled").exists()


@pytest.fixture
def scancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scancel that writes down what it was asked, and does not know --ctld."""
    program, calls = tmp_path / "bin" / "scancel", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\n'
        'case "$*" in *--ctld*) echo "scancel: unrecognized option \'--ctld\'" >&2; exit 1;; esac\n'
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return calls


def test_signals_go_to_the_heads_step_by_the_command(make: Make, scancel: Path) -> None:
    make("").signal("KILL", "7")
    assert scancel.read_text().splitlines() == ["--signal=KILL 7.0"]


def test_a_release_without_the_atomic_filter_withdraws_too(make: Make, scancel: Path) -> None:
    make("").withdraw("7")
    assert scancel.read_text().splitlines() == ["--ctld --state=PENDING 7", "--state=PENDING 7"]


def test_a_worker_that_dies_while_it_submits_leaves_it_open(make: Make, attempt: AttemptDir) -> None:
    gateway = make("die")
    with pytest.raises(SubmissionUncertain, match="it died"):
        gateway.submit(attempt)
    assert [record.job for record in gateway.list_own_jobs()] == ["7"]


def test_a_fatal_libslurm_ends_the_worker_only(make: Make) -> None:
    gateway = make("fatal")
    with pytest.raises(SchedulerUnreachable, match="libslurm gave up"):
        gateway.cancel("7")
    assert gateway.list_own_jobs()


def test_a_missing_pyslurm_is_said(make: Make) -> None:
    with pytest.raises(InvalidRequest, match='gateway = "cli"'):
        make("absent").list_own_jobs()


def test_options_without_a_field_are_refused_by_name() -> None:
    with pytest.raises(Unmapped, match="--switches"):
        describe_fields([SbatchOption("switches", "1")])
    with pytest.raises(Unmapped, match="--export"):
        describe_fields([SbatchOption("export", "NONE")])


@pytest.mark.parametrize(
    ("option", "field", "value"),
    [
        (SbatchOption("array", "0-9,12%2"), "array", "0-9,12%2"),
        (SbatchOption("signal", "URG@60"), "signal", "SIGURG@60"),
        (SbatchOption("signal", "B:USR1@60"), "signal", "B:SIGUSR1@60"),
        (SbatchOption("signal", "10@60"), "signal", "10@60"),
        (SbatchOption("hold"), "priority", 0),
        (SbatchOption("no-requeue"), "is_requeueable", False),
        (SbatchOption("kill-on-invalid-dep", "yes"), "kill_on_invalid_dependency", True),
        (SbatchOption("mem", "954M"), "memory_per_node", "954M"),
    ],
)
def test_fields(option: SbatchOption, field: str, value: object) -> None:
    assert describe_fields([option]) == {field: value}


def test_no_mail_is_said_by_leaving_it_out() -> None:
    """pyslurm 25.11 refuses sbatch's word for it: ``Invalid Mail type``."""
    assert describe_fields([SbatchOption("mail-type", "NONE")]) == {}
    assert describe_fields([SbatchOption("mail-type", "END,FAIL")]) == {"mail_types": "END,FAIL"}
