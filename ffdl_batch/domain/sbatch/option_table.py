"""The options of sbatch, one row each: spelling, variables, manifest key, form, and why an option is refused.

The command line, the manifest, the planner, the converter and the exporter of Slurm read this table. A new option is a
new row. Names, letters and kinds of arguments are those of sbatch 26.05 (``sbatch --autocomplete=--``, ``--help``);
variables are those of sbatch(1), INPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

from enum import Enum

from ffdl_batch.host.fast_dataclass import dataclass

ARGS = "batch.slurm.args"
"""The manifest key of options that are passed to sbatch unchanged."""


class Takes(Enum):
    """Whether an option has an argument."""

    NONE = "none"
    NEEDED = "needed"
    OPTIONAL = "optional"
    """Only after ``=``, or directly after the letter."""


class Form(Enum):
    """What the argument of an option is."""

    TEXT = "text"
    NUMBER = "whole number from 0"
    COUNT = "whole number from 1"
    DURATION = "minutes, or [days-]hours:minutes:seconds"
    MOMENT = "time, as 16:00 or now+1hour"
    MEMORY = "MiB, or a number with K, M, G or T"


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option of sbatch."""

    names: str
    """The long name, and after a slash the letter, if it has one."""
    key: str = ""
    """The manifest key that holds the value; "" if no key does."""
    input_variables: str = ""
    """Variables that sbatch reads, without ``SBATCH_``. The last one that is set wins."""
    takes: Takes = Takes.NEEDED
    form: Form = Form.TEXT
    pattern: str = ""
    """The regular expression of accepted arguments, if `form` does not say enough."""
    field: str = ""
    """The attribute of ``BatchOptions`` that is written into a script as it is; "" if none is."""
    flag: bool = True
    """The value that an option without argument gives to its key."""
    repeats: bool = False
    """Whether ``ffdl-submit`` takes the option several times, with the events of all; see ``values.joined``."""
    synonym_of: str = ""
    """The option with the same meaning. The last one of both wins."""
    exported: bool = False
    """Whether sbatch sets the variable ``SLURM_<NAME>`` of the job to the argument."""
    of_gpus: bool = False
    """Whether the option is about GPUs, or asks for whole nodes with their GPUs."""
    refused: str = ""
    """Why ``ffdl-submit`` does not take the option, and what to use instead."""
    differs: str = ""
    """What differs if ``ffdl convert`` converts the option."""
    metavar: str = ""
    help: str = ""
    """The text of ``ffdl-submit --help``."""

    @property
    def name(self) -> str:
        """The long name without dashes."""
        return self.names.partition("/")[0]

    @property
    def letter(self) -> str:
        """The letter; "" if there is none."""
        return self.names.partition("/")[2]

    @property
    def variables(self) -> tuple[str, ...]:
        """The input variables."""
        names = self.input_variables.split()
        return tuple(name if name.startswith("SLURM_") else f"SBATCH_{name}" for name in names)

    @property
    def is_passed(self) -> bool:
        """Whether `batch.slurm.args` passes the option to sbatch."""
        return self.key == ARGS

    @property
    def refusal(self) -> str:
        """Why ``ffdl-submit`` refuses the option; "" if it takes it."""
        if self.is_passed and not self.help:
            return "write it as it is into batch.slurm.args in the manifest"
        return self.refused


_NO, _MAY = Takes.NONE, Takes.OPTIONAL
_NUMBER, _COUNT = Form.NUMBER, Form.COUNT
_DURATION, _MOMENT, _MEMORY = Form.DURATION, Form.MOMENT, Form.MEMORY
_TIME = r"-1|infinite|unlimited|(?:\d{1,9}-)?\d{1,9}(?::\d{1,9}){0,2}"
PATTERNS = {
    Form.NUMBER: r"\d{1,9}",
    Form.COUNT: r"0*[1-9]\d{0,8}",
    Form.DURATION: _TIME,
    Form.MEMORY: r"\d{1,12}(?:[kmgt]b?)?",
}
"""What sbatch accepts (parse_int and str_to_mbytes of src/common/proc_args.c, time_str2secs of parse_time.c); case does
not matter."""
_FREQUENCY = r"\d{1,9}|(?:(?:task|energy|network|filesystem)=\d{1,9}(?:,(?=.)|$))+"
_RANGE = r"(?:\*|\d{1,9}(?:-\d{1,9})?)"
_NODE_INFO = rf"{_RANGE}(?::{_RANGE}){{0,2}}"
_SWITCHES = rf"{PATTERNS[Form.COUNT]}(?:@(?:{_TIME}))?"
_EXCLUSIVE = "user|mcs|topo|exclusive|allocation|oversubscribe"
_NICE = r"[+-]?\d{1,9}"
_ADMIN = "only administrators may set it"
_CLUSTER = "jobs go to the cluster that SLURM_CONF and SLURM_CLUSTERS name; set one of them"
_CONTAINER = "learners run in the image that framework: in the manifest names"
_GPUS = "GPUs are counted per learner; use --gpus, --gres=gpu:N, or gpus: in the manifest"
_MEMORY_OF_LEARNER = "memory is counted per learner; use --mem, or memory: in the manifest"
_STEP = "it is about srun steps, and the controllers start the only step of a job"
_TASK = "each learner is one task with resources of its own; use --learners"
_Row = OptionRow

