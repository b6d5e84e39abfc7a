"""The variables that sbatch sets if an option is given (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).

Scripts read them, so the converter keeps them in `batch.env`. A script that is written from the manifest has the
options that set them.
"""

from __future__ import annotations

import re

from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.sbatch.option_table import TABLE
from ffdl_batch.runtimes.slurm_steps import takes_steps

TASKS = "SLURM_NTASKS"
"""srun always sets it for the tasks that it starts, sbatch only if ``--ntasks`` is given."""
OPTION_OF = {f"SLURM_{row.name.upper().replace('-', '_')}": row.name for row in TABLE if row.exported}
"""Variable → long option."""
_SRUN = re.compile(r"(?<![\w./-])srun\b")
NODES = "SLURM_NNODES"
"""In `batch.env`: the command is a script that starts its own tasks on so many nodes."""
NO_IMAGE = "custom"
"""The version in manifests that name no image."""
OF_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task"})
OF_CPUS = frozenset({"cpus-per-task", "cpus-per-gpu", "tres-per-task"})
OF_MEMORY = frozenset({"mem-per-cpu", "mem-per-gpu"})


def starts_steps(spec: JobSpec) -> bool:
    """Return whether the command starts steps with its own srun, or runs on several nodes without an image."""
    if not spec.batch.slurm_environment:
        return False
    nodes, image = spec.batch.env.get(NODES), spec.framework.version
    starts = image == NO_IMAGE or bool(_SRUN.search(spec.framework.command))
    return takes_steps(spec) or (nodes is not None and (nodes == "1" or starts))
