"""sbatch's options that ``ffdl-submit`` does not take: each by name, with why or what to use instead.

The list is that of sbatch(1) and slurm_opt.c of Slurm 26.05. Nobody's option is silently ignored: a job that runs
without what was asked for is worse than one that is refused.
"""

from __future__ import annotations

IN_THE_MANIFEST = "it goes into the manifest, under batch: slurm: args:, as it stands here"
"""For the options that ffdl_batch.manifest hands to sbatch as they are (a test compares the lists)."""
_ONE_TASK = "each learner is one task with resources of its own; say how many with --learners"
_GPUS = "GPUs are counted per learner; use --gpus, --gres=gpu:N, or gpus: in the manifest"
_BINDING = "binding is left to the site's defaults; the learner's framework places its threads"
_TOPOLOGY = "the placement of learners is batch.placement in the manifest (node, pack, spread)"
_STEP = "it steers srun steps, and the controllers start the only step there is"
_SOCKETS = "ask for CPUs with --cpus-per-task, and for a kind of node with --constraint"
_CLUSTERS = "jobs go to the cluster that SLURM_CONF and SLURM_CLUSTERS name; set one of them in its place"
_BURST = "burst buffers are not used; name data under data_stores in the manifest"
_SITE = "it is the administrators' to set"
_CONTAINER = "the learner's image follows from framework: in the manifest and runs in Apptainer"

REFUSED: dict[str, str] = {
    "acctg-freq": IN_THE_MANIFEST,
    "autocomplete": "use: ffdl completion bash",
    "batch": "the batch script only starts the controllers, so its node does not matter; use --constraint",
    "bb": IN_THE_MANIFEST,
    "bbf": IN_THE_MANIFEST,
    "chdir": "a learner starts in its own job directory; relative paths of a manifest start where the manifest lies",
    "cluster": _CLUSTERS,
    "cluster-constraint": IN_THE_MANIFEST,
    "clusters": _CLUSTERS,
    "consolidate-segments": _TOPOLOGY,
    "container": _CONTAINER,
    "container-id": _CONTAINER,
    "container-type": _CONTAINER,
    "context": _SITE,
    "contiguous": IN_THE_MANIFEST,
    "core-spec": IN_THE_MANIFEST,
    "cores-per-socket": IN_THE_MANIFEST,
    "cpu-freq": IN_THE_MANIFEST,
    "cpus-per-gpu": "say the CPUs of each learner with --cpus-per-task",
    "deadline": IN_THE_MANIFEST,
    "delay-boot": IN_THE_MANIFEST,
    "distribution": IN_THE_MANIFEST,
    "error": "learners' output is kept line by line (ffdl logs); --output names the file of the batch script's own",
    "exclusive": IN_THE_MANIFEST,
    "export-file": "use --export=NAME=value,... or env: under batch: in the manifest",
    "external": "an external job runs nothing, and a training job must",
    "extra": _SITE,
    "extra-node-info": IN_THE_MANIFEST,
    "get-user-env": "a learner's environment is clean; use --export, or env: under batch: in the manifest",
    "gid": "jobs run under your primary group; use newgrp before you submit",
    "gpu-bind": IN_THE_MANIFEST,
    "gpu-freq": IN_THE_MANIFEST,
    "gpus-per-node": _GPUS,
    "gpus-per-socket": _GPUS,
    "gpus-per-task": _GPUS,
    "gres-flags": IN_THE_MANIFEST,
    "hint": IN_THE_MANIFEST,
    "ignore-pbs": "a manifest holds no #PBS lines",
    "input": "a learner has no standard input; name data under data_stores in the manifest",
    "kill-on-invalid-dep": "a job whose dependency can never come true is ended by the site's rule; see ffdl show",
    "licenses": IN_THE_MANIFEST,
    "mcs-label": IN_THE_MANIFEST,
    "mem-bind": IN_THE_MANIFEST,
    "mem-per-cpu": "use --mem, or memory: in the manifest (for each learner)",
    "mem-per-gpu": "use --mem, or memory: in the manifest (for each learner)",
    "mem-update": "memory stays as asked for while the job runs",
    "mincpus": IN_THE_MANIFEST,
    "nice": IN_THE_MANIFEST,
    "no-kill": "a training whose node failed ends, and is retried as batch.retry in the manifest says",
    "nodefile": "name the nodes with --nodelist",
    "nodes": "nodes follow from the learners: say how many with --learners",
    "ntasks": _ONE_TASK,
    "ntasks-per-core": _ONE_TASK,
    "ntasks-per-gpu": _ONE_TASK,
    "ntasks-per-node": _ONE_TASK,
    "ntasks-per-socket": _ONE_TASK,
    "ntasks-per-tres": _ONE_TASK,
    "oom-kill-step": "a learner that runs out of memory always ends its attempt, with code C202",
    "open-mode": "output is always appended: a requeued attempt must not overwrite what the first one said",
    "overcommit": "a learner gets the CPUs that it asks for; ask for fewer with --cpus-per-task",
    "oversubscribe": IN_THE_MANIFEST,
    "power": IN_THE_MANIFEST,
    "prefer": IN_THE_MANIFEST,
    "priority": _SITE + "; use --qos",
    "profile": IN_THE_MANIFEST,
    "propagate": "limits of your shell are never passed on: a training must not depend on them",
    "reboot": _SITE,
    "resources": "use --gres for what nodes have",
    "resv-ports": _STEP,
    "runtime": _CONTAINER,
    "segment": _TOPOLOGY,
    "sockets-per-node": IN_THE_MANIFEST,
    "spread-job": IN_THE_MANIFEST,
    "spread-segments": _TOPOLOGY,
    "stepmgr": _STEP,
    "switches": IN_THE_MANIFEST,
    "tasks-per-node": _ONE_TASK,
    "thread-spec": IN_THE_MANIFEST,
    "threads-per-core": IN_THE_MANIFEST,
    "time-min": IN_THE_MANIFEST,
    "tmp": IN_THE_MANIFEST,
    "tres-bind": IN_THE_MANIFEST,
    "tres-per-task": "use --cpus-per-task, --mem and --gpus",
    "uid": "jobs run as the user who submits them",
    "usage": "use --help",
    "use-min-nodes": IN_THE_MANIFEST,
    "wait-all-nodes": "the controllers wait for all nodes before a learner starts",
    "wckey": IN_THE_MANIFEST,
    "wrap": "the command is framework.command in the manifest",
}
REFUSED_LETTERS: dict[str, str] = {
    "B": "extra-node-info",
    "D": "chdir",
    "e": "error",
    "F": "nodefile",
    "i": "input",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "S": "core-spec",
    "s": "oversubscribe",
}


def explain_refusal(given: str) -> str | None:
    """The sentence for an option as it was given (``--nodes``, ``-N``); None where sbatch has no such option."""
    name = given.lstrip("-").partition("=")[0]
    if not given.startswith("--"):
        name = REFUSED_LETTERS.get(name[:1], "")
    sentence = REFUSED.get(name)
    if sentence is None:
        return None
    shown = f"--{name}" if given.startswith("--") else f"{given[:2]} (--{name})"
    return f"sbatch's {shown} is not taken: {sentence}"
