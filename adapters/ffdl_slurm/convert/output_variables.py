"""The variables that sbatch sets because of what it was asked for (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).

A script may count with them, so a manifest keeps them among `batch.env`, and a script that is written again asks by the
option that sets them.
"""

from __future__ import annotations

from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.runtimes.slurm_steps import takes_steps

TASKS = "SLURM_NTASKS"
"""srun says it to what it starts, sbatch only where it was asked for."""
OPTION_OF: dict[str, str] = {
    TASKS: "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
    "SLURM_NTASKS_PER_CORE": "ntasks-per-core",
    "SLURM_NTASKS_PER_SOCKET": "ntasks-per-socket",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_GPUS_PER_SOCKET": "gpus-per-socket",
    "SLURM_TRES_PER_TASK": "tres-per-task",
    "SLURM_MEM_PER_CPU": "mem-per-cpu",
    "SLURM_MEM_PER_GPU": "mem-per-gpu",
}
"""Variable → long option."""
NODES = "SLURM_NNODES"
"""In `batch.env`: the command is a script that starts its own tasks on so many nodes."""
NO_IMAGE = "custom"
"""The manifest's word for no image in particular."""
OF_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task"})
OF_CPUS = frozenset({"cpus-per-task", "cpus-per-gpu", "tres-per-task"})
OF_MEMORY = frozenset({"mem-per-cpu", "mem-per-gpu"})


def starts_steps(spec: JobSpec) -> bool:
    """Whether the command starts steps by an srun of its own, or runs on several nodes and in no image."""
    if not spec.batch.slurm_environment:
        return False
    nodes, image = spec.batch.env.get(NODES), spec.framework.version
    return takes_steps(spec) or (nodes is not None and (nodes == "1" or image == NO_IMAGE))
