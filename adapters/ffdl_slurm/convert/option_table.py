"""All options of sbatch in Slurm 26.05, and what becomes of each in a manifest.

Names, letters and kinds of arguments are those that sbatch itself tells (``sbatch --autocomplete=--``, ``--help``);
variables are those of sbatch(1), INPUT ENVIRONMENT VARIABLES. The tests hold the table against what was recorded of the
real program.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ffdl_batch.ports.conversion import Fate


class Takes(StrEnum):
    """Whether an option has an argument."""

    NONE = "none"
    NEEDED = "needed"
    OPTIONAL = "optional"
    """Only after ``=`` (or directly behind the letter)."""


@dataclass(frozen=True, slots=True)
class SbatchName:
    """One option. `to` is the key of the manifest that it goes to, "" where it goes nowhere; `fate` is what usually
    becomes of it, and `reason` says why where that is not simply `mapped`."""

    name: str
    letter: str
    takes: Takes
    variables: tuple[str, ...]
    to: str
    fate: Fate
    reason: str


ARGS = "batch.slurm.args"
_NO, _ONE, _MAY = Takes.NONE, Takes.NEEDED, Takes.OPTIONAL
_ONE_STREAM = "standard error is in the learner's log with standard output: ffdl logs"
_COMMAND = "it is about the command that submits; ffdl-submit has it, too"
_ADMIN = "it is the administrators' to set, and jobs of ours run as their owner"
_CLUSTER = "a manifest names no cluster; submit on a login node of that one, or choose a backend"
_OCI = "an OCI bundle is no image that a learner runs in; name one by --image"
_TOPOLOGY = "blocks of a topology cannot be asked for; batch.placement of the manifest says how learners lie"
_STEP = "it steers steps of srun, and the platform starts the only one there is"
_SOCKETS = "tasks are not counted by socket or core; ask for CPUs"


def _row(names: str, takes: Takes, variables: str, to: str, fate: Fate = Fate.MAPPED, reason: str = "") -> SbatchName:
    name, _, letter = names.partition("/")
    return SbatchName(name, letter, takes, tuple(f"SBATCH_{one}" for one in variables.split()), to, fate, reason)


def _dropped(names: str, takes: Takes, variables: str, reason: str) -> SbatchName:
    return _row(names, takes, variables, "", Fate.DROPPED, reason)


def _near(names: str, takes: Takes, variables: str, to: str, reason: str) -> SbatchName:
    return _row(names, takes, variables, to, Fate.APPROXIMATED, reason)


TABLE: tuple[SbatchName, ...] = (
    _row("account/A", _ONE, "ACCOUNT", "batch.account"),
    _row("acctg-freq", _ONE, "ACCTG_FREQ", ARGS),
    _row("array/a", _ONE, "ARRAY_INX", "batch.array"),
    _dropped("autocomplete", _ONE, "", "it is for completion in shells: ffdl completion bash"),
    _dropped("batch", _ONE, "BATCH", "the batch script only starts the controllers, so its node does not matter"),
    _row("bb", _ONE, "BURST_BUFFER", ARGS),
    _row("bbf", _ONE, "", ARGS),
    _row("begin/b", _ONE, "", "batch.begin"),
    _near("chdir/D", _ONE, "", "", "the command starts in its copy of the model: give that directory as the model"),
    _dropped("cluster", _ONE, "", _CLUSTER),
    _row("cluster-constraint", _ONE, "CLUSTER_CONSTRAINT", ARGS),
    _dropped("clusters/M", _ONE, "CLUSTERS", _CLUSTER),
    _row("comment", _ONE, "", "batch.comment"),
    _dropped("consolidate-segments", _NO, "CONSOLIDATE_SEGMENTS", _TOPOLOGY),
    _row("constraint/C", _ONE, "CONSTRAINT", "batch.constraint"),
    _dropped("container", _ONE, "CONTAINER", _OCI),
    _dropped("container-id", _ONE, "CONTAINER_ID", _OCI),
    _dropped("container-type", _ONE, "CONTAINER_TYPE", _OCI),
    _dropped("context", _ONE, "", _ADMIN),
    _row("contiguous", _NO, "", ARGS),
    _row("core-spec/S", _ONE, "CORE_SPEC", ARGS),
    _row("cores-per-socket", _ONE, "", ARGS),
    _row("cpu-freq", _ONE, "CPU_FREQ_REQ", ARGS),
    _row("cpus-per-gpu", _ONE, "CPUS_PER_GPU", "cpus"),
    _row("cpus-per-task/c", _ONE, "", "cpus"),
    _row("deadline", _ONE, "", ARGS),
    _row("delay-boot", _ONE, "DELAY_BOOT", ARGS),
    _row("dependency/d", _ONE, "", "batch.dependency"),
    _row("distribution/m", _ONE, "DISTRIBUTION", ARGS),
    _near("error/e", _ONE, "ERROR", "", _ONE_STREAM),
    _row("exclude/x", _ONE, "", "batch.exclude"),
    _row("exclusive", _MAY, "EXCLUSIVE", ARGS),
    _near("export", _ONE, "EXPORT", "batch.env", "a learner's environment is clean but for what the manifest names"),
    _dropped("export-file", _ONE, "", "a learner's environment is clean; write the variables into batch.env"),
    _dropped("external", _NO, "", "an external job runs nothing, and a training must"),
    _dropped("extra", _ONE, "", _ADMIN),
    _row("extra-node-info/B", _ONE, "", ARGS),
    _dropped(
        "get-user-env", _NO, "GET_USER_ENV", "a learner's environment is clean; write what it needs into batch.env"
    ),
    _dropped("gid", _ONE, "", _ADMIN),
    _row("gpu-bind", _ONE, "GPU_BIND", ARGS),
    _row("gpu-freq", _ONE, "GPU_FREQ", ARGS),
    _row("gpus/G", _ONE, "GPUS", "gpus"),
    _row("gpus-per-node", _ONE, "GPUS_PER_NODE", "gpus"),
    _row("gpus-per-socket", _ONE, "GPUS_PER_SOCKET", "gpus"),
    _row("gpus-per-task", _ONE, "GPUS_PER_TASK", "gpus"),
    _row("gres", _ONE, "GRES", "gpus, gpu_type, batch.gres"),
    _row("gres-flags", _ONE, "GRES_FLAGS", ARGS),
    _dropped("help/h", _NO, "", _COMMAND),
    _row("hint", _ONE, "HINT", ARGS),
    _row("hold/H", _NO, "", "batch.hold"),
    _dropped("ignore-pbs", _NO, "IGNORE_PBS", "#PBS lines are never read here"),
    _dropped("input/i", _ONE, "INPUT", "a learner has no standard input; redirect it in the command"),
    _row("job-name/J", _ONE, "JOB_NAME", "name"),
    _dropped("kill-on-invalid-dep", _ONE, "", "the site's rule ends a job whose dependency can never come true"),
    _row("licenses/L", _ONE, "", ARGS),
    _row("mail-type", _ONE, "", "batch.notify.events"),
    _row("mail-user", _ONE, "", "batch.notify.mail"),
    _row("mcs-label", _ONE, "", ARGS),
    _row("mem", _ONE, "MEM_PER_NODE", "memory"),
    _row("mem-bind", _ONE, "MEM_BIND", ARGS),
    _row("mem-per-cpu", _ONE, "MEM_PER_CPU", "memory"),
    _row("mem-per-gpu", _ONE, "MEM_PER_GPU", "memory"),
    _dropped("mem-update", _ONE, "", "memory stays as asked for while the job runs"),
    _row("mincpus", _ONE, "", ARGS),
    _dropped("network", _ONE, "NETWORK", "it is about interconnects; batch.network of the manifest is about isolation"),
    _row("nice", _MAY, "", ARGS),
    _dropped("no-kill/k", _MAY, "NO_KILL", "a training whose node failed ends, and is retried as batch.retry says"),
    _row("no-requeue", _NO, "NO_REQUEUE", "batch.requeue"),
    _dropped("nodefile/F", _ONE, "", "the file is not read; name the nodes by --nodelist"),
    _row("nodelist/w", _ONE, "", "batch.nodelist"),
    _row("nodes/N", _ONE, "", "learners"),
    _row("ntasks/n", _ONE, "", "learners"),
    _dropped("ntasks-per-core", _ONE, "", _SOCKETS),
    _row("ntasks-per-gpu", _ONE, "", "cpus"),
    _row("ntasks-per-node", _ONE, "", "cpus"),
    _dropped("ntasks-per-socket", _ONE, "", _SOCKETS),
    _row("ntasks-per-tres", _ONE, "", "cpus"),
    _dropped("oom-kill-step", _MAY, "", "a learner that runs out of memory always ends its attempt"),
    _near("open-mode", _ONE, "OPEN_MODE", "", "output is always appended, so that a requeued job keeps what it said"),
    _near("output/o", _ONE, "OUTPUT", "batch.output", "the file gets the batch script's own; learners': ffdl logs"),
    _dropped("overcommit/O", _NO, "OVERCOMMIT", "a learner gets the CPUs that it asks for"),
    _row("oversubscribe/s", _NO, "", ARGS),
    _dropped("parsable", _NO, "", _COMMAND),
    _row("partition/p", _ONE, "PARTITION", "batch.partition"),
    _dropped("power", _ONE, "POWER", "sbatch of this release names it in its help and refuses it"),
    _row("prefer", _ONE, "", ARGS),
    _row("priority", _ONE, "", "batch.priority"),
    _row("profile", _ONE, "PROFILE", ARGS),
    _dropped(
        "propagate", _MAY, "", "limits of the submitting shell are never passed on: no training must depend on them"
    ),
    _row("qos/q", _ONE, "QOS", "batch.qos"),
    _dropped("quiet/Q", _NO, "", _COMMAND),
    _dropped("reboot", _NO, "", _ADMIN),
    _row("requeue", _MAY, "REQUEUE", "batch.requeue"),
    _row("reservation", _ONE, "RESERVATION", "batch.reservation"),
    _dropped("resources", _ONE, "", "ask for what nodes have by --gres"),
    _dropped("resv-ports", _MAY, "", _STEP),
    _dropped("segment", _ONE, "SEGMENT_SIZE", _TOPOLOGY),
    _near("signal", _ONE, "SIGNAL", "batch.signal", "it is handed to those processes of the learner that catch it"),
    _row("sockets-per-node", _ONE, "", ARGS),
    _row("spread-job", _NO, "SPREAD_JOB", ARGS),
    _dropped("spread-segments", _NO, "SPREAD_SEGMENTS", _TOPOLOGY),
    _dropped("stepmgr", _NO, "", _STEP),
    _row("switches", _ONE, "REQ_SWITCH WAIT4SWITCH", ARGS),
    _row("tasks-per-node", _ONE, "", "cpus"),
    _dropped("test-only", _NO, "", _COMMAND),
    _row("thread-spec", _ONE, "THREAD_SPEC", ARGS),
    _row("threads-per-core", _ONE, "THREADS_PER_CORE", ARGS),
    _row("time/t", _ONE, "TIMELIMIT", "batch.time"),
    _row("time-min", _ONE, "", ARGS),
    _row("tmp", _ONE, "", ARGS),
    _row("tres-bind", _ONE, "TRES_BIND", ARGS),
    _row("tres-per-task", _ONE, "TRES_PER_TASK", "cpus, gpus"),
    _dropped("uid", _ONE, "", _ADMIN),
    _dropped("usage", _NO, "", _COMMAND),
    _row("use-min-nodes", _NO, "USE_MIN_NODES", ARGS),
    _dropped("verbose/v", _NO, "DEBUG", _COMMAND),
    _dropped("version/V", _NO, "", _COMMAND),
    _dropped("wait/W", _NO, "WAIT", _COMMAND),
    _dropped("wait-all-nodes", _ONE, "WAIT_ALL_NODES", "the controllers wait for all nodes before a learner starts"),
    _row("wckey", _ONE, "WCKEY", ARGS),
    _dropped("wrap", _ONE, "", "the script is the command"),
)
BY_NAME = {row.name: row for row in TABLE}
BY_LETTER = {row.letter: row for row in TABLE if row.letter}
BY_VARIABLE = {variable: row for row in TABLE for variable in row.variables}
SYNONYMS = {"tasks-per-node": "ntasks-per-node", "no-requeue": "requeue", "cluster": "clusters"}
"""Options that say the same as another, by the other's name: the last one of them counts."""
