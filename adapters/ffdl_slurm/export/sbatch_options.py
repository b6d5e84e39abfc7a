"""The #SBATCH lines of a script that needs nothing of ours. Pure."""

from __future__ import annotations

from ffdl_batch.domain.job.array import join_indexes, read_indexes
from ffdl_batch.domain.job.learner_layout import Gang
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.domain.sbatch.script_options import SbatchOption
from ffdl_slurm.sbatch_script import sbatch_time
from ffdl_slurm.settings import SlurmSettings

SIGNAL_LEAD_S = 60


def options_of(spec: JobSpec, gang: Gang, tasks_per_node: int, settings: SlurmSettings) -> list[SbatchOption]:
    """In a fixed order; what the manifest does not say is the site's."""
    batch, load = spec.batch, gang.load
    pairs = {
        "job-name": spec.name,
        "nodes": str(gang.nodes),
        "ntasks": str(gang.nodes * tasks_per_node),
        "ntasks-per-node": str(tasks_per_node),
        "cpus-per-task": str(max(1, load.cpus // tasks_per_node)),
        "mem": f"{load.memory_mib}M",
        "gres": _gres(spec, gang),
        "time": format_time_limit(batch.time_s) if batch.time_s is not None else "",
        "partition": batch.partition or settings.partition,
        "account": batch.account or settings.account,
        "qos": batch.qos or settings.qos,
        "constraint": batch.constraint,
        "reservation": batch.reservation,
        "nodelist": batch.nodelist,
        "exclude": batch.exclude,
        "dependency": batch.dependency,
        "begin": sbatch_time(batch.begin),
        "priority": batch.priority,
        "signal": batch.signal or _signal(spec),
        "mail-user": batch.notify.mail_user,
        "mail-type": ",".join(batch.notify.events),
        "comment": batch.comment,
        "output": batch.output,
        "array": array_of(spec),
    }
    flags = {"hold": batch.hold, "requeue": batch.requeue is True, "no-requeue": batch.requeue is False}
    found = [SbatchOption(name, value) for name, value in pairs.items() if value]
    found += [SbatchOption(name) for name, on in flags.items() if on]
    return [*found, *_further(batch.slurm_args)]


def _gres(spec: JobSpec, gang: Gang) -> str:
    kind = f"gpu:{spec.resources.gpu_type}" if spec.resources.gpu_type else "gpu"
    found = [f"{kind}:{gang.load.gpus}"] if gang.load.gpus else []
    return ",".join([*found, *(f"{name}:{count}" for name, count in sorted(spec.resources.gres.items()))])


def _signal(spec: JobSpec) -> str:
    """Learners are asked for a checkpoint before the time limit, as the platform asks them."""
    if spec.batch.time_s is None:
        return ""
    lead_s = spec.batch.checkpoint.lead_s or SIGNAL_LEAD_S
    return f"{spec.batch.checkpoint.signal}@{lead_s}"


def array_of(spec: JobSpec) -> str:
    """The manifest's array, or that of its sweep; "" of a job that is none."""
    if spec.batch.array:
        return spec.batch.array
    return f"0-{len(spec.batch.sweep) - 1}" if spec.batch.sweep else ""


def indexes_of(spec: JobSpec) -> str:
    """The tasks of an array in sbatch's words; "" of a job that is none."""
    text = array_of(spec)
    return join_indexes(read_indexes(text).values) if text else ""


def _further(args: tuple[str, ...]) -> list[SbatchOption]:
    found: list[SbatchOption] = []
    for arg in args:
        if not arg.startswith("--") and found:
            found[-1] = SbatchOption(found[-1].name, arg)
            continue
        name, equals, value = arg.removeprefix("--").partition("=")
        value = sbatch_time(value) if name == "deadline" else value
        found.append(SbatchOption(name, value if equals else None))
    return found
