"""Parse sacct's records of the starts of jobs: how long they ran, and with which resources. Pure.

GPUs include shares: `per_gpu` maps the name of a resource to the number of shares that are one GPU.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ffdl_batch.domain.backend_facts import AccountedRun, AccountedUse
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.spec_errors import SHARING
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.commands import RUN_FIELDS, SEPARATOR, USE_FIELDS
from ffdl_slurm.observing.parsers import Garbled, JobRow, may_be_row, parse_row, read_lines
from ffdl_slurm.output_text import begin

_BEGINS = re.compile(r"\s*\d+(?:_(?:\d+|\[[^\]|]*\]?))?(?:\+\d+)?\s*\|", re.ASCII)
"""A job's id before a separator. A line with another beginning continues a name that has line breaks."""
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_DIGITS_MOST = 15
RESIZED = "RESIZING"
"""State of a job's accounting records from before each release of nodes. Another record follows each of them."""
_GPU = "gres/gpu"
_SHARES = {f"gres/{name}": name for name in SHARING}
_DEVICES = {_GPU, *_SHARES}
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

    def gpus(self, per_gpu: Mapping[str, float]) -> float | None:
        """Return the number of GPUs; None if the record has none, or has shares of an unknown size."""
        return _count_gpus(self.tres, per_gpu)


@dataclass(frozen=True, slots=True)
class UseRecord:
    """The resources that one user held under one account."""

    user: str
    account: str
    jobs: int
    tres_s: Mapping[str, float]
    """Seconds of each resource, by Slurm's names."""


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
        if name.partition(":")[0] in _DEVICES and name not in amounts:
            return _unread(record.native, record.name, f"sacct printed {begin(part)!r} for the GPUs of job {number}")
    is_over = record.observation.phase is Phase.ENDED or record.observation.native_state == RESIZED
    return RunRecord(record.native, record.name, float(elapsed), amounts, is_over)


def _unread(native: NativeId, name: str, why: str) -> RunRecord:
    return RunRecord(native, name, 0.0, {}, is_over=False, unread=why)


def parse_uses(text: str) -> list[UseRecord]:
    """Parse the output of :func:`ffdl_slurm.commands.sacct_uses_argv`; add up the jobs of each user and account.

    The records of a job that was resized count as one job. Raises Garbled.
    """
    runs: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    resized: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    seconds: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in read_lines(text, len(USE_FIELDS), "sacct", ("User", "Account")):
        fields = line.split(SEPARATOR)
        if len(fields) != len(USE_FIELDS) or not fields[2].isdecimal() or len(fields[2]) > _DIGITS_MOST:
            raise Garbled(f"sacct printed {begin(line)!r} among its rows")
        user, account, elapsed, tres, job, state = fields
        if not tres:
            continue  # it has not started
        if state == RESIZED:
            resized[user, account].add(job)
        else:
            runs[user, account][job] += 1
        for name, amount in _without_doubles(parse_tres(tres)).items():
            seconds[user, account][name] += float(elapsed) * amount
    jobs = {key: runs[key].total() + len(resized[key] - runs[key].keys()) for key in runs.keys() | resized.keys()}
    return [UseRecord(*key, jobs[key], seconds[key]) for key in sorted(jobs)]


def uses_of(records: Sequence[UseRecord], per_gpu: Mapping[str, float]) -> list[AccountedUse]:
    """Return the GPUs and CPUs that users held. Shares of an unknown size (see :func:`uncounted`) are not counted."""
    return [
        AccountedUse(
            one.user,
            one.account,
            one.jobs,
            sum(_gpus_in(name, seconds, per_gpu) or 0.0 for name, seconds in one.tres_s.items()),
            one.tres_s.get("cpu", 0.0),
        )
        for one in records
    ]


def uncounted(resources: Iterable[Mapping[str, float]], per_gpu: Mapping[str, float]) -> list[str]:
    """Return the names of resources that are shares of an unknown size."""
    kinds = {name.partition(":")[0] for one in resources for name in one}
    return sorted(_SHARES[kind] for kind in kinds & _SHARES.keys() if not per_gpu.get(_SHARES[kind]))


def parse_tres(text: str) -> dict[str, float]:
    """Parse a list such as ``billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=16G`` into counts by name. Parts without a
    number are left out."""
    found: dict[str, float] = {}
    for part in text.strip().split(","):
        name, _, amount = part.rpartition("=")
        if name and (match := _AMOUNT.fullmatch(amount)) is not None:
            found[name] = float(match[1]) * _UNITS[match[2]]
    return found


def has_shares(tres: Mapping[str, float]) -> bool:
    """Return whether the resources have shares of GPUs."""
    return any(name.partition(":")[0] in _SHARES for name in tres)


def _without_doubles(tres: Mapping[str, float]) -> dict[str, float]:
    """Remove the entries by type if their total is listed, too. Slurm lists both if both are accounted."""
    return {name: count for name, count in tres.items() if ":" not in name or name.partition(":")[0] not in tres}


def _count_gpus(tres: Mapping[str, float], per_gpu: Mapping[str, float]) -> float | None:
    devices = {name: count for name, count in _without_doubles(tres).items() if name.partition(":")[0] in _DEVICES}
    counts = [_gpus_in(name, count, per_gpu) for name, count in devices.items()]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _gpus_in(name: str, count: float, per_gpu: Mapping[str, float]) -> float | None:
    """Return how many GPUs an amount of a resource is; None for shares of an unknown size."""
    kind = name.partition(":")[0]
    if kind in _SHARES:
        size = per_gpu.get(_SHARES[kind])
        return count / size if size else None
    return count if kind == _GPU else 0.0


def runs_of(
    records: Sequence[RunRecord],
    attempts: Mapping[NativeId, Token],
    token_of: Callable[[str, str | None], str],
    per_gpu: Mapping[str, float],
) -> dict[NativeId, list[AccountedRun]]:
    """Return the starts of each attempt.

    A record with its id and another name belongs to another job, because a slurmctld that crashed may assign an id
    twice. If no record names a GPU, the accounting does not count them (AccountingStorageTRES). An attempt with a row
    that cannot be read has only a run with the reason.
    """
    counts_gpus = any(record.gpus(per_gpu) is not None for record in records)
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
            gpus = record.gpus(per_gpu)
            if gpus is None and counts_gpus and not has_shares(record.tres):
                gpus = 0.0
            runs.append(AccountedRun(record.elapsed_s, gpus, record.tres.get("cpu"), record.is_over))
    odd = {native: [AccountedRun(0.0, None, None, is_over=False, unread=why)] for native, why in unread.items()}
    return {**found, **odd}