# Options of ffdl-submit that set manifest keys, in the order in which they are written into scripts.
_TAKEN = (
    _Row("time/t", "batch.time", "TIMELIMIT", form=_DURATION, field="time_s", metavar="TIME",
         help="Time limit: minutes, [days-]hours:minutes:seconds, 2h30m, or UNLIMITED."),
    _Row("partition/p", "batch.partition", "PARTITION", field="partition", metavar="NAMES",
         help="Partition, or several separated by commas."),
    _Row("account/A", "batch.account", "ACCOUNT", field="account", metavar="NAME", help="Account to charge."),
    _Row("qos/q", "batch.qos", "QOS", field="qos", metavar="NAME", help="Quality of service."),
    _Row("constraint/C", "batch.constraint", "CONSTRAINT", field="constraint", metavar="LIST",
         help="Features that the nodes must have."),
    _Row("reservation", "batch.reservation", "RESERVATION", field="reservation", metavar="NAMES",
         help="Reservation to run in."),
    _Row("nodelist/w", "batch.nodelist", field="nodelist", metavar="NODES", help="Nodes that the job must have."),
    _Row("exclude/x", "batch.exclude", field="exclude", metavar="NODES", help="Nodes that the job must not have."),
    _Row("gres", "gpus, gpu_type, batch.gres", "GRES", metavar="LIST",
         help="Generic resources of each learner, as gpu:a100:2."),
    _Row("gpus/G", "gpus", "GPUS", exported=True, metavar="[TYPE:]N", help="GPUs of each learner."),
    _Row("cpus-per-task/c", "cpus", form=_COUNT, exported=True, metavar="N", help="CPUs of each learner."),
    _Row("mem", "memory", "MEM_PER_NODE", form=_MEMORY, metavar="SIZE",
         help="Memory of each learner: MiB, or a number with K, M, G, T (powers of 1024); 0 is all of its node."),
    _Row("array/a", "batch.array", "ARRAY_INX", field="array", metavar="INDEXES",
         help="One job per index, as 0-9, 1,3,5 or 0-99%10; of a sweep, these elements."),
    _Row("job-name/J", "name", "JOB_NAME", metavar="NAME", help="Name of the job; the manifest's name without it."),
    _Row("dependency/d", "batch.dependency", field="dependency", metavar="LIST",
         help="Jobs to wait for, as afterok:training-0a1b2c3d4."),
    _Row("begin/b", "batch.begin", form=_MOMENT, field="begin", metavar="TIME",
         help="Earliest start, as 16:00, now+1hour or 2027-01-20T12:34."),
    _Row("priority", "batch.priority", field="priority", metavar="VALUE",
         help="Priority: a number, or TOP. Slurm reserves it for administrators."),
    _Row("signal", "batch.signal", "SIGNAL", field="signal", metavar="SIG[@SECONDS]",
         help="Signal to the learners so long before the time limit.",
         differs="only processes of the learner that catch the signal get it"),
    _Row("mail-user", "batch.notify.mail", field="notify.mail_user", metavar="ADDRESS",
         help="Address that gets the mail."),
    _Row("mail-type", "batch.notify.events", field="notify.events", repeats=True, metavar="TYPES",
         help="Events to mail about: BEGIN, END, FAIL, REQUEUE, ALL, ..."),
    _Row("comment", "batch.comment", field="comment", metavar="TEXT", help="A comment that the scheduler keeps."),
    _Row("output/o", "batch.output", "OUTPUT", field="output", metavar="FILE",
         help="File for the batch script's own output; %j and friends as in sbatch.",
         differs="the file gets the output of the batch script; ffdl logs has the learners' output"),
    _Row("hold/H", "batch.hold", "", _NO, field="hold", help="Submit in held state."),
    _Row("no-requeue", "batch.requeue", "NO_REQUEUE", _NO, field="requeue", flag=False, synonym_of="requeue",
         help="Never let the scheduler start the job again."),
    _Row("requeue", "batch.requeue", "REQUEUE", _MAY, field="requeue", metavar="[expedite]",
         help="Let the scheduler start the job again after a node failure or preemption; with =expedite, at once."),
)  # fmt: skip

