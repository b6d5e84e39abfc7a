"""The variables that sbatch sets because of what it was asked for (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).

A script may count with them, so a manifest keeps them among `batch.env`, and a script that is written again asks by the
option that sets them.
"""

from __future__ import annotations

from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.sbatch.option_table import TABLE
from ffdl_batch.runtimes.slurm_steps import takes_steps

TASKS = "SLURM_NTASKS"
"""srun says it to what it starts, sbatch only where it was asked for."""
OPTION_OF = {f"SLURM_{row.name.upper().replace('-', '_')}": row.name for row in TABLE if row.exported}
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
