"""Options from the environment: sbatch's input variables, and FFDL_<OPTION>.

They rank below the manifest (``Submission.environment_options``). Which SBATCH_* variables there are, and that a
flag's variable counts when it is empty, ``yes`` or a number other than zero: sbatch(1), INPUT ENVIRONMENT VARIABLES,
and opt.c of Slurm 26.05. FFDL_<OPTION> wins over SBATCH_<OPTION>.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from ffdl_batch.cli.options.job_options import FLAGS, JOB_OPTIONS
from ffdl_batch.cli.options.refused_sbatch_options import REFUSED

TAKEN: dict[str, str] = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GRES": "gres",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OUTPUT": "output",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
}
FOR_THE_COMMAND = ("SBATCH_DEBUG", "SBATCH_EXPORT", "SBATCH_WAIT")
NOT_TAKEN: dict[str, str] = {
    "SBATCH_ACCTG_FREQ": "acctg-freq",
    "SBATCH_BATCH": "batch",
    "SBATCH_BURST_BUFFER": "bb",
    "SBATCH_CLUSTER_CONSTRAINT": "cluster-constraint",
    "SBATCH_CONSOLIDATE_SEGMENTS": "consolidate-segments",
    "SBATCH_CONTAINER": "container",
    "SBATCH_CONTAINER_ID": "container-id",
    "SBATCH_CONTAINER_TYPE": "container-type",
    "SBATCH_CORE_SPEC": "core-spec",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_DELAY_BOOT": "delay-boot",
    "SBATCH_DISTRIBUTION": "distribution",
    "SBATCH_ERROR": "error",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_GET_USER_ENV": "get-user-env",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_SOCKET": "gpus-per-socket",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GPU_BIND": "gpu-bind",
    "SBATCH_GPU_FREQ": "gpu-freq",
    "SBATCH_GRES_FLAGS": "gres-flags",
    "SBATCH_HINT": "hint",
    "SBATCH_IGNORE_PBS": "ignore-pbs",
    "SBATCH_INPUT": "input",
    "SBATCH_MEM_BIND": "mem-bind",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_NO_KILL": "no-kill",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OVERCOMMIT": "overcommit",
    "SBATCH_POWER": "power",
    "SBATCH_PROFILE": "profile",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_RUNTIME": "runtime",
    "SBATCH_SEGMENT_SIZE": "segment",
    "SBATCH_SPREAD_JOB": "spread-job",
    "SBATCH_SPREAD_SEGMENTS": "spread-segments",
    "SBATCH_THREADS_PER_CORE": "threads-per-core",
    "SBATCH_THREAD_SPEC": "thread-spec",
    "SBATCH_TRES_BIND": "tres-bind",
    "SBATCH_TRES_PER_TASK": "tres-per-task",
    "SBATCH_USE_MIN_NODES": "use-min-nodes",
    "SBATCH_WAIT4SWITCH": "switches",
    "SBATCH_WAIT_ALL_NODES": "wait-all-nodes",
    "SBATCH_WCKEY": "wckey",
    "SLURM_HINT": "hint",
}
EXPLAINED: dict[str, str] = {
    "SBATCH_NETWORK": "Slurm's --network is about interconnects, ours about isolation",
    "SLURM_EXIT_ERROR": "the exit codes of ffdl-submit do not change",
    "SLURM_UMASK": "set the umask of the shell",
}
"""Further variables of sbatch that are not taken, and why."""
CLUSTERS, SBATCH_CLUSTERS = "SLURM_CLUSTERS", "SBATCH_CLUSTERS"


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """Options by name, and warnings about variables that sbatch would have obeyed and we do not."""

    options: Mapping[str, str]
    warnings: tuple[str, ...]


def read_environment(environ: Mapping[str, str]) -> FromEnvironment:
    """The job's options that the environment holds. Raises UsageError for a cluster that sbatch would choose."""
    if environ.get(SBATCH_CLUSTERS) and not environ.get(CLUSTERS):  # which wins over it
        raise click.UsageError(f"{SBATCH_CLUSTERS}={environ[SBATCH_CLUSTERS]}: {REFUSED['clusters']}")
    options: dict[str, str] = {}
    for variable, name in TAKEN.items():
        _take(options, name, environ.get(variable))
    for option in JOB_OPTIONS:
        _take(options, option.name, environ.get(f"FFDL_{option.name.upper().replace('-', '_')}"))
    warnings = [f"{v} is ignored: {REFUSED[name]}" for v, name in sorted(NOT_TAKEN.items()) if v in environ]
    warnings += [f"{v} is ignored: {why}" for v, why in EXPLAINED.items() if v in environ]
    return FromEnvironment(options, tuple(warnings))


def is_flag_set(value: str | None) -> bool:
    """Whether a flag's variable counts: empty, ``yes``, or a number other than zero."""
    if value is None:
        return False
    return value in ("", "yes") or (value.lstrip("-").isdigit() and int(value) != 0)


def absolute_output(pattern: str) -> str:
    """``--output`` counts from where the command is given, as in sbatch; the daemon stands elsewhere. Raises UsageError
    where it is another machine's, on which there is no such place."""
    if not pattern or pattern.startswith("/"):
        return pattern
    from ffdl_batch.cli.connection import find_elsewhere

    if (place := find_elsewhere()) is not None:
        raise click.UsageError(f"--output {pattern}: it is written on {place.host}; name an absolute path there")
    return os.path.join(Path.cwd(), pattern)  # noqa: PTH118


def _take(options: dict[str, str], name: str, value: str | None) -> None:
    if value is None:
        return
    if name in FLAGS:
        if is_flag_set(value):
            options[name] = ""
            options.pop({"requeue": "no-requeue", "no-requeue": "requeue"}.get(name, ""), None)
    elif value:
        options[name] = absolute_output(value) if name == "output" else value
