"""Read past jobs from Slurm's accounting, and the nodes of the cluster (entry point ``slurm`` of
``ffdl_batch.histories``).

The format is that of sacct(1), 20.11 to 26.05. A control character separates the fields. The job's name, which may hold
anything, is last. Output without its header is not an answer. Rows that cannot be read are reported; the others count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from ffdl_batch.domain.job.past_job import (
    HistoryMissing,
    HistoryUnknown,
    NodeGroup,
    PastJob,
    PastJobs,
    Period,
    Place,
    Unread,
)
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.scheduler_errors import SchedulerMissing, SchedulerUnreachable
from ffdl_slurm.commands import sinfo_argv
from ffdl_slurm.gateways.command_runner import run_command
from ffdl_slurm.observing.parsers import Garbled, count_nodes
from ffdl_slurm.observing.sinfo import parse_sinfo
from ffdl_slurm.output_text import begin
from ffdl_slurm.settings import SlurmSettings, read_settings

FIELDS = (
    "JobID", "User", "Account", "Partition", "State", "ElapsedRaw", "TimelimitRaw", "NNodes", "NCPUS", "AllocTRES",
    "Start", "JobName",
)  # fmt: skip
LINE = "SubmitLine"
"""A field since 21.08. It shows whether a job was submitted by salloc, srun or sbatch."""
_PARTED = "\x1f"
_KNOWN_FIRST = FIELDS.index("Start")
"""Number of separators before the first field that may have line breaks. A line with that many, and a job's id at its
beginning, begins a row."""
_DIGITS_MOST = 15
_LONG_S = 600.0
"""A year of a busy cluster takes slurmdbd minutes."""
_UNLIMITED = frozenset({"", "UNLIMITED", "Partition_Limit"})
_JOB = re.compile(r"(\d+)(_\d+|_\[[^\]]*\]?)?(\+\d+)?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_UNITS = {"": 1 / 1024**2, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
Value = TypeVar("Value")
_INTERACTIVE = re.compile(r"(?:\S*/)?(?:salloc|srun)\b")


def history_argv(period: Period, *, with_line: bool) -> list[str]:
    """List all allocations since a day. Without a user or an account, sacct lists those of the calling user."""
    fields = (*FIELDS[:-1], *([LINE] if with_line else []), FIELDS[-1])
    argv = [
        "sacct", "--allocations", "--parsable2", f"--delimiter={_PARTED}", "--noconvert",
        f"--format={','.join(fields)}", f"--starttime={period.since}", "--endtime=now",
    ]  # fmt: skip
    if period.user:
        argv.append(f"--user={period.user}")
    if period.account:
        argv += ["--allusers", f"--accounts={period.account}"]
    return argv


def parse_history(text: str) -> PastJobs:
    """Parse the output of :func:`history_argv`. Jobs that never started are left out. Rows that cannot be read are in
    `unread`. Raises Garbled if there is no table, if it breaks off, or if no row can be read."""
    lines = text.split("\n")
    head = next((at for at, line in enumerate(lines) if line.split(_PARTED)[:2] == ["JobID", "User"]), None)
    if head is None:
        raise Garbled(f"sacct printed no table but {begin(text)!r}")
    if lines.pop():
        raise Garbled(f"sacct's answer broke off in {begin(lines[-1] if lines else text)!r}")
    names = lines[head].split(_PARTED)
    jobs: list[PastJob] = []
    unread: list[Unread] = []
    rows = list(_rows(lines[head + 1 :], len(names)))
    for row in rows:
        try:
            job = _job(_fields(names, row))
        except Garbled as error:
            unread.append(Unread(_describe(row), str(error)))
            continue
        jobs += [job] if job is not None else []
    if unread and len(unread) == len(rows):
        raise Garbled(f"of {counted(len(rows), 'row')} of sacct's none can be read; the first: {unread[0].why}")
    return PastJobs(tuple(jobs), tuple(unread))


def _rows(lines: Sequence[str], width: int) -> Iterator[str]:
    """Yield the text of each row. It may have several lines, because the submit line (sbatch --wrap) and a job's name
    may have line breaks. An incomplete row ends where the next one begins."""
    row: list[str] = []
    parted = 0
    for line in lines:
        here = line.count(_PARTED)
        is_whole, is_next = here >= width - 1, here >= _KNOWN_FIRST and _is_job(line)
        continues = here == 0 if parted >= width - 1 else not is_next
        if row and (is_whole or not continues):
            yield "\n".join(row)
            row, parted = [], 0
        row.append(line)
        parted += here
    if row:
        yield "\n".join(row)


def _fields(names: Sequence[str], row: str) -> dict[str, str]:
    """Return the fields of a row by name. The last field is the job's name, which may hold anything. Raises Garbled."""
    words = row.split(_PARTED, len(names) - 1)
    if len(words) < len(names):
        raise Garbled(f"sacct's line {begin(row.replace(_PARTED, ' '))!r} has {len(words)} fields, not {len(names)}")
    return dict(zip(names, words, strict=True))


def _is_job(row: str) -> bool:
    return _JOB.fullmatch(row.partition(_PARTED)[0]) is not None


