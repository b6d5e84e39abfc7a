"""Parse squeue's list of waiting and running jobs (:func:`ffdl_slurm.pending.commands.live_argv`). Pure.

``tres-alloc`` is what a running job has. For a waiting job it is what slurmctld counted, of all its nodes together. If
a site does not account GPUs (AccountingStorageTRES), ``tres-alloc`` has none, and the options of the request count:
``--gpus`` for the whole job, ``--gpus-per-node`` and ``--gres`` for each node, ``--gpus-per-task`` for each task and
``--gpus-per-socket`` for each socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.domain.quantity import parse_time_limit
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.commands import SEPARATOR
from ffdl_slurm.observing.accounted_runs import parse_tres
from ffdl_slurm.observing.job_states import interpret_state
from ffdl_slurm.observing.parsers import Garbled, check_last_line, may_be_row, parse_gpus, parse_time
from ffdl_slurm.output_text import begin
from ffdl_slurm.pending.commands import LIVE_FIELDS
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
        """Return whether it is the job, or has the job among its elements."""
        if self.number != native.job or bool(self.tasks) != (native.task is not None):
            return False
        return native.task is None or any(int(native.task) in one for one in _ranges(self.tasks))


@dataclass(frozen=True, slots=True)
class Live:
    """All waiting and running jobs."""

    jobs: tuple[LiveJob, ...]
    unread: tuple[str, ...] = ()
    """The beginnings of the rows that cannot be read."""


def parse_live(text: str) -> Live:
    """Parse the output of :func:`ffdl_slurm.pending.commands.live_argv`. Raises Garbled.

    Names of jobs may have line breaks, so a line that is not a row continues the name in the row before.
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
    """Return the elements of a list such as ``[0-9:3,12%2]`` or ``7``."""
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


_ALL = "gres/gpu"
_NONE = frozenset({"", "N/A", "(null)", "None", "n/a"})


def gpus_of(row: Mapping[str, str], nodes: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of GPUs of a row of squeue, on `nodes` nodes, and their types ("" = any). The first of these
    that is not 0 counts: Slurm's count, then the requests for the whole job, per node, per task, per socket."""
    per_job, per_node, per_task, per_socket = (
        _asked(row[f"tres-per-{what}"]) for what in ("job", "node", "task", "socket")
    )
    counted = _counted(row["tres-alloc"])
    types = sorted({*per_job, *per_node, *per_task, *per_socket} or {name for name in counted if name})
    sums = (
        _total(counted),
        sum(per_job.values()),
        nodes * sum(per_node.values()),
        _number(row["NumTasks"], nodes) * sum(per_task.values()),
        nodes * _number(row["Sockets"], 1) * sum(per_socket.values()),
    )
    return next((count for count in sums if count), 0), tuple(types)


def _asked(text: str) -> dict[str, int]:
    """Parse ``gpu:a100:2``, ``gres:gpu:2`` or ``cpu=1,gres/gpu=2`` into counts by type. Releases differ in the form."""
    return {} if text in _NONE else parse_gpus(re.sub(r"gres[/:]", "", text).replace("=", ":"))


def _counted(text: str) -> dict[str, int]:
    """Parse ``cpu=8,gres/gpu=4,gres/gpu:a100=4`` into counts by type; "" is the sum, if the site counts it."""
    amounts = parse_tres(text)
    return {name.partition(":")[2]: int(count) for name, count in amounts.items() if name.split(":")[0] == _ALL}


def _total(counted: Mapping[str, int]) -> int:
    return counted.get("", sum(counted.values()))


def _number(text: str, otherwise: int) -> int:
    """Parse a number. Slurm prints ``*`` for sockets that are not requested."""
    return int(text) if text.isascii() and text.isdigit() and int(text) else otherwise
