"""Steps of a script that the first learner alone runs: its srun sends the others their tasks. Real shells."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from ffdl_batch.controller.rendezvous.launch_agent import install
from ffdl_batch.runtimes.slurm_commands import INSTALLATION
from tests.unit.controller.rig import LIMIT_S, until

PREFIX = "learner-training-abc"
LEARNERS = 3
TELL = 'echo "$SLURM_PROCID/$SLURM_NTASKS on $LEARNER_ID local $SLURM_LOCALID node $SLURM_NODEID $SLURMD_NODENAME"'


class Learners:
    """Three learners, each on a node of its own, by names; all serve, and the first one runs scripts."""

    def __init__(self, place: Path) -> None:
        self.place, self.state = place, place / "job's state"
        self.state.mkdir()
        self.agent = install(str(self.state), [f"{PREFIX}-{rank}" for rank in range(LEARNERS)])
        self.servers = [self.serve(rank) for rank in range(LEARNERS)]
        notes = [self.state / f".agent-{PREFIX}-{rank}" for rank in range(LEARNERS)]
        until(lambda: all(note.exists() and note.read_text().endswith("\n") for note in notes))

    def environment(self, rank: int) -> dict[str, str]:
        return {
            "PATH": f"{self.state}/.slurm-{rank + 1}:{os.environ['PATH']}", "HOME": str(self.place),
            "JOB_STATE_DIR": str(self.state), "LEARNER_ID": str(rank + 1), "NUM_LEARNERS": str(LEARNERS),
            "LEARNER_NAME_PREFIX": PREFIX, "FFDL_STEPS": "sent", "SLURM_JOB_ID": "77", "SLURM_NTASKS": str(LEARNERS),
            "SLURM_NNODES": str(LEARNERS), "SLURM_JOB_NODELIST": f"{PREFIX}-[0-2]", "SLURM_NODEID": str(rank),
            "SLURMD_NODENAME": f"{PREFIX}-{rank}", "SLURM_PROCID": str(rank), "LC_ALL": "C.UTF-8",
            "CUDA_VISIBLE_DEVICES": f"{rank},{rank + 4}", "SECRET": "hidden-word", "GONE": "there",
        }  # fmt: skip

    def serve(self, rank: int) -> subprocess.Popen[bytes]:
        text = f'{INSTALLATION}\nexec "$JOB_STATE_DIR/.launch-agent" --serve {PREFIX}-{rank}'
        env = self.environment(rank) | {"PATH": os.environ["PATH"]}
        return subprocess.Popen(["bash", "-c", text], env=env, cwd="/", start_new_session=True)

    def begin(self, text: str) -> subprocess.Popen[str]:
        script = self.place / "job.sh"
        script.write_text(text)
        return subprocess.Popen(
            ["bash", str(script)], env=self.environment(0), cwd=self.place, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def run(self, text: str) -> tuple[int, list[str], str]:
        """Status, lines in order of the alphabet, standard error."""
        process = self.begin(text)
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, sorted(out.splitlines()), errors

    def end(self) -> None:
        for server in self.servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def open_when_read(pipe: Path) -> IO[str]:
    """The named pipe for writing, once a process opens it for reading."""
    opened: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    until(is_read, f"a reader of {pipe}")
    return os.fdopen(opened[0], "w")


@pytest.fixture
def learners(tmp_path: Path) -> Iterator[Learners]:
    made = Learners(tmp_path)
    yield made
    made.end()


def task(rank: int, of: int, learner: int, local: int = 0, node: int = -1) -> str:
    """What TELL says; `learner` from 0."""
    where = learner if node < 0 else node
    return f"{rank}/{of} on {learner + 1} local {local} node {where} {PREFIX}-{learner}"


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ("", [(0, 3, 0), (1, 3, 1), (2, 3, 2)]),
        ("-n5", [(0, 5, 0), (1, 5, 0, 1), (2, 5, 1), (3, 5, 1, 1), (4, 5, 2)]),
        ("-n1", [(0, 1, 0)]),
        ("-N2", [(0, 2, 0), (1, 2, 1)]),
        ("-N1 -n2", [(0, 2, 0), (1, 2, 0, 1)]),
        (f"-N1 -n1 -w {PREFIX}-2", [(0, 1, 2, 0, 0)]),
        (f"-N2 -x {PREFIX}-1", [(0, 2, 0), (1, 2, 2, 0, 1)]),
        (f"-N2 -n2 -w {PREFIX}-2", [(0, 2, 0), (1, 2, 2, 0, 1)]),
        (f"--nodes=2 --ntasks-per-node=2 --nodelist={PREFIX}-[1,2]",
         [(0, 4, 1, 0, 0), (1, 4, 1, 1, 0), (2, 4, 2, 0, 1), (3, 4, 2, 1, 1)]),
    ],
)  # fmt: skip
def test_srun_places_step_tasks_on_same_nodes_as_slurm(
    learners: Learners, options: str, tasks: list[tuple[int, ...]]
) -> None:
    done = learners.run(f"srun {options} bash -c '{TELL}'")
    assert done == (0, [task(*one) for one in tasks], "")
    assert not list(learners.state.glob(".slurm-*/step-*"))


def test_script_runs_once_and_hostname_prints_node_name_outside_srun(learners: Learners) -> None:
    status, lines, _ = learners.run("echo once; hostname; srun true; echo $?")
    assert (status, lines) == (0, sorted(["once", os.uname().nodename, "0"]))


def test_srun_sends_exported_environment_without_writing_secrets_to_files(learners: Learners) -> None:
    script = """
