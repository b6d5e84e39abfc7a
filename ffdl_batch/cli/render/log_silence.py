"""What is said on standard error where there is no output to show: why, and where it lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ffdl_batch.cli.exit_handling import complain
from ffdl_batch.domain.job_state import TERMINAL, JobState

if TYPE_CHECKING:
    from ffdl_batch.domain.job.log_text import LogText
    from ffdl_batch.domain.job.views import JobView

_WAITING = (JobState.PENDING, JobState.DEPLOYING, JobState.QUEUED)


def tell_wait(job: JobView) -> None:
    """Before it is followed: that it has not begun, and is waited for."""
    if not _has_run(job) and job.state in _WAITING:
        complain(f"{job.id} is {job.state} and has no output yet; waiting for it")


def tell_none(job: JobView, texts: Iterable[LogText]) -> Iterator[LogText]:
    """The lines; where there are none, why."""
    is_empty = True
    for text in texts:
        is_empty = False
        yield text
    if is_empty:
        complain(explain_none(job))


def explain_none(job: JobView) -> str:
    """Why a job has no output."""
    has_ended = job.state in TERMINAL
    if not _has_run(job):
        none = f"{job.id} is {job.state}"
        return f"{none}, and none of its learners started" if has_ended else f"{none} and has no output yet; -f waits"
    if not has_ended:
        return f"{job.id} is {job.state} and has printed nothing yet"
    said = f"there is no output of {job.id} in {job.logs} (any more)"
    kept = job.stored_in or ("" if f"{job.results}/".startswith(f"{job.job_dir}/") else job.results)
    return f"{said}; what was stored of it is {kept}/learner-1/training-log.txt" if kept else said


def _has_run(job: JobView) -> bool:
    return any(attempt.logs for attempt in job.attempts)
