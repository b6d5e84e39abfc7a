"""Print a list of jobs as a table that fits the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ffdl_batch.cli.render.formatting import format_elapsed, format_number, format_time, print_table, terminal_width
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.number_text import size_text
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.domain.job.views import JobView

_NAME_WIDTH = 28
_NARROW_NAME, _NARROW_VALUES, _NARROW_PLACE = 12, 14, 14
"""Minimum widths of NAME, VALUES and NODES(REASON) before a column is left out."""
_BEGUN = (JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING)


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    cell: Callable[[JobView], str]
    rank: int = 0
    """Columns with the highest rank are left out first if the terminal is narrow; 0 = never."""
    is_optional: bool = False
    """Whether the column is left out if it is empty for all jobs."""


def print_jobs(jobs: Sequence[JobView], *, hidden: Sequence[str], header: bool, wide: bool) -> None:
    """Print a line for each job, without the columns `hidden`. On a terminal, columns that do not fit are left out,
    unless `wide`."""
    columns = [
        column
        for column in _COLUMNS
        if column.head not in hidden and not (column.is_optional and all(not column.cell(job) for job in jobs))
    ]
    cells = {column.head: [printable(column.cell(job), one_line=True) for job in jobs] for column in columns}
    width = None if wide else terminal_width()
    if width is not None:
        columns, widths = _fit(columns, cells, width, _least_name(jobs))
        cells["NAME"] = [_short_name(job, widths["NAME"]) for job in jobs]
        cells["VALUES"] = [_short_values(job, widths.get("VALUES", 0)) for job in jobs]
    rows = zip(*(cells[column.head] for column in columns), strict=True)
    print_table([column.head for column in columns], rows, header=header, width=width)


def _fit(
    given: list[_Column], cells: Mapping[str, Sequence[str]], width: int, least_name: int
) -> tuple[list[_Column], dict[str, int]]:
    """Return the columns that fit into `width`, and their widths. VALUES is cut only if no other column can be left
    out, NAME before that."""
    columns = given
    full = {column.head: max(len(cell) for cell in (column.head, *cells[column.head])) for column in columns}
    narrow = {"NAME": least_name, columns[-1].head: _NARROW_PLACE}
    widths = {head: min(size, narrow.get(head, size)) for head, size in full.items()}
    while (left := width - sum(widths[column.head] + 2 for column in columns) + 2) < 0:
        dropped = max(columns, key=lambda column: column.rank)
        if dropped.head == "VALUES" and widths["VALUES"] + left >= _NARROW_VALUES:
            widths["VALUES"] += left
        elif dropped.head == "VALUES":
            return _fit([column for column in given if column is not dropped], cells, width, least_name)
        elif dropped.rank:
            columns = [column for column in columns if column is not dropped]
        else:
            break
    widths["NAME"] = min(full["NAME"], widths["NAME"] + max(0, left))
    return columns, widths


def _least_name(jobs: Sequence[JobView]) -> int:
    """Return the least width of NAME. The elements of one array are known by their index."""
    if len({job.array for job in jobs}) == 1 and jobs[0].array:
        return max(len("NAME"), *(len(_index(job)) for job in jobs))
    return _NARROW_NAME


def place_or_reason(job: JobView) -> str:
    """Return the nodes, or in brackets the pending reason, the error, or the message of a halt, as in squeue."""
    if job.ended_at is None and (waits := _waits_for(job)):
        return f"({'; '.join(waits)})"
    if job.error_code not in ("", "000"):
        return f"({job.error_code} {job.message})" if job.message else f"({job.error_code})"
    if job.state == "HALTED" and job.message:
        return f"({job.message})"
    return job.nodes


def _waits_for(job: JobView) -> list[str]:
    """Return what the job waits for: the user's request, the scheduler's answer, or its pending reason."""
    waits = [f"{job.requested_action} requested"] if job.requested_action not in ("", "none") else []
    if job.uncertain_since is not None:
        waits.append(job.pending_reason or "waiting for the scheduler's answer")
    elif job.pending_reason and not waits:
        waits.append(job.pending_reason)
    return waits


def _short_name(job: JobView, width: int = _NAME_WIDTH) -> str:
    """Return the name cut to its column. The index of an array's element is not cut off."""
    kept, name = _index(job), printable(job.name, one_line=True)
    if len(name) <= width:
        return name
    return f"{name[: width - 1 - len(kept)]}+{kept}" if width > len(kept) + 1 else kept


def _index(job: JobView) -> str:
    return f"[{job.array_index}]" if job.array else ""


def _framework(job: JobView) -> str:
    framework = f"{job.framework}:{job.framework_version}" if job.framework_version else job.framework
    return framework if len(framework) <= _NAME_WIDTH else framework[: _NAME_WIDTH - 1] + "+"


def began_at(job: JobView) -> float | None:
    """Return when the latest run of the job began; None before it begins."""
    return min((at for state, at in job.timestamps.items() if state in _BEGUN), default=None)


def elapsed_s(job: JobView) -> float:
    """Return how many seconds the latest run of the job has taken so far, or took; 0 before it begins."""
    began = began_at(job)
    return 0.0 if began is None else (time.time() if job.ended_at is None else job.ended_at) - began


def _disk(job: JobView) -> str:
    """Return the size of the job's directory, or a question mark if measuring took too long."""
    return "?" if job.disk_bytes is None else size_text(job.disk_bytes)


def _values(job: JobView) -> str:
    return " ".join(f"{name}={value}" for name, value in job.array_values.items())


def _short_values(job: JobView, width: int) -> str:
    """Return the values of an array's element cut to their column. First the names of the variables are cut."""
    for least in range(max(map(len, job.array_values), default=0), -1, -1):
        pairs = (
            (name if len(name) <= least else f"{name[: least - 1]}+" if least > 1 else "", value)
            for name, value in job.array_values.items()
        )
        text = printable(" ".join(f"{name}={value}" if name else value for name, value in pairs), one_line=True)
        if len(text) <= width:
            return text
    return f"{text[: max(0, width - 1)]}+" if job.array_values else ""


_COLUMNS = (
    _Column("ID", lambda job: job.id),
    _Column("USER", lambda job: job.user),
    _Column("NAME", _short_name),
    _Column("FRAMEWORK", _framework, 5),
    _Column("STATE", lambda job: job.state),
    _Column("GPUS", lambda job: format_number(job.total_gpus), 2),
    _Column("PARTITION", lambda job: job.partition, 3, is_optional=True),
    _Column("TIME", lambda job: format_elapsed(elapsed_s(job))),
    _Column("SUBMITTED", lambda job: format_time(job.submitted_at), 4),
    _Column("ENDED", lambda job: format_time(job.ended_at), 6),
    _Column("VALUES", _values, 1, is_optional=True),
    _Column("DISK", _disk),
    _Column("NODES(REASON)", place_or_reason),
)
