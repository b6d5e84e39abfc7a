"""The SSH gateway where the way to the login node is bad: nothing is lost, nothing is sent twice, nobody guesses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerUnreachable, SubmissionUncertain
from ffdl_slurm.adapter import SlurmScheduler
from tests.contract.scheduler_harness import SlurmOverSshHarness

END_SESSIONS = (
    "for one in $(cat /proc/{pid}/task/{pid}/children); do "
    "kill $one; while kill -0 $one 2>/dev/null; do sleep 0.05; done; done"
)
"""An sshd has a process for each connection. None of them passes anything on afterwards."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SlurmOverSshHarness]:
    with SlurmOverSshHarness(tmp_path) as harness:
        yield harness


def test_ssh_gateway_finds_job_after_connection_breaks_during_sbatch(world: SlurmOverSshHarness) -> None:
    """The shell around sbatch ends all sessions of the node when sbatch has answered."""
    plan = world.prepare("echo hello")
    world.node.write_program(
        "sbatch", f'{_real("sbatch")} "$@"; code=$?; {END_SESSIONS.format(pid=world.node.server.pid)}; exit $code'
    )
    with pytest.raises(SubmissionUncertain, match="was lost"):
        world.scheduler.submit(plan)
    (native,) = world.scheduler.find(plan.token, plan.attempt_dir)
    assert world.accepted() == [native.job]


def test_ssh_gateway_submits_nothing_when_login_node_is_unreachable(world: SlurmOverSshHarness) -> None:
    plan = world.prepare("echo hello")
    assert isinstance(world.scheduler, SlurmScheduler)
    world.scheduler.close()
    world.node.server.stop()
    for _ in range(2):
        with pytest.raises(SchedulerUnreachable, match="cannot be reached"):
            world.scheduler.submit(plan)
    assert world.accepted() == []


def test_ssh_gateway_probe_rejects_state_directory_invisible_to_login_node(world: SlurmOverSshHarness) -> None:
    world.node.write_program("cat", "echo 'cat: no such file' >&2; exit 1")
    with pytest.raises(InvalidRequest, match="does not see") as refused:
        world.scheduler.probe()
    assert "ffdl --host login" in str(refused.value)


def test_ssh_gateway_ignores_login_banner_and_sbatch_variables_of_remote_environment(
    world: SlurmOverSshHarness,
) -> None:
    world.node.write_profile("echo 'JOBID|STATE'; echo 12345; echo 'Unable to contact slurm controller' >&2")
    native, _ = world.submit("true")
    assert world.accepted() == [native.job]
    assert world.await_end(native).exit_code == 0
    (call,) = world.calls("sbatch")
    assert "SBATCH_PARTITION" not in str(call)


def test_ssh_gateway_converts_predicted_start_from_login_node_time_zone(world: SlurmOverSshHarness) -> None:
    at = 1_796_083_200
    world.node.write_program(
        "sbatch",
        f'start=$(TZ=Asia/Tokyo date -d @{at} "+${{SLURM_TIME_FORMAT:-%Y-%m-%dT%H:%M:%S}}")\n'
        'echo "sbatch: Job 9 to start at $start using 4 processors on nodes n1 in partition main" >&2',
    )
    plan = world.prepare("true")
    assert isinstance(world.scheduler, SlurmScheduler)
    assert world.scheduler.foretell(plan).at == at
    shown = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
    assert f"to start at {shown} using" in world.scheduler.test_only(plan)


def _real(name: str) -> str:
    return str(Path(__file__).parents[1] / "fakes" / "bin" / name)