# Options of ffdl-submit that steer the command itself.
_OF_COMMAND = (
    _Row("export", "batch.env", "EXPORT", differs="learners get only the variables that the manifest names"),
    _Row("help/h", takes=_NO),
    _Row("parsable", takes=_NO),
    _Row("quiet/Q", takes=_NO),
    _Row("test-only", takes=_NO),
    _Row("verbose/v", "", "DEBUG", _NO),
    _Row("version/V", takes=_NO),
    _Row("wait/W", "", "WAIT", _NO),
    _Row("wrap"),
)  # fmt: skip

# Options that batch.slurm.args passes to sbatch.
_PASSED = (
    _Row("acctg-freq", ARGS, "ACCTG_FREQ", pattern=_FREQUENCY),
    _Row("bb", ARGS, "BURST_BUFFER"),
    _Row("bbf", ARGS),
    _Row("cluster-constraint", ARGS, "CLUSTER_CONSTRAINT"),
    _Row("consolidate-segments", ARGS, "CONSOLIDATE_SEGMENTS", _NO),
    _Row("contiguous", ARGS, "", _NO),
    _Row("core-spec/S", ARGS, "CORE_SPEC", form=_NUMBER),
    _Row("cores-per-socket", ARGS, form=_COUNT),
    _Row("cpu-freq", ARGS, "CPU_FREQ_REQ"),
    _Row("deadline", ARGS, form=_MOMENT),
    _Row("delay-boot", ARGS, "DELAY_BOOT", form=_DURATION),
    _Row("distribution/m", ARGS, "DISTRIBUTION"),
    _Row("exclusive", ARGS, "EXCLUSIVE", _MAY, of_gpus=True, pattern=_EXCLUSIVE, metavar="[KIND]",
         help="Share the nodes with no other job; with =user, =mcs or =topo, as sbatch means them."),
    _Row("extra-node-info/B", ARGS, pattern=_NODE_INFO),
    _Row("gpu-bind", ARGS, "GPU_BIND", of_gpus=True),
    _Row("gpu-freq", ARGS, "GPU_FREQ", of_gpus=True),
    _Row("gres-flags", ARGS, "GRES_FLAGS"),
    _Row("hint", ARGS, "HINT SLURM_HINT"),
    _Row("licenses/L", ARGS),
    _Row("mcs-label", ARGS),
    _Row("mem-bind", ARGS, "MEM_BIND"),
    _Row("mincpus", ARGS, form=_COUNT),
    _Row("nice", ARGS, "", _MAY, pattern=_NICE, metavar="[N]", help="Lower the priority by N, or by 100."),
    _Row("oversubscribe/s", ARGS, "", _NO),
    _Row("prefer", ARGS),
    _Row("profile", ARGS, "PROFILE"),
    _Row("segment", ARGS, "SEGMENT_SIZE", form=_COUNT, metavar="N",
         help="Nodes of each segment of the allocation, if the topology has blocks or rings."),
    _Row("sockets-per-node", ARGS, form=_COUNT),
    _Row("spread-job", ARGS, "SPREAD_JOB", _NO),
    _Row("spread-segments", ARGS, "SPREAD_SEGMENTS", _NO),
    _Row("switches", ARGS, "REQ_SWITCH WAIT4SWITCH", pattern=_SWITCHES),
    _Row("thread-spec", ARGS, "THREAD_SPEC", form=_COUNT),
    _Row("threads-per-core", ARGS, "THREADS_PER_CORE", form=_COUNT),
    _Row("time-min", ARGS, form=_DURATION),
    _Row("tmp", ARGS, form=_MEMORY),
    _Row("tres-bind", ARGS, "TRES_BIND", of_gpus=True),
    _Row("use-min-nodes", ARGS, "USE_MIN_NODES", _NO),
    _Row("wckey", ARGS, "WCKEY"),
)  # fmt: skip

