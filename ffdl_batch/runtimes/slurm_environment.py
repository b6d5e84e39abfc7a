"""The variables that a script written for Slurm reads, for learners of every backend. Pure.

Names and meanings are those of sbatch(1) and srun(1) ("OUTPUT ENVIRONMENT VARIABLES", 26.05). For the script a learner
is a task, and the nodes are those of the gang, with the names at which learners reach them. Values of the manifest's
``batch.env`` win, and values that depend on them (SLURM_NPROCS on SLURM_NTASKS) follow them. If the scheduler is Slurm,
the node has the facts, as the job's number (:data:`HOST_VALUES`).
"""

from __future__ import annotations

import zlib
from itertools import groupby

from ffdl_batch.domain.job.learner_layout import Gang
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.domain.number_text import whole_number
from ffdl_batch.runtimes.learner_contract import SHELL, Layout
from ffdl_batch.runtimes.rendezvous import name_prefix
from ffdl_batch.runtimes.slurm_commands import INSTALLATION
from ffdl_batch.runtimes.slurm_steps import SENT, takes_steps

_SAME = (
    "SLURM_JOB_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_JOB_QOS", "SLURM_JOB_UID",
    "SLURM_JOB_USER", "SLURM_JOB_RESERVATION", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_CLUSTER_NAME",
    "SLURM_SUBMIT_HOST", "SLURM_RESTART_COUNT",
)  # fmt: skip
HOST_VALUES = {**{name: name for name in _SAME}, "SLURM_JOBID": "SLURM_JOB_ID"}
"""Facts of Slurm about a job on its nodes that are the same in a learner."""
SLURM_SHELL = (*SHELL[:2], f"{INSTALLATION}\n{SHELL[2]}")
"""The shell of every learner, with srun and scontrol on its PATH."""
_ELSEWHERE = "ffdl"
"""The cluster and partition of a job that has none."""
_MPI = {
    "OMPI_MCA_plm": "^slurm",
    "OMPI_MCA_ras": "^slurm",
    "PRTE_MCA_plm": "^slurm",
    "PRTE_MCA_ras": "^slurm",
    "HYDRA_RMK": "user",
}
"""MPI launchers that see SLURM_JOB_ID start their processes by Slurm's srun, which the learner lacks."""
_MOST_TASKS = 1_000_000
_HYDRA_ALONE = {"HYDRA_LAUNCHER": "fork", "I_MPI_HYDRA_BOOTSTRAP": "fork"}


def job_number(job_id: str) -> int:
    """Return a number for scripts that calculate with SLURM_JOB_ID, for example a port; the same for all attempts.
    Slurm's own have 26 bits (MAX_JOB_ID)."""
    return zlib.crc32(job_id.encode()) % 0x03FF_FFFE + 1


def slurm_variables(
    job_id: str, spec: JobSpec, gang: Gang, layout: Layout, contained: bool, apart: bool = False
) -> dict[str, str]:
    """Return texts with placeholders. `contained`: names of learners resolve, if they have any. `apart`: they share no
    files, and no step can be sent to them."""
    batch, number = spec.batch, str(job_number(job_id))
    tasks = _tasks(spec, gang)
    alone = len(gang.members) == 1
    nodes = node_names(job_id, gang) if contained and not alone else "{hostname}"
    found = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NAME": literal(spec.element.name if spec.element else spec.name),
        "SLURM_JOB_PARTITION": literal(batch.partition or _ELSEWHERE),
        "SLURM_JOB_ACCOUNT": literal(batch.account),
        "SLURM_JOB_QOS": literal(batch.qos),
        "SLURM_CLUSTER_NAME": _ELSEWHERE,
        "SLURM_SUBMIT_HOST": "{hostname}",
        "SLURM_SUBMIT_DIR": layout.model_dir,
        "SLURM_NTASKS": str(sum(tasks)),
        "SLURM_NPROCS": str(sum(tasks)),
        "SLURM_TASKS_PER_NODE": per_node(tasks),
        "SLURM_NNODES": str(gang.nodes),
        "SLURM_JOB_NUM_NODES": str(gang.nodes),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURMD_NODENAME": "{name}" if contained and not alone and gang.nodes == len(gang.members) else "{hostname}",
        "SLURM_NODEID": "{node_rank}",
        "SLURM_PROCID": "{rank}",
        "SLURM_LOCALID": "0" if alone else "{local_index}",
        "SLURM_CPUS_ON_NODE": str(gang.load.cpus),
        "SLURM_JOB_CPUS_PER_NODE": per_node([gang.load.cpus] * gang.nodes),
        "SLURM_MEM_PER_NODE": str(gang.load.memory_mib),
        "SLURM_CPUS_PER_TASK": str(max(1, gang.load.cpus // max(tasks))),
        "SLURM_TMPDIR": "/tmp" if contained else "{scratch}/learner-{learner_id}",  # noqa: S108 - the learner's own
    }
    found["TMPDIR"] = found["SLURM_TMPDIR"]
    if gang.load.devices:
        found |= {
            "SLURM_GPUS_ON_NODE": str(gang.load.devices),
            "SLURM_GPUS": str(gang.load.devices * gang.nodes),
            "SLURM_JOB_GPUS": "{gpus}",
        }
    if takes_steps(spec) and not alone and not apart:
        found[SENT] = "sent"
    if spec.element is not None:
        found["SLURM_ARRAY_JOB_ID"] = str(job_number(spec.element.array))
    return found | _MPI | (_HYDRA_ALONE if alone else {})


def node_names(job_id: str, gang: Gang) -> str:
    """Return the nodes in Slurm's notation, each by the name of its first learner: ``learner-training-x-[0,2]``."""
    first = {node: rank for rank, node in reversed(list(enumerate(gang.nodes_of)))}
    ranks = ",".join(str(first[node]) for node in sorted(first))
    prefix = literal(name_prefix(job_id))
    return f"{prefix}-[{ranks}]" if len(first) > 1 else f"{prefix}-{ranks}"


def per_node(counts: list[int]) -> str:
    """Return counts in the form of SLURM_TASKS_PER_NODE: ``2(x3),1``."""
    runs = [(value, len(list(same))) for value, same in groupby(counts)]
    return ",".join(f"{value}(x{times})" if times > 1 else str(value) for value, times in runs)


def _tasks(spec: JobSpec, gang: Gang) -> list[int]:
    """Return the tasks of each node: the learners, or the manifest's number, distributed as srun does it."""
    asked = spec.batch.env.get("SLURM_NTASKS", "")
    tasks = whole_number(asked, _MOST_TASKS)
    if not tasks:
        return [gang.nodes_of.count(node) for node in range(gang.nodes)]
    each, rest = divmod(tasks, gang.nodes)
    return [each + (node < rest) for node in range(gang.nodes)]
