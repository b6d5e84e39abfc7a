"""Choose the #SBATCH lines of a script that needs no ffdl installation. Pure."""

from __future__ import annotations

from dataclasses import replace

from ffdl_batch.domain.job.array import join_indexes, read_indexes
from ffdl_batch.domain.job.learner_layout import Gang
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.sbatch.script_options import SbatchOption, scheduling_options
from ffdl_slurm.settings import SlurmSettings, with_defaults

SIGNAL_LEAD_S = 60


def options_of(spec: JobSpec, gang: Gang, tasks_per_node: int, settings: SlurmSettings) -> list[SbatchOption]:
    """Return the options in a fixed order. The site sets what the manifest leaves out."""
    batch, load = spec.batch, gang.load
    pairs = {
        "job-name": spec.name,
        "nodes": str(gang.nodes),
        "ntasks": str(gang.nodes * tasks_per_node),
        "ntasks-per-node": str(tasks_per_node),
        "cpus-per-task": str(max(1, load.cpus // tasks_per_node)),
        "mem": f"{load.memory_mib}M",
        "gres": _gres(spec, gang),
    }
    written = replace(with_defaults(batch, settings), signal=batch.signal or _signal(spec), array=array_of(spec))
    return [*(SbatchOption(name, value) for name, value in pairs.items() if value), *scheduling_options(written)]


def _gres(spec: JobSpec, gang: Gang) -> str:
    kind = f"gpu:{spec.resources.gpu_type}" if spec.resources.gpu_type else "gpu"
    found = [f"{kind}:{gang.load.gpus}"] if gang.load.gpus else []
    return ",".join([*found, *(f"{name}:{count}" for name, count in sorted(spec.resources.gres.items()))])


def _signal(spec: JobSpec) -> str:
    """Return the signal that requests a checkpoint before the time limit, as the platform does."""
    if spec.batch.limit_s is None:
        return ""
    lead_s = spec.batch.checkpoint.lead_s or SIGNAL_LEAD_S
    return f"{spec.batch.checkpoint.signal}@{lead_s}"


def array_of(spec: JobSpec) -> str:
    """Return the manifest's array, or that of its sweep; "" for a single job."""
    if spec.batch.array:
        return spec.batch.array
    return f"0-{len(spec.batch.sweep) - 1}" if spec.batch.sweep else ""


def indexes_of(spec: JobSpec) -> str:
    """Return the tasks of an array as sbatch writes them; "" for a single job."""
    text = array_of(spec)
    return join_indexes(read_indexes(text).values) if text else ""
