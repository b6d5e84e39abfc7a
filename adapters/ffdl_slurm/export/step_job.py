"""Write a batch script for a job whose command starts its own steps.

The command needs Slurm's srun and scontrol, which images do not have. So it runs once, on the first node, as under
sbatch.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from ffdl_batch.domain.conversion import ExportRequest, Fate, KeyFate
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.sbatch.script_options import SbatchOption
from ffdl_slurm.convert.output_variables import starts_steps
from ffdl_slurm.convert.script_writer import asked_for, exports_of
from ffdl_slurm.export.sbatch_options import array_of
from ffdl_slurm.settings import SlurmSettings, with_defaults

_ON_NODES = "its srun is Slurm's, which no image has: it runs on the nodes, with their software or what its srun names"
_UNBOUND = "no directory is bound and nothing is moved: it finds what the nodes have"
__all__ = ["KEY_FATES", "options_of", "run_lines", "starts_steps"]
KEY_FATES: Mapping[str, KeyFate] = {
    "learners": KeyFate(Fate.MAPPED, "--nodes"),
    "cpus": KeyFate(Fate.MAPPED, "--cpus-per-task"),
    "gpus": KeyFate(Fate.MAPPED, "--gres, or what it was asked for by"),
    "framework.name": KeyFate(Fate.DROPPED, "", _ON_NODES),
    "framework.version": KeyFate(Fate.DROPPED, "", _ON_NODES),
    "framework.image_location": KeyFate(Fate.DROPPED, "", _ON_NODES),
    "framework.command": KeyFate(Fate.MAPPED, "the script's command, once, on the first node"),
    "data_stores": KeyFate(Fate.DROPPED, "", _UNBOUND),
    "batch.env": KeyFate(Fate.MAPPED, "export, and the options that say so"),
    "batch.roles": KeyFate(Fate.MAPPED, "srun of its command"),
    "batch.placement": KeyFate(Fate.MAPPED, "--nodes"),
    "batch.checkpoint": KeyFate(Fate.DROPPED, "", "no checkpoint is requested; batch.signal sends a signal"),
    "batch.slurm_environment": KeyFate(Fate.MAPPED, "Slurm's own"),
}
"""What becomes of keys, if it differs from the script of a job whose learners run in images."""
_RUN = """\
exec 3>&1 > >(trap '' HUP INT USR1 USR2 TERM; exec tee -a "$JOB"/logs/learner-1/training-log.txt) 2>&1
tee=$! again=1 status=255
for signal in HUP INT QUIT USR1 USR2 TERM CONT; do trap "again=1; kill -s $signal "'"$!" 2>/dev/null' "$signal"; done
{command} 3>&- &
pid=$!
while [ -n "$again" ] && [ "$status" -gt 128 ]; do again=; wait "$pid"; status=$?; done
exec >&3 2>&3
for turn in {1..50}; do kill -0 "$tee" 2>/dev/null || break; sleep 0.1; done  # what still runs may hold the log open
exit "$status\""""


def options_of(spec: JobSpec, settings: SlurmSettings) -> list[SbatchOption]:
    """Return the options that the script had, with the site's partition, account and QOS if the manifest names none."""
    batch = replace(with_defaults(spec.batch, settings), secrets={}, array=array_of(spec))
    return asked_for(replace(spec, batch=batch))


def run_lines(request: ExportRequest) -> list[str]:
    """Return the lines that run the command in its directory, with its output in the learner's log, and pass it the
    signals that the batch script gets."""
    command = f"bash -c {shlex.quote(request.spec.framework.command.rstrip())}"
    return ['cd -- "$MODEL" || exit 1', *exports_of(request.spec), *_RUN.replace("{command}", command, 1).split("\n")]
