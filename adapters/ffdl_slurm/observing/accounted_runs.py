"""Parse sacct's records of the starts of jobs: how long they ran, and with which resources. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from ffdl_batch.domain.backend_facts import AccountedRun, AccountedUse
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.commands import RUN_FIELDS, SEPARATOR, USE_FIELDS
from ffdl_slurm.observing.parsers import Garbled, JobRow, may_be_row, parse_row, read_lines
from ffdl_slurm.output_text import begin

_Seconds = defaultdict[tuple[str, str], float]
_BEGINS = re.compile(r"\s*\d+(?:_(?:\d+|\[[^\]|]*\]?))?(?:\+\d+)?\s*\|", re.ASCII)
"""A job's id before a separator. A line with another beginning continues a name that has line breaks."""
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_DIGITS_MOST = 15
_UNITS = {"": 1.0, "K": 1024.0, "M": 1024.0**2, "G": 1024.0**3, "T": 1024.0**4, "P": 1024.0**5}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One start of a job or task."""

    native: NativeId
    name: str
    elapsed_s: float
    tres: Mapping[str, float]
    """The allocated resources by Slurm's names; empty if there was no allocation."""
    is_over: bool
    unread: str = ""
    """Why the row cannot be read. Then only the id is known, and the name unless it is ""."""

    @property
    def gpus(self) -> float | None:
        """The number of GPUs; None if the record names none."""
        return _count_gpus(self.tres)


def parse_runs(text: str) -> list[RunRecord]:
    """Parse the output of :func:`ffdl_slurm.commands.sacct_runs_argv`. Tasks that have not started are left out. A row
    that cannot be read becomes a record with the reason. Raises Garbled if there is no table, or if no row can be
    read."""
    rows = list(_rows(read_lines(text, len(RUN_FIELDS), "sacct", ("JobID", "State"))))
    read = [(row, _record(row)) for row in rows]
    found = [record for _, record in read if record is not None]
    if rows and all(record is not None and record.unread for _, record in read):
        raise Garbled(f"of sacct's rows none can be read; the first: {found[0].unread}")
    return found


def _rows(lines: Sequence[str]) -> Iterator[str]:
    """Yield the text of each row. The job's name, which is last, may have line breaks. Raises Garbled."""
    row = ""
    for line in lines:
        if _BEGINS.match(line):
            if row:
                yield row
            row = line
        elif row:
            row = f"{row}\n{line}"
        elif may_be_row(line):
            raise Garbled(f"sacct printed {begin(line)!r} among its rows")
    if row:
        yield row


def _record(row: str) -> RunRecord | None:
    """Return the record; None for tasks that have not started. Raises Garbled if the row has no job id."""
    fields = row.split(SEPARATOR, len(RUN_FIELDS) - 1)
    number, *_ = fields
    named = fields[-1] if len(fields) == len(RUN_FIELDS) else ""
    record = parse_row(JobRow(number, named, fields[1]))
    if record.native is None:
        return None
    if len(fields) < len(RUN_FIELDS):
        return _unread(record.native, "", f"sacct printed {begin(row)!r} among its rows")
    _, _, elapsed, tres, _ = fields
    if not elapsed.strip().isdecimal() or len(elapsed) > _DIGITS_MOST:
        return _unread(record.native, record.name, f"sacct printed {begin(elapsed)!r} for the seconds of job {number}")
    amounts = parse_tres(tres)
    for part in tres.strip().split(","):
        name = part.rpartition("=")[0]
        if name.partition(":")[0] == "gres/gpu" and name not in amounts:
            return _unread(record.native, record.name, f"sacct printed {begin(part)!r} for the GPUs of job {number}")
    return RunRecord(record.native, record.name, float(elapsed), amounts, record.observation.phase is Phase.ENDED)


def _unread(native: NativeId, name: str, why: str) -> RunRecord:
    return RunRecord(native, name, 0.0, {}, is_over=False, unread=why)


def parse_uses(text: str) -> list[AccountedUse]:
    """Parse the output of :func:`ffdl_slurm.commands.sacct_uses_argv`; add up the jobs of each user and account. Raises
    Garbled."""
    jobs, gpu_s, cpu_s = Counter[tuple[str, str]](), _Seconds(float), _Seconds(float)
    for line in read_lines(text, len(USE_FIELDS), "sacct", ("User", "Account")):
        fields = line.split(SEPARATOR)
        if len(fields) != len(USE_FIELDS) or not fields[2].isdecimal() or len(fields[2]) > _DIGITS_MOST:
            raise Garbled(f"sacct printed {begin(line)!r} among its rows")
        user, account, elapsed, tres = fields
        if not tres:
            continue  # it has not started
        amounts = parse_tres(tres)
        jobs[user, account] += 1
        gpu_s[user, account] += float(elapsed) * (_count_gpus(amounts) or 0.0)
        cpu_s[user, account] += float(elapsed) * amounts.get("cpu", 0.0)
    return [AccountedUse(*key, jobs[key], gpu_s[key], cpu_s[key]) for key in sorted(jobs)]


def parse_tres(text: str) -> dict[str, float]:
    """Parse a list such as ``billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=16G`` into counts by name. Parts without a
    number are left out."""
    found: dict[str, float] = {}
    for part in text.strip().split(","):
        name, _, amount = part.rpartition("=")
        if name and (match := _AMOUNT.fullmatch(amount)) is not None:
            found[name] = float(match[1]) * _UNITS[match[2]]
    return found


def _count_gpus(tres: Mapping[str, float]) -> float | None:
    """Return the number of GPUs; None if the resources name none. With types, Slurm lists each type and the sum."""
    if "gres/gpu" in tres:
        return tres["gres/gpu"]
    typed = [count for name, count in tres.items() if name.startswith("gres/gpu:")]
    return sum(typed) if typed else None


def runs_of(
    records: Sequence[RunRecord], attempts: Mapping[NativeId, Token], token_of: Callable[[str, str | None], str]
) -> dict[NativeId, list[AccountedRun]]:
    """Return the starts of each attempt.

    A record with its id and another name belongs to another job, because a slurmctld that crashed may assign an id
    twice. If no record names a GPU, the accounting does not count them (AccountingStorageTRES). An attempt with a row
    that cannot be read has only a run with the reason.
    """
    counts_gpus = any(record.gpus is not None for record in records)
    found: dict[NativeId, list[AccountedRun]] = {}
    unread: dict[NativeId, str] = {}
    for record in records:
        native = record.native
        if native in attempts and record.unread and not record.name:
            unread.setdefault(native, record.unread)
        if native not in attempts or token_of(record.name, native.task) != attempts[native]:
            continue
        if record.unread:
            unread.setdefault(native, record.unread)
        runs = found.setdefault(native, [])
        if record.tres or record.elapsed_s:
            gpus = (record.gpus or 0.0) if counts_gpus else None
            runs.append(AccountedRun(record.elapsed_s, gpus, record.tres.get("cpu"), record.is_over))
    odd = {native: [AccountedRun(0.0, None, None, is_over=False, unread=why)] for native, why in unread.items()}
    return {**found, **odd}
