"""What a command that waited says about a job that did not complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ffdl_batch.cli.exit_handling import complain
from ffdl_batch.domain.outcome.controller_events import NOT_KEPT

if TYPE_CHECKING:
    from ffdl_batch.domain.job.views import JobView


def report_not_kept(job: JobView) -> None:
    """Report links and other things in the results that were not stored, or not as they are."""
    for warning in job.warnings:
        if warning.startswith(NOT_KEPT):
            complain(f"{job.id}: {warning}")


def report_end(job: JobView, exit_code: int) -> None:
    """How the job ended, its last words, and where the rest is; nothing of one that is done."""
    if job.error_code != "000":
        complain(f"{job.id}: {job.state}: {job.error_code} {job.message}")
    elif exit_code and job.message:
        complain(f"{job.id}: {job.state}: {job.message}")
    report_not_kept(job)
    if job.error_code == "000":
        return
    last = next((line for line in reversed(job.log_tail) if line.strip()), "")
    if last:
        complain(f"{job.id}: its last line: {last}")
    complain(f"{job.id}: the whole output: ffdl logs {job.id}; everything else: ffdl show {job.id}")
