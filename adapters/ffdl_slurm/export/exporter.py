"""A batch script that runs a manifest's job with Slurm and Apptainer alone (entry point ``slurm`` of
``ffdl_batch.converters``).

Directories, variables and the way learners find each other are those that a launch file would have
(:mod:`ffdl_batch.runtimes`), so that training code meets the same contract. Each learner has a node of its own, as the
platform's default placement has it.
"""

from __future__ import annotations

import shlex

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.conversion import CannotConvert, ExportedJob, ExportRequest, judge_keys
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreKind
from ffdl_batch.domain.job.array import is_array
from ffdl_batch.domain.job.data_stores import StoreRefused
from ffdl_batch.domain.job.learner_layout import Gang, lay_out, members_of, starts_mpi
from ffdl_batch.domain.job.spec import JobSpec, Placement
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.data import Data, Subject, place_data
from ffdl_batch.runtimes.learner_contract import container_layout
from ffdl_batch.runtimes.rendezvous import slots
from ffdl_slurm.export import step_job
from ffdl_slurm.export.key_fates import KEY_FATES
from ffdl_slurm.export.learner_text import cluster_lines, inside_lines, task_lines
from ffdl_slurm.export.sbatch_options import options_of
from ffdl_slurm.export.shell_words import JOB, JOB_ID, word
from ffdl_slurm.sbatch_script import render_option
from ffdl_slurm.settings import SlurmSettings, read_settings

_FIRST_PORT, _PORTS = 10_000, 20_000
"""Those of the platform: below the ports that Linux gives to outgoing connections."""
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


class SlurmExporter:
    """Writes batch scripts."""

    pulls_images = False

    def export(self, request: ExportRequest) -> ExportedJob:
        """See :class:`ffdl_batch.ports.conversion.ExportsJobs`."""
        settings = read_settings(request.settings)
        try:
            text = _script(request, settings)
        except StoreRefused as error:
            raise CannotConvert(f"{error.path}: {error.message}", error.cure) from None
        except (InvalidRequest, ValueError) as error:
            raise CannotConvert(str(error)) from None
        fates = {**KEY_FATES, **step_job.KEY_FATES} if step_job.starts_steps(request.spec) else KEY_FATES
        return ExportedJob(text, judge_keys(request.spec, fates))


def create() -> SlurmExporter:
    """Create the exporter for the entry point."""
    return SlurmExporter()


def _script(request: ExportRequest, settings: SlurmSettings) -> str:
    spec = request.spec
    if step_job.starts_steps(spec):
        return _script_of_steps(request, settings)
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
        *_comments(request, "Slurm and Apptainer", "Results, logs and checkpoints lie"),
        "set -u",
        *_head(request, gang),
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
    return "\n".join(lines) + "\n"


def _script_of_steps(request: ExportRequest, settings: SlurmSettings) -> str:
    lines = [
        "#!/bin/bash",
        *(render_option(option) for option in step_job.options_of(request.spec, settings)),
        *_comments(request, "Slurm", "The log lies"),
        *_own(request.spec),
        *_JOB,
        'mkdir -p "$JOB"/logs/learner-1 || exit 1',
        *_secrets(request.spec),
        *_sweep(request.spec),
        *step_job.run_lines(request),
    ]
    return "\n".join(lines) + "\n"


def _comments(request: ExportRequest, needed: str, where: str) -> list[str]:
    return [
        f"# Made of {_comment(request.file)} by ffdl convert. It needs {needed}, and nothing of ffdl_batch.",
        f"# Submit it in the directory of the model. {where} in $JOB.",
        *([f"# {_comment(request.spec.description)}"] if request.spec.description else []),
    ]


def _comment(text: str) -> str:
    return " ".join(text.split())[:200]


def _head(request: ExportRequest, gang: Gang) -> list[str]:
    """Return the lines that set directories, addresses and the names of all learners."""
    spec = request.spec
    lines = [
        *_own(request.spec),
        *_JOB,
        *_PLACES.splitlines(),
        f"MASTER_PORT=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))",
        f"IMAGE=${{IMAGE:-{word(request.image, filled=False)}}}",
        f"LEARNERS={len(gang.members)}",
        *_secrets(request.spec),
        *_NAMES.splitlines(),
        *cluster_lines(spec, gang),
        "export TRAINING_ID MODEL JOB IMAGE APPTAINER MASTER_ADDR MASTER_PORT LEARNERS TF_CLUSTER",
    ]
    if is_array(spec):
        lines.append("export FFDL_ARRAY_ID=array-$SLURM_ARRAY_JOB_ID FFDL_ARRAY_INDEX=$SLURM_ARRAY_TASK_ID")
    return [*lines, *_sweep(spec)]


