"""Returns the options of a batch script for a job, and refuses values that sbatch does not accept. Pure."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from ffdl_batch.domain.job.spec import BatchOptions, JobSpec
from ffdl_batch.domain.launch.launch_file import TEMPLATE
from ffdl_batch.domain.sbatch.begin_time import EXAMPLES, read_absolute
from ffdl_batch.domain.sbatch.script_options import (
    NotPassed,
    SbatchOption,
    check_number,
    is_moment,
    path_of_arg,
    read_passed,
    scheduling_options,
)
from ffdl_batch.domain.sbatch.values import LONGEST_LEAD_S, split_signal
from ffdl_batch.runtimes.launch_request import LaunchRequest
from ffdl_batch.runtimes.learner_start import RequestRefused, refusal
from ffdl_slurm.native_array import fill_index
from ffdl_slurm.planning.request_check import NodeRequest
from ffdl_slurm.sbatch_script import escape_pattern
from ffdl_slurm.settings import SlurmSettings, with_defaults

_HIGHEST_PRIORITY = 0xFFFFFFFD
_NAME_PATTERN = re.compile(r"%%|%\d*x", re.ASCII)
_TRAINING_ID = re.compile(r"training-[0-9a-z]{9}", re.ASCII)


def batch_options(
    request: LaunchRequest, settings: SlurmSettings, node: NodeRequest, mark: str = "", *, as_array: bool = False
) -> list[SbatchOption]:
    """Return all options of the script, in a fixed order. Raises RequestRefused and InvalidRequest.

    The job of a template does not wait for dependencies, a begin time or a release: the job before it did. The comment
    begins with `mark`, which the prolog of the nodes reads. If the user gives no comment, it shows the name of the job,
    because the scheduler's name is the token. `as_array`: for the script of a native array, in which sbatch fills in
    the number of each task.
    """
    batch = _written_batch(request, settings, mark)
    _check(batch)
    pairs = {
        "job-name": request.token,
        "chdir": request.attempt_dir.path,
        "output": _output(request, as_array),
        "open-mode": "append",
        "nodes": str(node.gang.nodes),
        "ntasks": str(node.gang.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(node.load.cpus),
        "mem": f"{node.load.memory_mib}M",
        "gres": node.gres,
        # The user's limits on the login node say nothing about a compute node.
        "propagate": "NONE",
        # What is exported is the short list that sbatch itself is started with. NONE would make slurmd run a
        # login shell (sbatch(1), --get-user-env); NIL exists only since 22.05.
        "export": "ALL",
    }
    return [*(SbatchOption(name, value) for name, value in pairs.items() if value), *scheduling_options(batch)]


def _written_batch(request: LaunchRequest, settings: SlurmSettings, mark: str) -> BatchOptions:
    """Return the options of the job as they are written into its script."""
    batch, first = request.spec.batch, not is_template(request)
    return replace(
        with_defaults(batch, settings),
        dependency=batch.dependency if first else "",
        begin=batch.begin if first else "",
        hold=batch.hold and first,
        signal=_signal(request),
        comment=" ".join(filter(None, (mark, batch.comment or shown_name(request.spec)))),
        output="",
        array="",  # the script of a native array gets its own
        requeue=_requeue(batch, settings),
    )


def _requeue(batch: BatchOptions, settings: SlurmSettings) -> bool | None:
    """Return whether Slurm may requeue the job; None = the site decides. A job that continues in place must be
    requeueable, even if JobRequeue in slurm.conf is 0. A job that may release nodes must not be: its script needs all
    of them."""
    if may_shrink(batch):
        return False
    return True if continues_in_place(batch, settings) else batch.requeue


def _check(batch: BatchOptions) -> None:
    """Raise RequestRefused for values that sbatch does not accept."""
    unknown = _TRAINING_ID.search(batch.dependency)
    if unknown:  # the daemon has waited for the trainings that exist
        message = f"there is no training {unknown[0]} to depend on"
        raise RequestRefused([refusal("batch.dependency", message, "name a training of yours, or a job of Slurm")])
    if batch.begin:
        _check_time(batch.begin, "batch.begin", "begin")
    _check_priority(batch.priority)
    for number, arg in enumerate(batch.slurm_args):
        try:
            option = read_passed(arg)
            check_number(option)
        except NotPassed as error:
            raise RequestRefused([refusal(path_of_arg(number), error.message, error.cure)]) from None
        if is_moment(option):
            _check_time(option.value or "", path_of_arg(number), option.name)


def is_template(request: LaunchRequest) -> bool:
    """Return whether the request is for the template of later attempts."""
    return request.token.endswith(f"-{TEMPLATE}")


def continues_in_place(batch: BatchOptions, settings: SlurmSettings) -> bool:
    """Return whether the job is requeued at its time limit: the site has it so, and the job does not forbid it."""
    return settings.continue_in_place and batch.requeue is not False and not may_shrink(batch)


def may_shrink(batch: BatchOptions) -> bool:
    """Return whether the running job may release nodes."""
    return batch.elasticity is not None and batch.elasticity.in_place


def shown_name(spec: JobSpec) -> str:
    """Return the user's name of the job, or of its array."""
    return spec.element.name if spec.element is not None else spec.name


