"""Scripts for Slurm as they are, jobs that leave, and what the accounting says of the past: on real Slurm."""

from __future__ import annotations

import csv
import io
import time

import pytest

from tests.cluster.people import Person
from tests.cluster.trainings import attempt_log

pytestmark = pytest.mark.full

WRAPPED = """\
#!/bin/bash
#SBATCH --ntasks=2
set -eu
echo "job $SLURM_JOB_ID of $SLURM_JOB_PARTITION, $SLURM_NNODES node, on $(scontrol show hostnames)"
[ "$SLURM_SUBMIT_DIR" = "$PWD" ]; [ "$SLURM_CPUS_PER_TASK" = 1 ]; touch "$TMPDIR/it"
srun --cpu-bind=none -l bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS"'
"""
LEAVING = (
    "python3 -c \"import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'], "
    "os.environ['NICE'], os.getcwd())\" && getent hosts $LEARNER_NAME_PREFIX-1 >/dev/null && cat ours.txt && "
    "echo kept > $RESULT_DIR/kept-$LEARNER_ID && echo $CHECKPOINT_DIR"
)


def test_wrapped_script_runs_srun_and_scontrol_inside_its_container(alice: Person) -> None:
    model = alice.model("wrapped", {"job.sh": WRAPPED})
    extra = "batch: {slurm_environment: true, env: {SLURM_NTASKS: '2'}}"
    job = alice.finish(alice.submit(alice.manifest("wrapped", "bash job.sh", extra, cpus=2, gpus=0), model))
    log = attempt_log(alice, job, 1)
    assert job["state"] == "COMPLETED", (job["message"], log)
    assert f"job {job['native_id']} of main, 1 node, on " in log
    assert sorted(line for line in log.splitlines() if ": task" in line) == ["0: task 0 of 2", "1: task 1 of 2"]


SENDING = """\
#!/bin/bash
#SBATCH --job-name=sending --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --mem=512M
echo "once on $(hostname)"; export STAMP=$RANDOM
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
srun --nodes=1 --ntasks=1 -w "${nodes[1]}" bash -c 'echo "second: $SLURMD_NODENAME $SLURM_NODEID $(hostname)"'
srun -l bash -c 'echo "task $SLURM_LOCALID of node $SLURM_NODEID: $STAMP $LEARNER_ID"' | tee tasks.txt
srun bash -c 'exit $SLURM_PROCID' || echo "failed with $?"
echo "stamp $STAMP"
"""


def test_converted_script_runs_once_and_its_srun_starts_tasks_on_all_learners(alice: Person) -> None:
    model = alice.model("sending", {"job.sh": SENDING})
    converted = f"{alice.home}/sending.yml"
    alice.run("ffdl", "convert", f"{model}/job.sh", "--image", "python-numpy", "-o", converted)
    job = alice.finish(alice.submit(converted, model))
    log = attempt_log(alice, job, 1)
    assert job["state"] == "COMPLETED", (job["message"], log)
    names = [f"learner-{job['id']}-{rank}" for rank in (0, 1)]
    assert log.count("once on ") == 1 and f"once on {names[0]}\n" in log
    assert f"second: {names[1]} 0 {names[1]}\n" in log and "failed with 3\n" in log
    (stamp,) = [line.split()[1] for line in log.splitlines() if line.startswith("stamp")]
    assert sorted(line for line in log.splitlines() if ": task" in line) == [
        f"{rank}: task {rank % 2} of node {rank // 2}: {stamp} {rank // 2 + 1}" for rank in range(4)
    ]
    assert "once on" not in attempt_log(alice, job, 1, learner=2)


def test_convert_to_slurm_writes_script_that_runs_with_plain_sbatch(alice: Person) -> None:
    model = alice.model("leaving", {"ours.txt": "ours\n"})
    extra = 'batch: {time: 2m, env: {NICE: "it\'s $HOME"}}'
    manifest = alice.manifest("leaving", LEAVING, extra, gpus=1, learners=2)
    script = f"{alice.home}/leaving.sbatch"
    told = alice.run("ffdl", "convert", manifest, "--to", "slurm", "-o", script).stdout
    assert f"{manifest}:1: mapped: name -> --job-name" in told
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = alice.run("sbatch", "--parsable", "--wait", script, cwd=model, env=env, check=False, timeout_s=600)
    native = done.stdout.strip()
    said = alice.run("cat", f"{model}/slurm-{native}.out", check=False).stdout
    assert done.returncode == 0, (done, said)
    job = f"{model}/training-{native}"
    logs = [alice.read(f"{job}/logs/learner-{number}/training-log.txt").splitlines() for number in (1, 2)]
    assert [log[0].split()[:2] for log in logs] == [["0", "2"], ["1", "2"]]
    assert {log[0].split()[2] for log in logs} and all("it's $HOME /job/model-code" in log[0] for log in logs)
    assert all("ours" in log for log in logs)
    assert alice.run("ls", f"{job}/results").stdout.split() == ["kept-1", "kept-2"]
    assert alice.run("ls", "-A", f"{job}/state").stdout.count(".said") == 0


def test_convert_history_prices_past_slurm_jobs(alice: Person) -> None:
    native = alice.run(
        "sbatch", "--parsable", "--wait", "--gres=gpu:1", "--job-name==odd", "--wrap", "sleep 2"
    ).stdout.strip()
    alice.accounted(native)
    config = alice.read("~/.config/ffdl/config.toml".replace("~", alice.home))
    priced = alice.write("~/priced.toml", config + '\n[rates]\ncurrency = "EUR"\ngpu_hour = 3600.0\n')
    env = {"FFDL_CONFIG": priced}
    rows: list[dict[str, str]] = []
    end = time.monotonic() + 300
    while not rows and time.monotonic() < end:
        printed = alice.run("ffdl", "convert", "--history", "--since", "yesterday", "--format", "csv", env=env).stdout
        rows = [row for row in csv.DictReader(io.StringIO(printed)) if row["job"] == native]
    (row,) = rows
    assert (row["name"], row["gpus"], row["place"], row["verdict"]) == ("'=odd", "1", "main", "runs")
    assert float(row["cost"]) == float(row["elapsed_s"]) >= 2
    told = alice.run("ffdl", "convert", "--history", "--since", "yesterday", env=env).stdout
    assert "Where they would run" in told and "main" in told
