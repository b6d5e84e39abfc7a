"""Writes a manifest as a batch script, and compares the options of two scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ffdl_batch.domain.conversion import CannotConvert, Origin
from ffdl_batch.domain.job.spec import SITE_DEFAULT, JobSpec, Placement
from ffdl_batch.domain.quantity import parse_requested_time, parse_slurm_memory
from ffdl_batch.domain.sbatch.option_table import BY_NAME, Form
from ffdl_batch.domain.sbatch.script_options import SbatchOption, scheduling_options
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.slurm_steps import TAKES
from ffdl_slurm.convert.directives import Directives, Options, read_words
from ffdl_slurm.convert.output_variables import NO_IMAGE, NODES, OF_CPUS, OF_GPUS, OF_MEMORY, OPTION_OF, starts_steps
from ffdl_slurm.convert.task_layout import Layout, read_layout
from ffdl_slurm.sbatch_script import render_option

_MIB = 1024**2
_FROM_SHELL = re.compile(r"\$\{env:(\w+)\}", re.ASCII)
_DEFAULTS = {"nodes": "1", "ntasks": "1", "cpus-per-task": "1"}
"""The defaults of sbatch for a job with one task."""
_MASTER = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def write_script(spec: JobSpec, *, contained: bool) -> str:
    """Return the script. Raises CannotConvert for a job that no script can express."""
    try:
        lines = [render_option(option) for option in asked_for(spec)]
    except InvalidRequest as error:
        raise CannotConvert(str(error)) from None
    contained = contained and not starts_steps(spec) and spec.framework.version != NO_IMAGE
    return "\n".join(["#!/bin/bash", *lines, "", *exports_of(spec), *_commands(spec, contained), ""])


def exports_of(spec: JobSpec) -> list[str]:
    """Return the lines that export the variables that no option sets."""
    return [
        f"export {name}={shlex.quote(text)}"
        for name, text in spec.batch.env.items()
        if name not in OPTION_OF and name != NODES
    ]


def compare(before: Directives, after: Directives, name: str) -> tuple[str, ...]:
    """Return the options that differ. `name` is the file name of the first script, which sbatch uses as the default
    name of the job."""
    old = {name: one.value for name, one in before.given.items()}
    new = {name: one.value for name, one in after.given.items()}
    lines = []
    defaults = {**_DEFAULTS, "job-name": name}
    for option in [*old, *(option for option in new if option not in old)]:
        default = defaults.get(option)
        if _plain(option, old.get(option, default)) == _plain(option, new.get(option, default)):
            continue
        lines += [f"- {_shown(option, side[option])}" for side in (old,) if option in side]
        lines += [f"+ {_shown(option, side[option])}" for side in (new,) if option in side]
    return tuple(lines)


def _plain(name: str, value: str | None) -> object:
    """Return the same value for two spellings with the same meaning."""
    if value is None:
        return None
    row = BY_NAME.get(name)
    try:
        if row is not None and row.form is Form.DURATION:
            return parse_requested_time(value)
        if row is not None and row.form is Form.MEMORY:
            return parse_slurm_memory(value)
    except ValueError:
        return value
    return value


def _shown(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def asked_for(spec: JobSpec) -> list[SbatchOption]:
    """Return the options of the job. Raises CannotConvert for secrets that the submitting shell does not have."""
    pairs = {"job-name": spec.name, **_resources(spec)}
    options = [SbatchOption(name, value) for name, value in pairs.items() if value]
    options += scheduling_options(spec.batch)
    exported = _exported(spec.batch.secrets)
    return [*options, SbatchOption("export", exported)] if exported else options


def _exported(secrets: Mapping[str, str]) -> str:
    """Return the value of ``--export`` for secrets, which must be variables of the submitting shell."""
    names = []
    for name, text in secrets.items():
        match = _FROM_SHELL.fullmatch(text)
        if match is None:
            raise CannotConvert(f"batch.secrets.{name}: Slurm keeps no secrets", f"write ${{env:{name}}}")
        names.append(name)
    return ",".join(["ALL", *names]) if names else ""


def _resources(spec: JobSpec) -> dict[str, str]:
    """Return the options for the resources: those that the variables of Slurm in `batch.env` come from if they mean the
    resources of the manifest, else the simplest ones."""
    asked, batch = spec.resources, spec.batch
    found: dict[str, str] = {}
    if batch.placement is Placement.NODE:
        found["nodes"] = str(asked.learners)
    elif asked.learners > 1:
        found["ntasks"] = str(asked.learners)
    exported = {option: batch.env[variable] for variable, option in OPTION_OF.items() if variable in batch.env}
    if "ntasks-per-gpu" in exported or exported.get("ntasks") == _spread(exported, asked.learners):
        exported.pop("ntasks", None)
    exported = {name: f"{text}M" if name in OF_MEMORY else text for name, text in exported.items()}
    plain = {} if exported.keys() & OF_GPUS else {"gres": f"gpu:{asked.gpus:g}"}
    meant = _layout({**found, **exported, **plain}, batch.slurm_args)
    memory_mib = -(-asked.memory_bytes // _MIB) if spec.sources.get("memory") != SITE_DEFAULT else None
    by_gpus = exported.keys() & OF_GPUS and meant.gpus == asked.gpus
    by_cpus = exported.keys() & OF_CPUS and meant.cpus == asked.cpus
    by_memory = exported.keys() & OF_MEMORY and meant.memory_mib == memory_mib
    left_out = (frozenset() if by_gpus else OF_GPUS) | (frozenset() if by_cpus else OF_CPUS)
    left_out |= frozenset() if by_memory else OF_MEMORY
    found |= {name: text for name, text in exported.items() if name not in left_out}
    if not by_cpus:
        each = _cpus_per_task(spec, exported)
        found |= {"cpus-per-task": str(each)} if each > 1 else {}
    gres = {name: f"{count}" for name, count in asked.gres.items()}
    if not by_gpus and asked.gpus:
        gres = {":".join(filter(None, ("gpu", asked.gpu_type))): f"{asked.gpus:g}", **gres}
    if gres:
        found["gres"] = ",".join(f"{name}:{count}" for name, count in gres.items())
    if memory_mib is not None and not by_memory:
        found["mem"] = f"{memory_mib}M"
    return found


def _layout(options: Mapping[str, str], others: Sequence[str]) -> Layout:
    """Return the resources of each node that these options ask for."""
    words = [*(f"--{name}={value}" for name, value in options.items()), *others]
    return read_layout(Options({one.option.name: one for one in read_words(words, Origin.COMMAND)}))


def _spread(exported: Mapping[str, str], nodes: int) -> str:
    """Return the number of all tasks from ``--ntasks-per-node``; "" without that option."""
    each = exported.get("ntasks-per-node", "")
    return str(int(each) * nodes) if each.isdigit() else ""


def _cpus_per_task(spec: JobSpec, exported: Mapping[str, str]) -> int:
    tasks = int(exported.get("ntasks-per-node", 0)) or int(exported.get("ntasks-per-gpu", 0)) * int(spec.resources.gpus)
    if not tasks and exported.get("ntasks", "").isdigit():
        tasks = -(-int(exported["ntasks"]) // max(1, spec.resources.learners))
    return int(-(-spec.resources.cpus // max(1, tasks)))


def _commands(spec: JobSpec, contained: bool) -> list[str]:
    """Return the lines that run the command: once if the other learners only wait or the command starts its own tasks,
    else for each learner in one step."""
    command, count = spec.framework.command.rstrip(), spec.resources.learners
    busy = [one for one in spec.batch.roles.values() if not one.service and not one.command.startswith(f"{TAKES} ")]
    if len(busy) > 1 or (busy and busy[0].learners > 1):
        raise CannotConvert("its roles are several programs, and a step of srun is one", "write a script for each")
    container = _container(spec) if contained else ""
    wrapped = f"{container}bash -c {shlex.quote(command)}" if container else command
    if NODES in spec.batch.env and count > 1 and not spec.batch.roles:  # its srun starts tasks on all nodes
        return [_MASTER, wrapped]
    if count == 1 or busy or NODES in spec.batch.env:
        return [wrapped]
    step = f"srun --nodes={count} --ntasks={count} --ntasks-per-node=1 {container}bash -c {shlex.quote(command)}"
    return [_MASTER, step]


def _container(spec: JobSpec) -> str:
    gpus = "--nv " if spec.resources.gpus else ""
    return f"apptainer exec {gpus}{shlex.quote(spec.framework.version)} "
