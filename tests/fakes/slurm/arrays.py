"""Job arrays of the fake Slurm: each task has a record and a number of its own; the array's id is none of them.

A record of a task has `array`, `task` and `limit` (how many of its array run at once, 0 = all). `split`: it is a job of
its own, because it started, or was changed. As in Slurm, a task that is not is gone without a trace when it is
cancelled; the last of them leave a record under the array's own id.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

TYPE_CHECKING = False  # see the package's docstring
if TYPE_CHECKING:
    from typing import Any


def read_tasks(text: str) -> tuple[list[int], int]:
    """The tasks of ``0-3,7:2%4``, and how many may run at once (0 = all); none for ""."""
    indexes, _, limit = text.partition("%")
    found: list[int] = []
    for part in indexes.split(",") if indexes else []:
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        assert match is not None, f"sbatch: error: Invalid job array specification {text!r}"
        found += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    return found, int(limit or 0)


def number(record: dict[str, Any]) -> str:
    """By what squeue and sacct list a record."""
    return f"{record['array']}_{record['task']}" if record.get("array") else str(record["id"])


def resolve(jobs: Path, word: str) -> list[str]:
    """The ids of the records that ``12``, ``12_3`` or ``12_[0-3]`` names."""
    job, _, tasks = word.partition("_")
    table = jobs / f"{job}.tasks"
    if not table.exists():
        return [] if tasks else [job]
    known: dict[str, str] = json.loads(table.read_text())
    wanted = [str(task) for task in read_tasks(tasks.strip("[]"))[0]] if tasks else list(known)
    return [known[task] for task in wanted if task in known]


def is_waiting(record: dict[str, Any], array: str) -> bool:
    """Whether it is a task in the list of `array`, and no job of its own."""
    return record.get("array") == array and record["state"] == "PENDING" and not record.get("split")


def is_full(record: dict[str, Any], records: list[dict[str, Any]]) -> bool:
    """Whether as many tasks of the record's array run as may."""
    own = [other for other in records if other.get("array") == record.get("array") and other["id"] != record["id"]]
    running = sum(other["state"] == "RUNNING" for other in own)
    return bool(record.get("limit")) and running >= record["limit"]