export NEW=$'two\\nlines \\' é' PROCID=x; unset GONE; NOT_EXPORTED=1
said() {{ echo "from a function"; }}; export -f said
srun -w {} -N1 -n1 bash -c 'said; echo "$NEW|$SECRET|${{GONE-no}}|${{NOT_EXPORTED-no}}|$CUDA_VISIBLE_DEVICES|$PWD"
grep -lr "SECRET[=]" "$JOB_STATE_DIR" || echo nowhere'
""".format(f"{PREFIX}-1")
    status, lines, errors = learners.run(script)
    expected = ["from a function", "nowhere", "two", f"lines ' é|hidden-word|no|no|1,5|{learners.place}"]
    assert (status, lines, errors) == (0, sorted(expected), "")


def test_srun_combines_export_option_with_gpus_of_each_learner(learners: Learners) -> None:
    done = learners.run(
        "export A=1; srun -n6 --gpus-per-task=1 --export=B=2 "
        "bash -c 'echo $SLURM_PROCID ${A-no} $B $CUDA_VISIBLE_DEVICES ${SECRET-no}'"
    )
    assert done == (0, [f"{rank} no 2 {rank // 2 + rank % 2 * 4} no" for rank in range(6)], "")


def test_srun_forwards_labelled_output_and_stderr_of_tasks(learners: Learners) -> None:
    script = "srun -l bash -c 'echo out; echo err >&2' ; srun bash -c 'echo $SLURM_PROCID; echo e$SLURM_PROCID >&2'"
    status, lines, errors = learners.run(script)
    labels = [f"{rank}: {word}" for rank in range(3) for word in ("err", "out")]
    assert (status, lines) == (0, sorted([*labels, "0", "1", "2"]))
    assert sorted(errors.split()) == ["e0", "e1", "e2"]
    answer = f'echo "$(srun -N1 -n1 -w {PREFIX}-2 bash -c "printf %s \\$SLURMD_NODENAME")" | cat'
    assert learners.run(answer) == (0, [f"{PREFIX}-2"], "")


def test_srun_streams_output_while_tasks_run(learners: Learners) -> None:
    process = learners.begin(f"srun -N1 -n1 -w {PREFIX}-1 bash -c 'echo begun; until [ -e go ]; do sleep 0.1; done'")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    (learners.place / "go").touch()
    assert process.communicate(timeout=LIMIT_S)[0] == ""
    assert process.returncode == 0


def test_srun_truncates_output_files_once_per_step(learners: Learners) -> None:
    for name in ("all.txt", "of-1.txt"):
        (learners.place / name).write_text("old\n")
    assert learners.run("srun -o all.txt bash -c 'echo $SLURM_PROCID'; srun -o of-%t.txt echo new")[0] == 0
    assert sorted((learners.place / "all.txt").read_text().split()) == ["0", "1", "2"]
    assert (learners.place / "of-1.txt").read_text() == "new\n"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit $((SLURM_PROCID + 2))", 4),
        ("[ $SLURM_PROCID != 1 ] || kill -9 $$", 137),
        ("exit $((2 - SLURM_PROCID))", 2),
    ],
)
def test_srun_returns_highest_exit_status_of_all_learners(learners: Learners, command: str, status: int) -> None:
    assert learners.run(f"srun bash -c '{command}'")[0] == status


def test_srun_ends_tasks_on_other_learners_after_failure_with_kill_option(learners: Learners) -> None:
    assert learners.run("srun -K bash -c '[ $SLURM_PROCID = 2 ] && exit 200; exec sleep 600'")[0] == 200


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ("", signal.SIGUSR1),
        ("", signal.SIGUSR2),
        ("", signal.SIGTERM),
        ("-n6", signal.SIGUSR1),
        ("-l", signal.SIGTERM),
    ],
)
def test_srun_forwards_signals_to_tasks_of_all_learners(
    learners: Learners, options: str, number: signal.Signals
) -> None:
    name = number.name.removeprefix("SIG")
    wait = f'trap "echo told >told\\$SLURM_PROCID; exit 5" {name}; : >up$SLURM_PROCID; while :; do sleep 0.05; done'
    process = learners.begin(f"exec srun {options} bash -c '{wait}'")
    count = 6 if options == "-n6" else 3
    until(lambda: len(list(learners.place.glob("up*"))) == count, "the tasks to begin")
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert (process.returncode, len(list(learners.place.glob("told*")))) == (5, count)


def test_script_continues_after_its_background_srun_is_killed(learners: Learners) -> None:
    script = "srun bash -c ': >up$SLURM_PROCID; until [ -e end ]; do sleep 0.1; done' & "
    script += "until [ -e up0 ] && [ -e up1 ] && [ -e up2 ]; do sleep 0.05; done; kill -9 $!; wait; : >end; echo on"
    assert learners.run(script)[:2] == (0, ["on"])


def test_srun_waits_for_launch_agent_and_reports_missing_one(learners: Learners) -> None:
    note = learners.state / f".agent-{PREFIX}-0"
    right = note.rename(note.with_name("right"))
    os.mkfifo(note)
    process = learners.begin("srun -N2 true")
    with open_when_read(note) as wrong:
        assert process.poll() is None
        right.rename(note)  # for its next look, which comes soon
        wrong.write(f"{os.getpid()}\n")
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    note.unlink()
    message = "srun: error: what this learner began with cannot be read: its launch agent is gone\n"
    assert learners.run("srun -N2 true") == (1, [], message)


def test_srun_runs_background_steps_concurrently(learners: Learners) -> None:
    """As of a head and workers that are started by steps in the background."""
    script = f"""
