"""A batch script that runs a manifest's job with Slurm and Apptainer alone (entry point ``slurm`` of
``ffdl_batch.converters``).

Directories, variables and the way learners find each other are those that a launch file would have
(:mod:`ffdl_batch.runtimes`), so that training code meets the same contract. Each learner has a node of its own, as the
platform's default placement has it.
"""

from __future__ import annotations

import shlex

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.job.array import is_array
from ffdl_batch.domain.job.data_stores import StoreRefused
from ffdl_batch.domain.job.learner_layout import Gang, lay_out, members_of, starts_mpi
from ffdl_batch.domain.job.spec import JobSpec, Placement
from ffdl_batch.ports.conversion import CannotConvert
from ffdl_batch.ports.export import Leaving, Left, judge_keys
from ffdl_batch.ports.scheduler import InvalidRequest
from ffdl_batch.runtimes.data import Subject, place_data
from ffdl_batch.runtimes.learner_contract import container_layout
from ffdl_batch.runtimes.rendezvous import slots
from ffdl_slurm.export import step_job
from ffdl_slurm.export.data_transfers import lines_in, lines_out, undone
from ffdl_slurm.export.key_dispositions import WORDS
from ffdl_slurm.export.learner_text import cluster_lines, inside_lines, task_lines
from ffdl_slurm.export.sbatch_options import options_of
from ffdl_slurm.export.shell_words import JOB, JOB_ID, word
from ffdl_slurm.sbatch_script import render_option
from ffdl_slurm.settings import SlurmSettings, read_settings

_FIRST_PORT, _PORTS = 10_000, 20_000
"""As the platform's: below what Linux gives to outgoing connections."""
_NAMES = """\
# The learners' names, as FfDL has them.
{ cat /etc/hosts
  for i in "${!HOSTS[@]}"; do
    printf '%s %s\\n' "$(getent hosts "${HOSTS[i]}" | awk '{ print $1; exit }')" "learner-$TRAINING_ID-$i"
  done
} >"$JOB"/hosts"""
_JOB = ("JOB=${JOB:-$SLURM_SUBMIT_DIR/$TRAINING_ID}",)
_PLACES = """\
APPTAINER=${APPTAINER:-apptainer}
mkdir -p "$JOB"/state/model-code "$JOB"/state/logs "$JOB"/results "$JOB"/checkpoints "$JOB"/data "$JOB"/logs || exit 1
HOSTS=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
MASTER_ADDR=${HOSTS[0]}"""


class SlurmLeaver:
    """Writes batch scripts."""

    pulls_images = False

    def leave(self, leaving: Leaving) -> Left:
        """See :class:`ffdl_batch.ports.export.WritesJobs`."""
        settings = read_settings(leaving.settings)
        try:
            text, unmoved = _script(leaving, settings)
        except StoreRefused as error:
            raise CannotConvert(f"{error.path}: {error.message}", error.cure) from None
        except (InvalidRequest, ValueError) as error:
            raise CannotConvert(str(error)) from None
        words = {**WORDS, **step_job.WORDS} if step_job.starts_steps(leaving.spec) else WORDS
        return Left(text, judge_keys(leaving.spec, words), unmoved)


def create() -> SlurmLeaver:
    """For the entry point."""
    return SlurmLeaver()