def _own(spec: JobSpec) -> list[str]:
    own = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if is_array(spec) else "$SLURM_JOB_ID"
    return [
        f"TRAINING_ID=training-{own}",
        "MODEL=${MODEL:-$SLURM_SUBMIT_DIR}",
    ]


def _secrets(spec: JobSpec) -> list[str]:
    return [f': "${{{name}:?is a secret: set it when you submit}}"' for name in spec.batch.secrets]


def _sweep(spec: JobSpec) -> list[str]:
    if not spec.batch.sweep:
        return []
    lines = ["case $SLURM_ARRAY_TASK_ID in  # the variables of each task"]
    for index, values in enumerate(spec.batch.sweep):
        said = " ".join(f"{name}={word(value, filled=False)}" for name, value in values.items())
        lines.append(f"  {index}) export {said} ;;")
    return [*lines, "esac"]


def lines_in(data: Data) -> list[str]:
    """Return the lines before the learners start."""
    lines: list[str] = []
    for copy in data.copies:
        target = word(copy.target, filled=False)
        lines.append(f"mkdir -p {target} && cp -a {word(copy.source + '/.', filled=False)} {target}/ || exit 1")
    for number, fetch in enumerate(data.fetches):
        local = word(fetch.local, filled=False)
        lines += [f"mkdir -p {local}", *_moved(fetch, local, f"input {number + 1}", inward=True)]
    return lines


def lines_out(data: Data) -> list[str]:
    """Return the lines after the learners have ended."""
    lines: list[str] = []
    if data.stores.results:
        target = word(data.stores.results, filled=False)
        lines.append(f'mkdir -p {target} && cp -a "$JOB"/results/. {target}/ || status=1')
    for send in data.uploads:
        if _stays(send):
            continue
        lines += _moved(send, word(send.local), "results", inward=False)
    return lines


def _stays(send: Transfer) -> bool:
    """Return whether the data stay in $JOB, as logs and the model do."""
    return "{learner_id}" in send.local or send.local.endswith("_submitted_code")


def _is_open(transfer: Transfer, *, inward: bool) -> bool:
    """Return whether the data can be fetched without credentials."""
    return transfer.store.kind is StoreKind.HTTP and inward and not transfer.store.credentials


def _moved(transfer: Transfer, local: str, what: str, *, inward: bool) -> list[str]:
    store = transfer.store
    prefix = transfer.prefix.replace("{{", "{").replace("}}", "}")
    if _is_open(transfer, inward=inward):
        url = f"{store.endpoint.rstrip('/')}/{prefix.lstrip('/')}"
        return [f"(cd {local} && curl -fsSLO --retry 3 {shlex.quote(url)}) || exit 1"]
    if store.kind is StoreKind.FILE:
        path = word(f"{store.container}/{prefix}", filled=False)
        pair = (f"{path}/.", local) if inward else (f"{local}/.", path)
        return [f"mkdir -p {pair[1]} && cp -a {pair[0]} {pair[1]}/ || exit 1"]
    remote = word("/".join(part for part in (store.container, prefix) if part), filled=False)
    first, second = (f"s3://{remote}", local) if inward else (local, f"s3://{remote}")
    said = f"# {what}: give the command your credentials, and take the mark away; this script has none of them"
    if store.kind is StoreKind.S3:
        endpoint = f" --endpoint-url {shlex.quote(store.endpoint)}" if store.endpoint else ""
        region = f" --region {shlex.quote(store.region)}" if store.region else ""
        return [said, f"# aws{endpoint}{region} s3 sync --only-show-errors {first} {second} || exit 1"]
    first, second = (f"REMOTE:{remote}", local) if inward else (local, f"REMOTE:{remote}")
    return [
        f"{said} (REMOTE is what `rclone config` calls {store.kind.value} at {' '.join(store.endpoint.split())})",
        f"# rclone copy {first} {second} || exit 1",
    ]
