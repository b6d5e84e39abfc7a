"""What sacct says of the starts of jobs: how long, and with what. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ffdl_batch.domain.job import Token
from ffdl_batch.domain.observation import NativeId, Phase
from ffdl_batch.ports.accounts import AccountedRun
from ffdl_slurm.commands import RUN_FIELDS
from ffdl_slurm.parsers import Garbled, JobRow, parse_row, read_rows

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_UNITS = {"": 1.0, "K": 1024.0, "M": 1024.0**2, "G": 1024.0**3, "T": 1024.0**4, "P": 1024.0**5}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One start of a job or task. `tres` is what was allocated, by Slurm's names (empty = it never was)."""

    native: NativeId
    name: str
    elapsed_s: float
    tres: Mapping[str, float]
    is_over: bool

    @property
    def gpus(self) -> float | None:
        """All GPUs; None where none are named. With types each is named once for itself and once for all."""
        if "gres/gpu" in self.tres:
            return self.tres["gres/gpu"]
        typed = [count for name, count in self.tres.items() if name.startswith("gres/gpu:")]
        return sum(typed) if typed else None


def parse_runs(text: str) -> list[RunRecord]:
    """The answer to :func:`ffdl_slurm.commands.sacct_runs_argv`; what never started is left out, but for its record
    without time. Raises Garbled."""
    found = []
    for number, state, elapsed, tres, name in read_rows(text, len(RUN_FIELDS), "sacct", ("JobID", "State")):
        record = parse_row(JobRow(number, name, state))
        if record.native is None:  # tasks that nobody started yet
            continue
        if not elapsed.strip().isdecimal():
            raise Garbled(f"sacct printed {elapsed!r} for the seconds of job {number}")
        is_over = record.observation.phase is Phase.ENDED
        found.append(RunRecord(record.native, record.name, float(elapsed), parse_tres(tres), is_over))
    return found


def parse_tres(text: str) -> dict[str, float]:
    """Name and count of ``billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=16G``; what has no number is left out."""
    found: dict[str, float] = {}
    for part in text.strip().split(","):
        name, _, amount = part.rpartition("=")
        if name and (match := _AMOUNT.fullmatch(amount)) is not None:
            found[name] = float(match[1]) * _UNITS[match[2]]
    return found


def runs_of(
    records: Sequence[RunRecord], attempts: Mapping[NativeId, Token], token_of: Callable[[str, str | None], str]
) -> dict[NativeId, list[AccountedRun]]:
    """The starts of each attempt. What has its id by another name is another's: a controller that crashed may have
    given an id twice. Where no record names a GPU the accounting does not count them (AccountingStorageTRES)."""
    counts_gpus = any(record.gpus is not None for record in records)
    found: dict[NativeId, list[AccountedRun]] = {}
    for record in records:
        native = record.native
        if native not in attempts or token_of(record.name, native.task) != attempts[native]:
            continue
        runs = found.setdefault(native, [])
        if record.tres or record.elapsed_s:
            gpus = (record.gpus or 0.0) if counts_gpus else None
            runs.append(AccountedRun(record.elapsed_s, gpus, record.tres.get("cpu"), record.is_over))
    return found