def _script(leaving: Leaving, settings: SlurmSettings) -> tuple[str, tuple[str, ...]]:
    spec = leaving.spec
    if step_job.starts_steps(spec):
        return _script_of_steps(leaving, settings), ()
    members = members_of(spec)
    gang = lay_out(members, Placement.NODE, lambda _: len(members))
    assert gang is not None  # as many nodes as are asked for
    job = JobDir(JOB)
    data = place_data(Subject(JOB_ID, spec, gang, job, job.attempt(1)))
    layout = container_layout(data.places)
    tasks = slots(gang) if starts_mpi(spec) else 1
    mpi = " --mpi=pmix" if tasks > 1 else ""
    lines = [
        "#!/bin/bash",
        *(render_option(option) for option in options_of(spec, gang, tasks, settings)),
        *_comments(leaving, "Slurm and Apptainer", "Results, logs and checkpoints lie"),
        "set -u",
        *_head(leaving, gang),
        *lines_in(data),
        "",
        "# Each task is a learner. The first text runs on its node, the second one in its container.",
        "read -r -d '' LEARNER <<'FFDL_TASK' || :",
        *task_lines(spec, gang, layout),
        "FFDL_TASK",
        "read -r -d '' INSIDE <<'FFDL_INSIDE' || :",
        *inside_lines(spec, gang, layout, tasks),
        "FFDL_INSIDE",
        "export LEARNER INSIDE",
        f'srun --kill-on-bad-exit=1 --ntasks={gang.nodes * tasks}{mpi} bash -c "$LEARNER"',
        "status=$?",
        *lines_out(data),
        'exit "$status"',
    ]
    return "\n".join(lines) + "\n", undone(data)


def _script_of_steps(leaving: Leaving, settings: SlurmSettings) -> str:
    lines = [
        "#!/bin/bash",
        *(render_option(option) for option in step_job.options_of(leaving.spec, settings)),
        *_comments(leaving, "Slurm", "The log lies"),
        *_own(leaving),
        *_JOB,
        'mkdir -p "$JOB"/logs/learner-1 || exit 1',
        *_secrets(leaving),
        *_sweep(leaving.spec),
        *step_job.run_lines(leaving),
    ]
    return "\n".join(lines) + "\n"


def _comments(leaving: Leaving, needed: str, where: str) -> list[str]:
    return [
        f"# Made of {_comment(leaving.file)} by ffdl convert. It needs {needed}, and nothing of ffdl_batch.",
        f"# Submit it in the directory of the model. {where} in $JOB.",
        *([f"# {_comment(leaving.spec.description)}"] if leaving.spec.description else []),
    ]


def _comment(text: str) -> str:
    return " ".join(text.split())[:200]


def _head(leaving: Leaving, gang: Gang) -> list[str]:
    """Where things are, and who the others are."""
    spec = leaving.spec
    lines = [
        *_own(leaving),
        *_JOB,
        *_PLACES.splitlines(),
        f"MASTER_PORT=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))",
        f"IMAGE=${{IMAGE:-{word(leaving.image, filled=False)}}}",
        f"LEARNERS={len(gang.members)}",
        *_secrets(leaving),
        *_NAMES.splitlines(),
        *cluster_lines(spec, gang),
        "export TRAINING_ID MODEL JOB IMAGE APPTAINER MASTER_ADDR MASTER_PORT LEARNERS TF_CLUSTER",
    ]
    if is_array(spec):
        lines.append("export FFDL_ARRAY_ID=array-$SLURM_ARRAY_JOB_ID FFDL_ARRAY_INDEX=$SLURM_ARRAY_TASK_ID")
    return [*lines, *_sweep(spec)]


def _own(leaving: Leaving) -> list[str]:
    own = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if is_array(leaving.spec) else "$SLURM_JOB_ID"
    return [
        f"TRAINING_ID=training-{own}",
        f"MODEL=${{MODEL:-$SLURM_SUBMIT_DIR{'/' if leaving.model else ''}{leaving.model}}}",
    ]


def _secrets(leaving: Leaving) -> list[str]:
    file = leaving.secrets_file
    return [
        *([f'. "$SLURM_SUBMIT_DIR"/{shlex.quote(file)} || exit 1'] if file else []),
        *(f': "${{{name}:?is a secret: set it when you submit}}"' for name in leaving.spec.batch.secrets),
    ]


def _sweep(spec: JobSpec) -> list[str]:
    if not spec.batch.sweep:
        return []
    lines = ["case $SLURM_ARRAY_TASK_ID in  # the variables of each task"]
    for index, values in enumerate(spec.batch.sweep):
        said = " ".join(f"{name}={word(value, filled=False)}" for name, value in values.items())
        lines.append(f"  {index}) export {said} ;;")
    return [*lines, "esac"]