# Options that ffdl-submit refuses. Those with a key or with `differs` can be converted.
_REFUSED = (
    _Row("autocomplete", refused="use: ffdl completion bash"),
    _Row("batch", "", "BATCH",
         refused="the batch script only starts the controllers, so its node does not matter; use --constraint"),
    _Row("chdir/D", refused="learners start in the job directory; relative paths in a manifest start at the manifest",
         differs="the command starts in its copy of the model: give that directory as the model"),
    _Row("cluster", synonym_of="clusters", refused=_CLUSTER),
    _Row("clusters/M", "", "CLUSTERS", refused=_CLUSTER),
    _Row("container", "", "CONTAINER", refused=_CONTAINER),
    _Row("container-id", "", "CONTAINER_ID", refused=_CONTAINER),
    _Row("container-type", "", "CONTAINER_TYPE", refused=_CONTAINER),
    _Row("context", refused=_ADMIN),
    _Row("cpus-per-gpu", "cpus", "CPUS_PER_GPU", form=_COUNT, exported=True,
         refused="CPUs are counted per learner; use --cpus-per-task"),
    _Row("error/e", "", "ERROR",
         refused="ffdl logs has the output of the learners; --output names the file of the batch script's own",
         differs="the learner's log has standard error and standard output: ffdl logs"),
    _Row("export-file", refused="use --export=NAME=value,... or batch.env in the manifest"),
    _Row("external", takes=_NO, refused="an external job runs no command"),
    _Row("extra", refused=_ADMIN),
    _Row("get-user-env", "", "GET_USER_ENV", _NO,
         refused="learners start with a clean environment; use --export, or batch.env in the manifest"),
    _Row("gid", refused="jobs run under your primary group; use newgrp before you submit"),
    _Row("gpus-per-node", "gpus", "GPUS_PER_NODE", exported=True, refused=_GPUS),
    _Row("gpus-per-socket", "gpus", "GPUS_PER_SOCKET", exported=True, refused=_GPUS),
    _Row("gpus-per-task", "gpus", "GPUS_PER_TASK", exported=True, refused=_GPUS),
    _Row("ignore-pbs", "", "IGNORE_PBS", _NO, refused="#PBS lines are never read"),
    _Row("input/i", "", "INPUT",
         refused="learners have no standard input; name data under data_stores in the manifest"),
    _Row("kill-on-invalid-dep", refused="the site decides what happens to a job whose dependency cannot be satisfied"),
    _Row("mem-per-cpu", "memory", "MEM_PER_CPU", form=_MEMORY, exported=True, refused=_MEMORY_OF_LEARNER),
    _Row("mem-per-gpu", "memory", "MEM_PER_GPU", form=_MEMORY, exported=True, refused=_MEMORY_OF_LEARNER),
    _Row("mem-update", refused="the memory of a job does not change while it runs"),
    _Row("network", "", "NETWORK", refused="Slurm's --network is about interconnects, batch.network about isolation"),
    _Row("no-kill/k", "", "NO_KILL", _MAY,
         refused="a job whose node failed ends; batch.retry in the manifest decides whether it continues"),
    _Row("nodefile/F", refused="the file is not read; use --nodelist"),
    _Row("nodes/N", "learners", refused="the number of nodes follows from the learners; use --learners"),
    _Row("ntasks/n", "learners", form=_COUNT, exported=True, refused=_TASK),
    _Row("ntasks-per-core", form=_COUNT, exported=True, refused=_TASK),
    _Row("ntasks-per-gpu", "cpus", form=_COUNT, exported=True, refused=_TASK),
    _Row("ntasks-per-node", "cpus", form=_COUNT, exported=True, refused=_TASK),
    _Row("ntasks-per-socket", form=_COUNT, exported=True, refused=_TASK),
    _Row("ntasks-per-tres", "cpus", refused=_TASK),
    _Row("oom-kill-step", takes=_MAY,
         refused="a learner that runs out of memory always ends its attempt, with code C202"),
    _Row("open-mode", "", "OPEN_MODE", refused="output is always appended",
         differs="output is always appended, so that a requeued job keeps its output"),
    _Row("overcommit/O", "", "OVERCOMMIT", _NO,
         refused="a learner gets the CPUs that it asks for; ask for fewer with --cpus-per-task"),
    _Row("power", "", "POWER", refused="sbatch 26.05 lists it in its help and refuses it"),
    _Row("propagate", takes=_MAY, refused="limits of your shell are never passed on to learners"),
    _Row("reboot", takes=_NO, refused=_ADMIN),
    _Row("resources", refused="use --gres"),
    _Row("resv-ports", takes=_MAY, refused=_STEP),
    _Row("stepmgr", takes=_NO, refused=_STEP),
    _Row("tasks-per-node", "cpus", form=_COUNT, synonym_of="ntasks-per-node", refused=_TASK),
    _Row("tres-per-task", "cpus, gpus", "TRES_PER_TASK", exported=True,
         refused="use --cpus-per-task, --mem and --gpus"),
    _Row("uid", refused="jobs run as the user who submits them"),
    _Row("usage", takes=_NO, refused="use --help"),
    _Row("wait-all-nodes", "", "WAIT_ALL_NODES", refused="the controllers wait for all nodes before a learner starts"),
)  # fmt: skip

TABLE = (*_TAKEN, *_OF_COMMAND, *_PASSED, *_REFUSED)
BY_NAME = {row.name: row for row in TABLE}
BY_LETTER = {row.letter: row for row in TABLE if row.letter}
BY_VARIABLE = {variable: row for row in TABLE for variable in row.variables}
