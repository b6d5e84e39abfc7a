"""Slurm's variables and commands in learners of every backend."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.job.array import ArrayId, expand
from ffdl_batch.domain.job.learner_layout import Gang, lay_out, members_of
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Placement, Resources, Role
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.runtimes.learner_contract import SHELL
from ffdl_batch.runtimes.learner_start import Runtime, Start, Subject, compose_start
from ffdl_batch.runtimes.slurm_commands import INSTALLATION
from ffdl_batch.runtimes.slurm_environment import HOST_VALUES, SLURM_SHELL, job_number, node_names, per_node
from tests.unit.controller.rig import until

ID = "training-0a1b2c3d4"
JOB = JobDir(f"/s/jobs/{ID}")
ONE = JobSpec(
    "digits", Framework("pytorch", "1", "bash job.sh"), resources=Resources(cpus=4, gpus=2),
    batch=BatchOptions(slurm_environment=True, partition="gpu", account="vision"),
)  # fmt: skip
FOUR = replace(ONE, resources=Resources(learners=4, cpus=4, gpus=2))


def gang_of(spec: JobSpec, nodes: int) -> Gang:
    members = members_of(spec)
    found = lay_out(members, Placement.PACK, lambda load: nodes if load.gpus <= 8 // nodes else 0)
    assert found is not None
    return found


def start(spec: JobSpec, nodes: int = 1, image: str = "/i.sif", **changes: object) -> Start:
    subject = Subject(ID, spec, gang_of(spec, nodes), JOB, JOB.attempt(1))
    return compose_start(subject, Runtime(image, **changes))  # type: ignore[arg-type]


def test_slurm_environment_describes_single_learner_as_job_with_one_task() -> None:
    env = start(ONE).learner.env
    expected = {
        "SLURM_JOB_ID": str(job_number(ID)), "SLURM_JOBID": str(job_number(ID)), "SLURM_JOB_NAME": "digits",
        "SLURM_NTASKS": "1", "SLURM_NPROCS": "1", "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NODEID": "{node_rank}", "SLURM_PROCID": "{rank}", "SLURM_LOCALID": "0", "SLURM_CPUS_PER_TASK": "4",
        "SLURM_CPUS_ON_NODE": "4", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "{gpus}",
        "SLURM_MEM_PER_NODE": "7630", "SLURM_JOB_NODELIST": "{hostname}", "SLURM_SUBMIT_DIR": "/job/model-code",
        "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ACCOUNT": "vision", "SLURM_TMPDIR": "/tmp", "TMPDIR": "/tmp",
    }  # fmt: skip
    assert {name: env.get(name) for name in expected} == expected
    assert "SLURM_ARRAY_JOB_ID" not in env


def test_slurm_environment_uses_task_count_of_manifest_if_valid() -> None:
    asking = replace(ONE, batch=replace(ONE.batch, env={"SLURM_NTASKS": "2"}))
    env = start(asking).learner.env
    assert (env["SLURM_NPROCS"], env["SLURM_TASKS_PER_NODE"], env["SLURM_CPUS_PER_TASK"]) == ("2", "2", "2")
    odd = replace(ONE, batch=replace(ONE.batch, env={"SLURM_NTASKS": "many"}))
    assert start(odd).learner.env["SLURM_NPROCS"] == "1"


def test_slurm_environment_counts_learners_on_shared_nodes_as_tasks() -> None:
    env = start(FOUR, nodes=2).learner.env
    assert (env["SLURM_NTASKS"], env["SLURM_NNODES"], env["SLURM_TASKS_PER_NODE"]) == ("4", "2", "2(x2)")
    assert (env["SLURM_LOCALID"], env["SLURM_GPUS_ON_NODE"], env["SLURM_GPUS"]) == ("{local_index}", "4", "8")
    assert env["SLURM_JOB_NODELIST"] == f"learner-{ID}-[0,2]"
    assert start(FOUR, nodes=1, image="").learner.env["SLURM_JOB_NODELIST"] == "{hostname}"
    assert node_names(ID, gang_of(FOUR, 4)) == f"learner-{ID}-[0,1,2,3]"
    assert per_node([2, 2, 1]) == "2(x2),1"


def test_slurm_environment_sets_array_variables_for_element() -> None:
    element = expand(replace(ONE, batch=replace(ONE.batch, array="3-4")), ArrayId("array-1"))[1]
    env = start(element).learner.env
    assert (env["SLURM_ARRAY_TASK_ID"], env["SLURM_ARRAY_JOB_ID"]) == ("4", str(job_number("array-1")))
    assert env["SLURM_JOB_NAME"] == "digits"


def test_compose_start_adds_slurm_variables_and_shell_only_if_requested() -> None:
    without = start(replace(ONE, batch=BatchOptions()), host_values=HOST_VALUES).learner
    assert not [name for name in without.env if name.startswith("SLURM_")] and without.host_values == {}
    assert without.argv[-3:] == tuple(literal(part) for part in SHELL)
    asked = start(ONE, host_values=HOST_VALUES).learner
    assert asked.host_values == HOST_VALUES
    assert asked.argv[-3:] == tuple(literal(part) for part in SLURM_SHELL)
    assert start(ONE, image="").learner.argv == tuple(literal(part) for part in SLURM_SHELL)


def test_compose_start_enables_sent_steps_only_for_step_takers_with_shared_files() -> None:
    roles = {"batch": Role(1), "node": Role(3, command="take-steps bash job.sh")}
    taking = replace(FOUR, batch=replace(FOUR.batch, roles=roles))
    env = start(taking, nodes=4).learner.env
    assert env["FFDL_STEPS"] == "sent"
    assert not [name for name in env if name == "TF_CONFIG" or name.startswith(("PET_", "JAX_"))]
    apart = Subject(ID, taking, gang_of(taking, 4), JOB, JOB.attempt(1), apart=True)
    assert "FFDL_STEPS" not in compose_start(apart, Runtime("/i.sif")).learner.env
    for other in (FOUR, replace(taking, batch=replace(taking.batch, slurm_environment=False))):
        env = start(other, nodes=4).learner.env
        assert "FFDL_STEPS" not in env and "PET_NNODES" in env


def test_compose_start_omits_rendezvous_variables_when_other_learners_only_wait() -> None:
    """torchrun without --nnodes would wait for those that sleep."""
    roles = {"batch": Role(1), "node": Role(3, service=True, command="sleep infinity")}
    alone = replace(FOUR, batch=replace(FOUR.batch, roles=roles))
    env = start(alone, nodes=4).learner.env
    assert not [name for name in env if name == "TF_CONFIG" or name.startswith(("PET_", "JAX_"))]
    served = replace(alone, batch=replace(alone.batch, slurm_environment=False))
    assert "PET_NNODES" in start(served, nodes=4).learner.env


# -------------------------------------------------------------------------------------------------- commands


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a learner in which the commands are installed."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "JOB_STATE_DIR": str(tmp_path), "LEARNER_ID": "1"}
    subprocess.run(["bash", "-c", INSTALLATION], env=env, check=True)
    ours = f"{tmp_path}/.slurm-1:{env['PATH']}"
    return {**env, "PATH": ours, "NUM_LEARNERS": "1", "SLURM_JOB_ID": "77", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}


def run(shell: dict[str, str], *argv: str, said: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    env = {**shell, **more}
    return subprocess.run(argv, check=False, env=env, input=said, capture_output=True, text=True, timeout=120)


def lines(done: subprocess.CompletedProcess[str]) -> Sequence[str]:
    return sorted(done.stdout.splitlines())


TELL = "echo $SLURM_PROCID/$SLURM_NTASKS"


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ((), 2),
        (("-n3",), 3),
        (("-n", "3", "-l", "-u"), 3),
        (("-lun3",), 3),
        (("--ntasks", "3", "--mpi=none", "--gres", "gpu:1"), 3),
        (("--nodes=1", "--ntasks-per-node=4", "--kill-on-bad-exit"), 4),
        (("-N", "1", "--exclusive", "--pty"), 1),
        (("-N1-2", "-c", "2", "--"), 1),
    ],
)
def test_srun_starts_one_process_per_requested_task(shell: dict[str, str], options: Sequence[str], tasks: int) -> None:
    done = run(shell, "srun", *options, "bash", "-c", TELL)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rpartition(" ")[2] for line in lines(done)] == [f"{rank}/{tasks}" for rank in range(tasks)]


def test_srun_forwards_stdin_and_returns_highest_exit_status(shell: dict[str, str]) -> None:
    done = run(shell, "srun", "-l", "bash", "-c", "cat; exit $((SLURM_PROCID + 2))", said="to the first\n")
    assert (done.stdout, done.returncode) == ("0: to the first\n", 3)
    assert run(shell, "srun", "-n1", "cat", said="alone").stdout == "alone"


def test_srun_assigns_gpus_and_output_file_to_each_task(shell: dict[str, str], tmp_path: Path) -> None:
    done = run(
        shell, "srun", "--gpus-per-task=2", f"--output={tmp_path}/%j.%t", "--chdir", str(tmp_path), "bash", "-c",
        "echo $CUDA_VISIBLE_DEVICES; pwd; echo bad >&2", CUDA_VISIBLE_DEVICES="4,5,6,7",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "77.0").read_text() == f"4,5\n{tmp_path}\nbad\n"
    assert (tmp_path / "77.1").read_text() == f"6,7\n{tmp_path}\nbad\n"


def test_srun_export_option_selects_environment_variables(shell: dict[str, str]) -> None:
    say = ("bash", "-c", 'echo "$A-$B-$SLURM_JOB_ID"')
    assert run(shell, "srun", "-n1", "--export=ALL,B=2", *say, A="1").stdout == "1-2-77\n"
    assert run(shell, "srun", "-n1", "--export=B=2", *say, A="1").stdout == "-2-77\n"
    assert run(shell, "srun", "-n1", "--export=A", *say, A="1", B="2").stdout == "1--77\n"


def test_srun_divides_tasks_between_learners(shell: dict[str, str]) -> None:
    seen: list[str] = []
    for learner in ("1", "2"):
        done = run(shell, "srun", "-n5", "bash", "-c", TELL, LEARNER_ID=learner, NUM_LEARNERS="2")
        seen += lines(done)
    assert seen == [f"{rank}/5" for rank in range(5)]


def of_three(learner: int) -> dict[str, str]:
    """A learner on each of three nodes."""
    return {
        "LEARNER_ID": str(learner + 1), "NUM_LEARNERS": "3", "SLURM_NTASKS": "3", "SLURM_NNODES": "3",
        "SLURM_JOB_NODELIST": "gang-[0-2]", "SLURMD_NODENAME": f"gang-{learner}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        (("-N1", "-n1", "-w", "gang-1"), [[], ["0/1"], []]),
        (("--nodes=2", "--nodelist=gang-[1,2]"), [[], ["0/2"], ["1/2"]]),
        (("-N2", "-x", "gang-1"), [["0/2"], [], ["1/2"]]),
        (("-n3", "-w", "elsewhere"), [[], [], []]),
        ((), [["0/3"], ["1/3"], ["2/3"]]),
    ],
)
def test_srun_runs_tasks_only_on_nodes_of_the_step(
    shell: dict[str, str], options: tuple[str, ...], tasks: Sequence[Sequence[str]]
) -> None:
    done = [run(shell, "srun", *options, "bash", "-c", TELL, **of_three(learner)) for learner in range(3)]
    assert [one.returncode for one in done] == [0, 0, 0]
    assert [lines(one) for one in done] == tasks
    assert all("nothing is started here" in one.stderr for one in done if not one.stdout)


def test_slurm_commands_give_all_learners_same_first_node_and_random_number(
    shell: dict[str, str], tmp_path: Path
) -> None:
    """As the usual script for several nodes does, by a step, by its own hostname, and by a random number."""
    (tmp_path / ".slurm-1" / "getent").write_text('#!/bin/sh\n[ "$2" != gang-1 ] || echo "10.0.0.1  gang-1"\n')
    (tmp_path / ".slurm-1" / "getent").chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(
        "echo $(srun --nodes=1 --ntasks=1 -w gang-1 hostname --ip-address) $(srun -n1 -N1 hostname -I) $(hostname -s)\n"
        "echo $RANDOM ${BASH_ENV-gone}; bash -c 'echo $BASH_VERSION $RANDOM' >/dev/null\n"
    )
    said = []
    for learner in range(3):
        env = {**shell, **of_three(learner), "LEARNER_ID": "1", "TRAINING_COMMAND": "bash job.sh"}
        done = run(env, "bash", "-c", f"{INSTALLATION}\nbash {script}")
        assert done.stderr == ""
        said.append(done.stdout.splitlines())
    assert said[0][0] == "10.0.0.1 gang-0 gang-0" and said[0][1].endswith(" gone")
    assert said[1:] == said[:1] * 2


@pytest.mark.parametrize(("learners", "command"), [("1", "bash job.sh"), ("3", "bash -c true"), ("3", "python x.py")])
def test_slurm_installation_sets_no_bash_env_unless_gang_runs_bash_script(
    shell: dict[str, str], learners: str, command: str
) -> None:
    env = {**shell, "NUM_LEARNERS": learners, "TRAINING_COMMAND": command}
    assert run(env, "bash", "-c", f"{INSTALLATION}\necho =${{BASH_ENV-}}=").stdout == "==\n"


def test_srun_ends_other_tasks_after_failure_with_kill_on_bad_exit(shell: dict[str, str]) -> None:
    done = run(shell, "srun", "-K", "-n3", "bash", "-c", "[ $SLURM_PROCID = 1 ] && exit 200; exec sleep 600")
    assert done.returncode == 200


def test_srun_forwards_signals_to_tasks(shell: dict[str, str], tmp_path: Path) -> None:
    wait = 'trap "exit 5" USR1; : > up$SLURM_PROCID; while :; do sleep 0.05; done'
    with subprocess.Popen(["srun", "bash", "-c", wait], env=shell, cwd=tmp_path, start_new_session=True) as process:
        try:
            until(lambda: all((tmp_path / f"up{rank}").exists() for rank in (0, 1)), "the tasks did not start")
            process.send_signal(signal.SIGUSR1)
            assert process.wait(120) == 5
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_srun_delegates_mpi_programs_to_mpirun(shell: dict[str, str], tmp_path: Path) -> None:
    assert "there is no mpirun" in run(shell, "srun", "--mpi=pmix", "true").stderr
    mpirun = tmp_path / ".slurm-1" / "mpirun"
    mpirun.write_text('#!/bin/sh\necho "mpirun $*"\n')
    mpirun.chmod(0o755)
    assert run(shell, "srun", "--mpi=pmix", "-n4", "./x", "-n1").stdout == "mpirun -np 4 ./x -n1\n"


@pytest.mark.parametrize(
    "command",
    [
        "srun", "srun -n 0 true", "srun --multi-prog x", "srun -n", "srun -n x true", "scontrol requeue 77",
        "scontrol update jobid=77", "scontrol show hostnames",
    ],
)  # fmt: skip
def test_srun_and_scontrol_reject_invalid_or_unsupported_commands(shell: dict[str, str], command: str) -> None:
    program, *argv = command.split()
    done = run(shell, program, *argv)
    assert done.returncode == 1 and done.stderr.startswith(f"{program}: error: ")


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("a", "a"), ("n[08-11]", "n08 n09 n10 n11"), ("n[1,3-4]-ib,m7", "n1-ib n3-ib n4-ib m7"),
        ("r[1-2]n[a,c]", "r1na r1nc r2na r2nc"),
    ],
)  # fmt: skip
def test_scontrol_show_hostnames_expands_node_list(shell: dict[str, str], nodes: str, names: str) -> None:
    assert run(shell, "scontrol", "show", "hostnames", nodes).stdout.split() == names.split()
    assert run(shell, "scontrol", "show", "hostname", SLURM_JOB_NODELIST=nodes).stdout.split() == names.split()