def _describe(row: str) -> str:
    return row.partition(_PARTED)[0] if _is_job(row) else begin(row.replace(_PARTED, " "))


def _job(row: Mapping[str, str]) -> PastJob | None:
    match = _JOB.fullmatch(row["JobID"])
    if match is None:
        raise Garbled(f"{begin(row['JobID'])!r} is not a job of Slurm")
    has_started = row["Start"] not in ("Unknown", "None", "")
    if row["ElapsedRaw"] in ("0", "") and not (has_started and row["AllocTRES"]):
        return None
    if not row["AllocTRES"]:
        raise Garbled(
            f"it ran for {_number(row, 'ElapsedRaw')} s, and sacct does not say with what (AllocTRES is empty)"
        )
    tres = dict(part.partition("=")[::2] for part in row["AllocTRES"].split(",") if part)
    typed = [name.split(":", 1)[1] for name in tres if name.startswith("gres/gpu:")]
    return PastJob(
        id=row["JobID"],
        user=row["User"],
        account=row["Account"],
        name=row["JobName"],
        partition=row["Partition"].split(",")[0],
        state=row["State"].split(" ")[0],
        elapsed_s=_number(row, "ElapsedRaw"),
        nodes=_number(row, "NNodes"),
        cpus=_number(row, "NCPUS"),
        memory_mib=_memory(tres.get("mem", "")),
        gpus=_gpus(tres),
        gpu_type=typed[0] if len(typed) == 1 else "",
        limit_s=None if row["TimelimitRaw"] in _UNLIMITED else 60 * _number(row, "TimelimitRaw"),
        started=_moment(row["Start"]) if has_started else "",
        is_array=bool(match[2]),
        licences=tuple(sorted(name.removeprefix("license/") for name in tres if name.startswith("license/"))),
        shares=tuple(sorted(name.removeprefix("gres/") for name in tres if name in ("gres/shard", "gres/mps"))),
        interactive=bool(_INTERACTIVE.match(row.get(LINE, ""))) or row["JobName"] == "interactive",
        heterogeneous=bool(match[3]),
    )


def _gpus(tres: Mapping[str, str]) -> int:
    """Sites that account types alone have no sum."""
    if "gres/gpu" in tres:
        return _number(tres, "gres/gpu")
    return sum(_number(tres, name) for name in tres if name.startswith("gres/gpu:"))


def _moment(text: str) -> str:
    """Slurm is asked for seconds since the epoch (:func:`ffdl_slurm.gateways.command_runner.query_environment`); 20.11
    to 26.05 obey."""
    if not (text.isascii() and text.isdigit()):
        return text
    try:
        return datetime.fromtimestamp(int(text), UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise Garbled(f"sacct says {begin(text)!r} where the time of its start stands") from error


def _number(row: Mapping[str, str], name: str) -> int:
    text = row[name]
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MOST):
        raise Garbled(f"sacct says {begin(text)!r} where the number for {name} stands")
    return int(text)


def _memory(text: str) -> int:
    if not text:
        return 0
    match = _SIZE.fullmatch(text)
    if match is None:
        raise Garbled(f"sacct says {begin(text)!r} where an amount of memory stands")
    return round(float(match[1]) * _UNITS[match[2]])


class SlurmHistory:
    """Asks sacct and sinfo."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings

    def past_jobs(self, period: Period) -> PastJobs:
        """Return jobs that had an allocation, and rows that cannot be read. Raises HistoryUnknown."""
        with_line = LINE in self._asked(["sacct", "--helpformat"]).split()
        return _read(parse_history, self._asked(history_argv(period, with_line=with_line)))

    def places(self) -> Sequence[Place]:
        """Return the partitions. Raises HistoryUnknown."""
        nodes, partitions, odd = _read(parse_sinfo, self._asked(sinfo_argv()))
        found: list[Place] = []
        for one in sorted(partitions, key=lambda shape: (not shape.is_default, shape.name)):
            groups = tuple(
                NodeGroup(count_nodes(node.name), node.cpus, node.memory_bytes >> 20, dict(node.gpus))
                for node in nodes
                if one.name in node.partitions
            )
            types = frozenset(name for group in groups for name, count in group.gpus.items() if count)
            unread = tuple(Unread(row, why) for row, why in odd if not found)  # reported once, for all partitions
            found.append(Place(one.name, "slurm", groups, types, one.max_time_s, unread=unread))
        return found

    def _asked(self, argv: list[str]) -> str:
        try:
            result = run_command(argv, max(_LONG_S, self._settings.command_timeout_s))
        except SchedulerMissing as error:
            raise HistoryMissing(str(error)) from error
        except SchedulerUnreachable as error:
            raise HistoryUnknown(str(error)) from error
        if result.returncode != 0:
            raise HistoryUnknown(f"{argv[0]} exited with status {result.returncode}: {result.message}")
        return result.stdout


def _read(parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except Garbled as error:
        raise HistoryUnknown(str(error)) from error


def create(settings: Mapping[str, object]) -> SlurmHistory:
    """Create the reader for the entry point. Raises InvalidRequest for unusable settings."""
    return SlurmHistory(read_settings(settings))
