"""Plan native job arrays: one script for equal attempts, a table of the tasks' attempts, and compact ids. Pure.

A task's number is its element's index where the site allows numbers so large (slurm.conf(5), MaxArraySize), so that
squeue shows the user's own numbers; else it is the task's place in the table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

from ffdl_batch.domain.job.array import join_indexes, number_chunk, parse_chunk_name
from ffdl_batch.domain.job.job import Token, is_token
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.sbatch.script_options import SbatchOption
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, LaunchPlan, PlannedFile
from ffdl_slurm.commands import sbatch_argv
from ffdl_slurm.sbatch_script import parse_options, render_option

_INDEX_PATTERN = re.compile(r"%%|%(\d*)a", re.ASCII)
_MAX_PADDING = 10


def plan_array(chunk: Chunk, members: Sequence[LaunchPlan]) -> ArrayPlan | None:
    """See :class:`ffdl_batch.ports.capabilities.SubmitsArrays`."""
    named = parse_chunk_name(chunk.token)
    assert named is not None  # the caller gave it this name
    numbers = [member.array_index for member in members]
    if numbers[-1] >= chunk.max_array_size:
        if _names_index(members[0].array_script):
            return None  # the user's own file names would hold other numbers than the elements'
        numbers = list(range(len(members)))
    if numbers[-1] >= chunk.max_array_size:
        return None
    limit = f"%{chunk.limit}" if chunk.limit is not None else ""
    array = render_option(SbatchOption("array", f"{join_indexes(numbers)}{limit}"))
    shebang, _, rest = number_chunk(members[0].array_script, *named).partition("\n")
    script = f"{shebang}\n{array}\n{rest}"
    table = "".join(f"{n} {member.attempt_dir.path}\n" for n, member in zip(numbers, members, strict=True))
    return ArrayPlan(
        chunk=chunk,
        files=(PlannedFile("tasks", table), PlannedFile("script.sh", script, 0o700)),
        tasks={member.token: str(n) for n, member in zip(numbers, members, strict=True)},
        script=script,
        submit_argv=tuple(sbatch_argv(chunk.directory.script)),
        umask=members[0].launch.umask,
    )


def read_table(text: str) -> Mapping[str, Token]:
    """Return the token of each task's attempt, from the table of a native array."""
    found: dict[str, Token] = {}
    for line in text.splitlines():
        task, _, directory = line.partition(" ")
        path = PurePosixPath(directory)
        token = f"{path.parent.name}-{path.name.removeprefix('attempt-')}"
        if is_token(token):
            found[task] = Token(token)
    return found


def fill_index(pattern: str, index: int) -> str:
    """Return sbatch's file name `pattern` with ``%a`` replaced, because sbatch writes 4294967294 for a job that is not
    a task of an array. A backslash disables all patterns (sbatch(1), "filename pattern")."""
    if "\\" in pattern:
        return pattern
    return _INDEX_PATTERN.sub(
        lambda match: match[0] if match[1] is None else str(index).zfill(min(int(match[1] or 0), _MAX_PADDING)), pattern
    )


def _names_index(script: str) -> bool:
    outputs = (option.value for option in parse_options(script) if option.name == "output")
    return any(value is not None and fill_index(value, 0) != value for value in outputs)


def job_arguments(ids: Collection[NativeId]) -> list[str]:
    """Return ids as scancel takes them, with the tasks of one array in one word: ``12_[0-3,7]``."""
    words = [str(native) for native in ids if native.task is None or not native.task.isdigit()]
    tasks: dict[str, list[int]] = {}
    for native in ids:
        if native.task is not None and native.task.isdigit():
            tasks.setdefault(native.job, []).append(int(native.task))
    for job, numbers in tasks.items():
        text = join_indexes(sorted(numbers))
        words.append(f"{job}_{text}" if text.isdigit() else f"{job}_[{text}]")
    return words
