"""A table of what becomes of each key of a manifest in a batch script that needs no ffdl installation."""

from __future__ import annotations

from ffdl_batch.domain.conversion import Fate, KeyFate
from ffdl_batch.domain.sbatch.option_table import TABLE


def _same(to: str) -> KeyFate:
    return KeyFate(Fate.MAPPED, to)


def _near(to: str, reason: str) -> KeyFate:
    return KeyFate(Fate.APPROXIMATED, to, reason)


def _lost(reason: str) -> KeyFate:
    return KeyFate(Fate.DROPPED, "", reason)


_STORE = "directories are bound; the command for another store is a comment if it needs credentials"
KEY_FATES = {
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
    "data_stores.connection.user_name": _lost("give your credentials to the command that moves the data"),
    "data_stores.connection.password": _lost("give your credentials to the command that moves the data"),
    "evaluation_metrics": _lost("metrics are not collected; the logs of the learners have them"),
    "batch.gres": _same("--gres"),
    "batch.slurm": _same("the options as they are"),
    "batch.notify": _near("--mail-user, --mail-type", "Slurm sends mail, and calls no web address"),
    "batch.env": _same("export"),
    "batch.secrets": _near("export", "the value comes from a variable of that name, which you set when you submit"),
    "batch.sweep": _same("--array, and the variables of each task"),
    "batch.dependency": _near("--dependency", "Slurm does not know ids of trainings; write ids of its jobs"),
    "batch.placement": _near("--ntasks-per-node", "each learner has a node of its own"),
    "batch.checkpoint": _near("--signal", "it is requested before the time limit; Slurm waits KillWait at most"),
    "batch.health": _lost("hanging learners are not detected"),
    "batch.idle": _lost("idle GPUs do not end the job"),
    "batch.retry": _lost("no further attempt is started; the next job finds CHECKPOINT_DIR"),
    "batch.roles": _near(
        "the command of each task", "services end after the others; all nodes have the same resources"
    ),
    "batch.restart": _lost("a failed learner ends the job"),
    "batch.preemptible": _lost("choose a partition or QOS for it"),
    "batch.network": _lost("learners have their node's network"),
    "batch.staging": _lost("the job fetches its data when it runs"),
    "batch.mount": _lost("nothing is mounted"),
    "batch.elastic": _lost("the number of learners stays"),
    "batch.profile": _lost("profiles are of another backend"),
    "batch.kubernetes": _lost("it is for another backend"),
    "batch.slurm_environment": _near("Slurm's own", "variables pass into the container; srun does not"),
}