srun -N1 -n1 -w {PREFIX}-0 bash -c ': >head; until [ -e worker2 ]; do sleep 0.05; done; echo head' &
for i in 1 2; do
  srun -N1 -n1 -w {PREFIX}-$i bash -c "until [ -e head ]; do sleep 0.05; done; : >worker$i; echo worker $i" &
done
wait
"""
    assert learners.run(script) == (0, ["head", "worker 1", "worker 2"], "")


def test_srun_starts_nested_step_from_a_task(learners: Learners) -> None:
    done = learners.run(f"srun -N1 -n1 -w {PREFIX}-1 srun -n3 bash -c '{TELL}'")
    assert done == (0, [task(rank, 3, rank) for rank in range(3)], "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-N4", "4 nodes are asked for, and there are 3"),
        ("-w elsewhere", f"elsewhere is not a node of this job; its nodes are {PREFIX}-0 {PREFIX}-1 {PREFIX}-2"),
        (f"-x {PREFIX}-[0-2]", "no node is left for the step"),
    ],
)
def test_srun_rejects_steps_that_cannot_be_placed(learners: Learners, options: str, message: str) -> None:
    assert learners.run(f"srun {options} true") == (1, [], f"srun: error: {message}\n")


def test_srun_starts_one_mpirun_over_all_learners(learners: Learners) -> None:
    mpirun = learners.state / ".slurm-1" / "mpirun"
    mpirun.write_text('#!/bin/sh\necho "mpirun $*"\n')
    mpirun.chmod(0o755)
    assert learners.run("srun --mpi=pmix -n6 ./x") == (0, ["mpirun -np 6 ./x"], "")
    status, _, errors = learners.run("srun --mpi=pmix -N2 -n4 ./x")
    assert status == 1 and "on all nodes of the job" in errors


def test_take_steps_exits_when_script_succeeds_but_not_when_it_fails(learners: Learners) -> None:
    env, ended, later = learners.environment(1), learners.state / ".ended-1", learners.state / "later"
    os.mkfifo(ended)
    os.mkfifo(later)
    with subprocess.Popen(["take-steps", "bash", "job.sh"], env=env, cwd=learners.place) as process:
        try:
            with open_when_read(ended) as status:
                later.rename(ended)
                status.write("3\n")
            with open_when_read(ended) as status:  # so it looks again after a failure
                status.write("0\n")
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
    assert (learners.state / "heartbeat-2").exists()


def test_take_steps_runs_script_itself_when_no_steps_are_sent(learners: Learners) -> None:
    env = learners.environment(1)
    del env["FFDL_STEPS"]
    (learners.place / "job.sh").write_text("echo $(srun -n3 bash -c 'echo $SLURM_PROCID') $(hostname)")
    done = subprocess.run(
        ["take-steps", "bash", "job.sh"], env=env, cwd=learners.place, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"1 {PREFIX}-0\n"
