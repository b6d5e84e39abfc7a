"""What squeue says of all that waits and runs (`live_argv` of waiting_commands), as typed values. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.domain.quantity import parse_time_limit
from ffdl_slurm.commands import SEPARATOR
from ffdl_slurm.observing.job_states import interpret_state
from ffdl_slurm.observing.parsers import Garbled, check_last_line, may_be_row, parse_time
from ffdl_slurm.output_text import begin
from ffdl_slurm.pending.commands import LIVE_FIELDS
from ffdl_slurm.pending.gpus import gpus_of
from ffdl_slurm.pending.parsers import absent

_COLUMNS = len(LIVE_FIELDS) + 1
_BEGINS, _FEW = re.compile(r"\d+(?:[_+]\S*)?\|", re.ASCII), 3
"""A row begins with a job's id; a line that does not, and has so few separators, is more of a name."""
_HAS_NODES, _PREPARED = frozenset({"CONFIGURING", "POWER_UP_NODE"}), "Prolog"
"""States of a job whose nodes are being prepared, for which Slurm gives no reason, and the one that fits."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job that waits or runs. `number` is its id, or its array's, and `tasks` which elements it is, as they are
    printed ("" = none); `elements` is how many. `gpus` is what one asks for or has, of `gpu_types` ("" = of any)."""

    number: str
    tasks: str
    pending: bool
    partitions: tuple[str, ...]
    priority: int
    user: str
    reason: str
    start: float | None
    end: float | None
    nodes: int
    limit_s: int | None
    qos: str
    account: str
    reservation: str
    dependency: str
    submitted: float | None
    gpus: int
    gpu_types: tuple[str, ...]
    licenses: str
    elements: int = 1

    def is_job(self, native: NativeId) -> bool:
        """Whether it is this job, or this one is among its elements."""
        if self.number != native.job or bool(self.tasks) != (native.task is not None):
            return False
        return native.task is None or any(int(native.task) in one for one in _ranges(self.tasks))


@dataclass(frozen=True, slots=True)
class Live:
    """All jobs, but for rows that cannot be read: `unread` says of each how it begins."""

    jobs: tuple[LiveJob, ...]
    unread: tuple[str, ...] = ()


def parse_live(text: str) -> Live:
    """The answer to :func:`ffdl_slurm.pending.commands.live_argv`. Raises Garbled.

    Anybody's job may be called what has line breaks: what follows a row and is none is more of its name.
    """
    lines = text.split("\n")
    start = next((n for n, line in enumerate(lines) if line.startswith(f"JOBID{SEPARATOR}STATE{SEPARATOR}")), None)
    if start is None:
        raise Garbled(f"squeue printed no header but {begin(text)!r}")
    check_last_line(text, "squeue")
    jobs: list[LiveJob] = []
    unread: list[str] = []
    for line in filter(may_be_row, lines[start + 1 :]):
        if jobs and line.count(SEPARATOR) < _FEW and not _BEGINS.match(line):
            continue
        try:
            jobs.append(_live(line))
        except Garbled:
            unread.append(begin(line))
    if unread and not jobs:
        raise Garbled(f"squeue printed {unread[0]!r} among its rows")
    return Live(tuple(jobs), tuple(unread))


def _live(line: str) -> LiveJob:
    fields = line.split(SEPARATOR, _COLUMNS - 1)
    if len(fields) < _COLUMNS:
        raise Garbled(f"squeue printed {begin(line)!r} among its rows")
    row = dict(zip((*LIVE_FIELDS, "Name"), map(str.strip, fields), strict=True))
    number, _, tasks = row["JobArrayID"].partition("_")
    nodes = int(re.match(r"\d*", row["NumNodes"])[0] or 1)  # type: ignore[index]  # an empty match is one
    gpus, gpu_types = gpus_of(row, nodes)
    word, meaning = interpret_state(row["State"])
    pending = meaning.phase is Phase.PENDING
    return LiveJob(
        number=number,
        tasks=tasks,
        pending=pending,
        partitions=tuple(name for name in row["Partition"].split(",") if name),
        priority=int(row["PriorityLong"]) if row["PriorityLong"].isdigit() else 0,
        user=row["UserName"],
        reason=_PREPARED if word in _HAS_NODES else row["Reason"],
        start=parse_time(row["StartTime"]),
        end=parse_time(row["EndTime"]),
        nodes=nodes,
        limit_s=_limit(row["TimeLimit"]),
        qos=absent(row["QOS"]),
        account=absent(row["Account"]),
        reservation=absent(row["Reservation"]),
        dependency=absent(row["Dependency"]),
        submitted=parse_time(row["SubmitTime"]),
        gpus=gpus,
        gpu_types=gpu_types,
        licenses=absent(row["Licenses"]),
        elements=max(1, sum(map(len, _ranges(tasks)))),
    )


def _ranges(tasks: str) -> list[range]:
    """The elements that ``[0-9:3,12%2]`` or ``7`` names."""
    found = []
    for part in tasks.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is not None:
            found.append(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))
    return found


def _limit(text: str) -> int | None:
    try:
        return parse_time_limit(text)
    except ValueError:  # UNLIMITED, NOT_SET, Partition_Limit
        return None