def fill_name(pattern: str, name: str) -> str:
    """Return sbatch's file name `pattern` with ``%x`` replaced by the user's name, as sbatch would with --job-name.

    A slash in the name becomes an underscore. A backslash disables all patterns (sbatch(1), "filename pattern").
    """
    if "\\" in pattern or "\\" in name:
        return pattern
    literal = name.replace("/", "_").replace("%", "%%")
    return _NAME_PATTERN.sub(lambda match: match[0] if match[0] == "%%" else literal, pattern)


def _output(request: LaunchRequest, as_array: bool) -> str:
    asked, element = fill_name(request.spec.batch.output, shown_name(request.spec)), request.spec.element
    if element is not None and not as_array:
        asked = fill_index(asked, element.index)
    if not asked:
        return escape_pattern(request.attempt_dir.batch_log, "the job's directory")
    if os.path.isabs(asked):  # noqa: PTH117 - pure
        return asked
    # Relative to the directory of the manifest; for sbatch, to the working directory.
    base = escape_pattern(request.spec.base_dir or "/", "the manifest's directory")
    return os.path.join(base, asked)  # noqa: PTH118 - pure


def _check_time(text: str, path: str, option: str) -> None:
    """Refuse a time that the submission has not made absolute."""
    if read_absolute(text) is None:
        message = f"{text[:60]!r} is not a time that sbatch --{option} accepts"
        raise RequestRefused([refusal(path, message, f"write {EXAMPLES}")])


def _check_priority(text: str) -> None:
    is_number = text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _HIGHEST_PRIORITY
    if text and text.upper() != "TOP" and not is_number:
        message = f"{text!r} is not a priority of Slurm; give a number or TOP"
        raise RequestRefused([refusal("batch.priority", message)])


def _signal(request: LaunchRequest) -> str:
    """Return the user's --signal, or the warning, which is a signal that a process ignores by default."""
    batch = request.spec.batch
    if batch.signal:
        if not _is_signal(batch.signal):
            message = f"{batch.signal!r} is not [R|B:]signal[@seconds]; write for example USR1@120"
            raise RequestRefused([refusal("batch.signal", message)])
        return batch.signal
    lead_s = effective_lead_s(request)
    return f"URG@{lead_s}" if lead_s is not None else ""


def _is_signal(text: str) -> bool:
    try:
        return split_signal(text)[1] <= LONGEST_LEAD_S
    except ValueError:
        return False


def effective_lead_s(request: LaunchRequest) -> int | None:
    """Return the seconds before the time limit at which Slurm signals the job; None if it does not.

    A job has one signal, and that of the user wins.
    """
    if request.spec.batch.signal or request.lead_s is None:
        return None
    return min(request.lead_s, LONGEST_LEAD_S)
