"""A script written for Slurm runs unchanged on every backend: variables, srun and scontrol.

With FFDL_CONTRACT_BACKENDS=slurm-cli it runs on a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ffdl_batch.domain.job.spec import BatchOptions, Resources, Role
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.plugins import adapter_names
from tests.contract.scheduler_harness import Harness, open_harness, real_backends

BACKENDS = real_backends() or list(adapter_names())
SCRIPT = """\
#!/bin/bash
#SBATCH --ntasks=2
set -eu
for name in JOB_ID JOBID JOB_NAME NTASKS NPROCS NNODES JOB_NUM_NODES NODEID PROCID LOCALID CPUS_PER_TASK CPUS_ON_NODE \\
  MEM_PER_NODE JOB_NODELIST SUBMIT_DIR TMPDIR JOB_PARTITION TASKS_PER_NODE; do
  name=SLURM_$name
  [ -n "${!name}" ] || { echo "$name is empty"; exit 1; }
done
[ "$SLURM_SUBMIT_DIR" = "$MODEL_DIR" ]; [ "$((SLURM_JOB_ID % 10))" -ge 0 ]; [ "$SLURM_JOB_ID" = "$SLURM_JOBID" ]
[ "$SLURM_JOB_NAME" = contract ]; [ "$SLURM_NTASKS $SLURM_NPROCS $SLURM_TASKS_PER_NODE" = "2 2 2" ]
[ -d "$SLURM_TMPDIR" ]; touch "$SLURM_TMPDIR/it"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
echo "on $head"
srun --cpu-bind=none --unbuffered bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS"'
srun -n1 -N1 true
srun --ntasks 2 bash -c 'exit $((SLURM_PROCID * 3))' || echo "failed with $?"
echo done
"""


@pytest.fixture(scope="module", params=BACKENDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One backend, ready to take jobs."""
    with open_harness(request.param, tmp_path_factory.mktemp("world")) as harness:
        yield harness


def test_slurm_environment_runs_script_with_srun_and_scontrol_on_every_backend(world: Harness) -> None:
    env = {"SLURM_NTASKS": "2"}
    command = f"printf %s {shell_octal(SCRIPT)} > job.sh && bash job.sh"
    batch = BatchOptions(env=env, slurm_environment=True)
    native, plan = world.submit(command, batch=batch, user_env=env, resources=Resources(cpus=2, memory_bytes=2**27))
    seen = world.await_end(native)
    world.await_log(plan, "done\n")
    log = world.log(plan)
    assert seen.end is EndCause.SUCCESS, log
    assert sorted(line for line in log.splitlines() if line.startswith("task")) == ["task 0 of 2", "task 1 of 2"]
    assert "failed with 3\n" in log
    assert "\non \n" not in log and "on " in log


ONCE = """\
#!/bin/bash
set -u
echo "outside ${BASH_ENV-} $(ls -A once | wc -l)"; : >"once/$LEARNER_ID"; export CHOSEN=$RANDOM
srun -l bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS in $LEARNER_ID chose $CHOSEN"' >tasks.txt
echo "chosen $CHOSEN"; cat tasks.txt
srun -n2 bash -c 'exit $((SLURM_PROCID * 3))' || echo "failed with $?"
srun bash -c 'trap "exit 5" USR1; : >"once/up$SLURM_PROCID"; while :; do sleep 0.1; done' &
until [ -e once/up0 ] && [ -e once/up1 ]; do sleep 0.1; done
kill -USR1 $!; wait $!; echo "signalled: $?"
srun sleep 600 &
echo done
exit STATUS
"""


@pytest.mark.parametrize(
    ("world", "status", "end"),
    [*((backend, 0, EndCause.SUCCESS) for backend in BACKENDS), (BACKENDS[-1], 7, EndCause.FAILURE)],
    indirect=["world"],
)
def test_slurm_environment_runs_script_once_and_srun_steps_on_every_learner(
    world: Harness, status: int, end: EndCause
) -> None:
    text = ONCE.replace("STATUS", str(status))
    command = f"mkdir -p once && printf %s {shell_octal(text)} > job.sh && bash job.sh"
    roles = {"batch": Role(1), "node": Role(1, command="take-steps bash job.sh")}
    batch = BatchOptions(slurm_environment=True, roles=roles)
    resources = Resources(learners=2, cpus=1, memory_bytes=2**27)
    native, plan = world.submit(command, batch=batch, resources=resources)
    seen = world.await_end(native)
    log = world.log(plan)
    assert (seen.end, "done\n" in log) == (end, True), log
    assert "outside  0\n" in log
    (chosen,) = [line.split()[1] for line in log.splitlines() if line.startswith("chosen")]
    tasks = sorted(line for line in log.splitlines() if ": task" in line)
    assert tasks == [f"{rank}: task {rank} of 2 in {rank + 1} chose {chosen}" for rank in range(2)]
    assert "failed with 3\n" in log and "signalled: 5\n" in log


def shell_octal(text: str) -> str:
    """The text as one word of bash: a command has no line breaks."""
    return "$'" + "".join(f"\\{byte:03o}" for byte in text.encode()) + "'"
