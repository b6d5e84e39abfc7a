"""The gateway over libslurm: what it says of a worker that refuses, dies or is silent. pyslurm itself is a fake."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.sbatch.script_options import SbatchOption
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable, SubmissionUncertain
from ffdl_slurm.gateways.pyslurm_gateway import PyslurmGateway
from ffdl_slurm.gateways.pyslurm_worker import Unmapped, describe_fields
from ffdl_slurm.gateways.submission_files import recover_reply
from ffdl_slurm.sbatch_script import render_script

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
    directory = AttemptDir(str(tmp_path / "attempt-1"))
    Path(directory.path).mkdir()
    options = [SbatchOption("job-name", "t"), SbatchOption("gres", "gpu:2"), SbatchOption("export", "ALL")]
    Path(directory.script).write_text(render_script(options, ["true"]))
    return directory


def test_pyslurm_gateway_submits_script_options_without_daemon_environment(
    make: Make, attempt: AttemptDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "x")
    assert make("").submit(attempt, 0o027) == "4711"
    sent = json.loads((tmp_path / "submitted").read_text())
    assert (sent["name"], sent["gres_per_node"]) == ("t", "gpu:2")
    assert sent["script"] == Path(attempt.script).read_text()
    assert "SECRET_OF_THE_DAEMON" not in sent["environment"] and "LC_ALL" not in sent["environment"]
    assert sent["environment"]["SLURM_UMASK"] == "0027"
    assert recover_reply(attempt) == {"4711"}


def test_pyslurm_gateway_reports_uncertain_submission_for_id_zero(make: Make, attempt: AttemptDir) -> None:
    with pytest.raises(SubmissionUncertain, match="'0'"):
        make("zero").submit(attempt, 0o027)
    assert recover_reply(attempt) == set()


def test_pyslurm_gateway_lists_own_jobs(make: Make) -> None:
    gateway = make("noise")
    (record,) = gateway.list_own_jobs()
    assert (record.job, record.name) == ("7", "training-0a1b2c3d4-1")
    assert (record.observation.restarts, record.observation.nodes) == (1, "n1")
    assert gateway.list_named("other") == []


def test_pyslurm_gateway_lists_array_tasks_by_array_id(make: Make) -> None:
    """Tasks that started (pyslurm has no number for the first), the tasks that wait, and what is left of tasks that
    were cancelled while they waited."""
    records = make("array").list_own_jobs()
    assert [(record.job, record.tasks) for record in records] == [("9", "0"), ("9", "1"), ("9", "2-4%1"), ("9", "0")]
    records = make("rest").list_own_jobs()
    assert [(record.job, record.tasks) for record in records] == [("9", "0"), ("9", None)]


def test_pyslurm_gateway_maps_slurm_errors_like_cli_gateway(make: Make, attempt: AttemptDir) -> None:
    with pytest.raises(InvalidRequest, match="Invalid qos"):
        make("refuse").submit(attempt, 0o027)
    with pytest.raises(SchedulerUnreachable, match="connect failure"):
        make("down").list_own_jobs()
    with pytest.raises(InvalidRequest, match='gateway = "cli"'):
        make("absent").list_own_jobs()
    make("").cancel("404")


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


def test_pyslurm_gateway_cancels_one_job_itself_and_more_by_scancel(make: Make, scancel: Path, tmp_path: Path) -> None:
    """pyslurm takes the number of one job."""
    gateway = make("")
    gateway.cancel("9_4")
    gateway.cancel("7", "9_[0-2]")
    assert scancel.read_text().splitlines() == ["9_4", "7 9_[0-2]"]
    assert not (tmp_path / "cancelled").exists()
    gateway.cancel("7")
    assert (tmp_path / "cancelled").read_text() == "7"
    assert len(scancel.read_text().splitlines()) == 2


def test_pyslurm_gateway_signals_and_withdraws_by_scancel_without_ctld_if_unsupported(
    make: Make, scancel: Path
) -> None:
    gateway = make("")
    gateway.signal("KILL", "7")
    gateway.withdraw("7")
    assert scancel.read_text().splitlines() == ["--signal=KILL 7.0", "--ctld --state=PENDING 7", "--state=PENDING 7"]


def test_pyslurm_gateway_reports_uncertain_submission_when_worker_dies(make: Make, attempt: AttemptDir) -> None:
    gateway = make("die")
    with pytest.raises(SubmissionUncertain, match="it died"):
        gateway.submit(attempt, 0o027)
    assert [record.job for record in gateway.list_own_jobs()] == ["7"]


def test_pyslurm_gateway_restarts_worker_after_fatal_libslurm_error(make: Make) -> None:
    gateway = make("fatal")
    with pytest.raises(SchedulerUnreachable, match="libslurm gave up"):
        gateway.cancel("7")
    assert gateway.list_own_jobs()


@pytest.mark.parametrize("option", [SbatchOption("switches", "1"), SbatchOption("export", "NONE")])
def test_describe_fields_rejects_option_without_pyslurm_field(option: SbatchOption) -> None:
    with pytest.raises(Unmapped, match=f"--{option.name}"):
        describe_fields([option])


@pytest.mark.parametrize(
    ("name", "value", "fields"),
    [
        ("array", "0-9,12%2", {"array": "0-9,12%2"}),
        ("signal", "URG@60", {"signal": "SIGURG@60"}),
        ("signal", "B:USR1@60", {"signal": "B:SIGUSR1@60"}),
        ("signal", "10@60", {"signal": "10@60"}),
        ("hold", None, {"priority": 0}),
        ("no-requeue", None, {"is_requeueable": False}),
        ("mem", "954M", {"memory_per_node": "954M"}),
        ("mail-type", "END,FAIL", {"mail_types": "END,FAIL"}),
        ("mail-type", "NONE", {}),  # pyslurm 25.11 refuses sbatch's word for it: ``Invalid Mail type``
    ],
)
def test_describe_fields_maps_option_to_pyslurm_field(name: str, value: str | None, fields: dict[str, object]) -> None:
    assert describe_fields([SbatchOption(name, value)]) == fields
