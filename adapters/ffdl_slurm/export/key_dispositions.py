"""What becomes of each key of a manifest in a batch script that needs nothing of ours. A table."""

from __future__ import annotations

from ffdl_batch.domain.sbatch.option_table import TABLE
from ffdl_batch.ports.conversion import Fate
from ffdl_batch.ports.export import Word


def _same(to: str) -> Word:
    return Word(Fate.MAPPED, to)


def _near(to: str, reason: str) -> Word:
    return Word(Fate.APPROXIMATED, to, reason)


def _lost(reason: str) -> Word:
    return Word(Fate.DROPPED, "", reason)


_STORE = "directories are bound; of other stores the command is there, as a comment where it wants credentials"
WORDS = {
    **{row.key: _same(f"--{row.name}") for row in TABLE if row.field},
    "name": _same("--job-name"),
    "description": _same("a comment"),
    "version": _lost("FfDL stores it nowhere either"),
    "learners": _same("--nodes, --ntasks"),
    "cpus": _same("--cpus-per-task"),
    "gpus": _same("--gres"),
    "gpu_type": _near("--gres", "the type is passed on as it is written; this cluster may spell it otherwise"),
    "memory": _same("--mem"),
    "storage": _lost("nothing is reserved on the nodes' disks"),
    "framework": _same("apptainer exec"),
    "framework.image_location": _near("apptainer exec", "log in to the registry yourself: apptainer registry login"),
    "data_stores": _near("--bind", _STORE),
    "data_stores.connection.user_name": _lost("credentials are yours to give to the command that moves the data"),
    "data_stores.connection.password": _lost("credentials are yours to give to the command that moves the data"),
    "evaluation_metrics": _lost("nobody collects metrics; they are in the learners' logs"),
    "batch.gres": _same("--gres"),
    "batch.slurm": _same("the options as they are"),
    "batch.notify": _near("--mail-user, --mail-type", "Slurm sends mail, and calls no web address"),
    "batch.env": _same("export"),
    "batch.secrets": _near("export", "the value comes from a variable of that name, which you set when you submit"),
    "batch.sweep": _same("--array, and the variables of each task"),
    "batch.dependency": _near("--dependency", "ids of trainings mean nothing to Slurm; write the ids of its jobs"),
    "batch.placement": _near("--ntasks-per-node", "each learner has a node of its own"),
    "batch.checkpoint": _near("--signal", "it is asked for before the time limit; nobody waits longer than KillWait"),
    "batch.health": _lost("nobody looks whether learners hang"),
    "batch.retry": _lost("nobody starts a further attempt; what is in CHECKPOINT_DIR stays for the next job"),
    "batch.roles": _near("the command of each task", "services end when the others have; all nodes are alike"),
    "batch.restart": _lost("a failed learner ends the job"),
    "batch.preemptible": _lost("choose a partition or QOS for it"),
    "batch.network": _lost("learners have their node's network"),
    "batch.staging": _lost("data come when the job runs"),
    "batch.mount": _lost("nothing is mounted"),
    "batch.elastic": _lost("the number of learners stays"),
    "batch.profile": _lost("profiles are of another backend"),
    "batch.kubernetes": _lost("it is for another backend"),
    "batch.slurm_environment": _near("Slurm's own", "variables pass into the container; srun does not"),
}
