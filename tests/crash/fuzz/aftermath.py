"""What a real Slurm has, and had, of a world: the words of squeue and sacct, held against what attempts were marked as.

A single attempt is called by its token and a native array by its chunk's name: both are the name of a directory and a
number. A task is ``12_3``; those that wait, or were cancelled waiting, stand together as ``12_[0-3,7%2]`` or ``12``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ffdl_batch.attempt.element_files import chunks_of, tasks_of
from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.array import chunk_name, read_marks
from ffdl_batch.host.fast_dataclass import dataclass

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
Marks = Mapping[str, Sequence[tuple[str, str]]]
"""By the token of each attempt that Slurm may have heard of: the native arrays that it was sent in, and its tasks."""


@dataclass(frozen=True, slots=True)
class Line:
    """A job, a task or several tasks, as listed."""

    native: str
    name: str

    def as_task(self, task: str) -> str:
        """The id of task `task` of this array where the line is about it, else ""."""
        job, _, tasks = self.native.partition("_")
        return f"{job}_{task}" if not tasks or int(task) in _numbers(tasks) else ""


def read_lines(text: str, directories: Collection[str]) -> list[Line]:
    """``id|name`` lines, of the jobs and arrays that have these directories."""
    lines = [Line(*line.split("|", 1)) for line in text.splitlines() if "|" in line]
    return [line for line in lines if line.name.rpartition("-")[0] in directories]


def read_all_marks(jobs: Path) -> dict[str, list[tuple[str, str]]]:
    """The marks of all attempts below the directory of jobs, and of the tasks that have no directory yet."""
    found = {}
    for path in jobs.glob("training-*/attempt-[0-9]*/submit/begun"):
        attempt = path.parents[1]
        token = f"{attempt.parent.name}-{attempt.name.rpartition('-')[2]}"
        found[token] = [(str(chunk), task) for chunk, task in read_marks(path.read_text(encoding="utf-8"))]
    root = Root(str(jobs.parent))
    for place in Path(root.arrays).glob("array-*"):
        for number, chunk in chunks_of(root, place.name):
            for job, task in tasks_of(root, chunk).items():
                named = (chunk_name(place.name, number), task)
                marks = found.setdefault(f"{job}-1", [])
                marks += [named] if named not in marks else []
    return found


def sent_again(lines: Sequence[Line], marks: Marks) -> Iterator[str]:
    """A sentence for each attempt that Slurm had more than once."""
    for token, tasks in sorted(marks.items()):
        natives = {line.native for line in lines if line.name == token}
        for chunk, task in tasks:
            natives |= {line.as_task(task) for line in lines if line.name == chunk} - {""}
        if len(natives) > 1:
            yield f"{token}: Slurm had it as {' and '.join(sorted(natives))}"


def _numbers(tasks: str) -> set[int]:
    """``3`` or ``[0-3,7%2]``, written out."""
    return {
        number
        for first, last, step in _RANGE.findall(tasks.partition("%")[0])
        for number in range(int(first), int(last or first) + 1, int(step or 1))
    }
