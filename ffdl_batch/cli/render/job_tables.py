"""Print the learners and the attempts of a job as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.render.formatting import format_time, print_line, print_table
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.outcome.continuation import Interruption, describe_interruption
from ffdl_batch.domain.outcome.error_codes import UNREADABLE

if TYPE_CHECKING:
    from ffdl_batch.domain.job.views import AttemptView, JobView, LearnerView


LEARNER_COLUMNS = ("LEARNER", "ROLE", "NAME", "NODE", "STATE", "AGAIN")


def print_learners(job: JobView) -> None:
    """Print a line for each learner if there are several and their states are known. Empty columns are left out."""
    if len(job.learner_list) < 2:
        return
    click.echo("Learners:")
    rows = [_learner_row(one) for one in job.learner_list]
    kept = [place for place in range(len(LEARNER_COLUMNS)) if any(row[place] for row in rows)]
    print_table([LEARNER_COLUMNS[place] for place in kept], [[row[place] or "N/A" for place in kept] for row in rows])


def _learner_row(one: LearnerView) -> list[str]:
    role = f"{one.role} {one.index}" if one.role else ""
    again = str(one.restarts) if one.restarts else ""
    return [str(one.number), role, one.name, one.node, describe_learner(one), again]


def describe_learner(one: LearnerView) -> str:
    """Return how the learner ended, with the reason if ffdl killed it; its state if it has not ended."""
    from ffdl_batch.domain.launch.learner_text import describe_end

    if one.exit_code is None and one.exit_signal is None:
        return one.state
    ended = describe_end(one.exit_code, one.exit_signal)
    why = ", ".join(word for word in (one.ended_by, one.state if one.state != "ended" else "") if word)
    return f"{ended} ({why})" if why else ended


_COLUMNS = ("ATTEMPT", "SCHEDULER'S ID", "NODES", "FROM", "TO", "ENDED BECAUSE", "CHECKPOINT")
_SIZE_COLUMNS = ("LEARNERS", "BATCH")


def print_attempts(job: JobView) -> None:
    """Print a line for each attempt, oldest first, with its size if the job is elastic; then their restarts,
    directories and pending uploads."""
    if not job.attempts:
        return
    click.echo("Attempts:")
    columns: tuple[str, ...] = _COLUMNS
    rows = [_row(job, attempt) for attempt in job.attempts]
    if any(attempt.global_batch is not None for attempt in job.attempts):
        columns = (*_COLUMNS[:3], *_SIZE_COLUMNS, *_COLUMNS[3:])
        rows = [[*row[:3], *_size(attempt), *row[3:]] for row, attempt in zip(rows, job.attempts, strict=True)]
    print_table(columns, rows)
    _print_restarts(job.attempts)
    _print_resizes(job.attempts)
    _print_places(job.attempts)
    _print_pending_uploads(job)


def _print_restarts(attempts: Sequence[AttemptView]) -> None:
    """Print the further runs that the scheduler started, and the learners that a controller restarted."""
    for attempt in attempts:
        for restart in attempt.restarts:
            print_line(f"Attempt {attempt.number} again", f"{format_time(restart.at)} {restart.message}")
        for restart in attempt.learner_restarts:
            print_line(f"In attempt {attempt.number}", f"{format_time(restart.at)} {restart.message}")


def _print_resizes(attempts: Sequence[AttemptView]) -> None:
    """Print the changes in place."""
    for attempt in attempts:
        for resize in attempt.resizes:
            size = f"{counted(resize.learners, 'learner')} and batch {resize.global_batch}"
            print_line(f"In attempt {attempt.number}", f"{format_time(resize.at)} changed in place to {size}")


def _print_pending_uploads(job: JobView) -> None:
    """Print when pending uploads of attempts were stored; then which are still pending, where they are, and what will
    store them."""
    for attempt in job.attempts:
        if attempt.uploaded_at is not None:
            print_line(f"Attempt {attempt.number} upload", f"finished later, at {format_time(attempt.uploaded_at)}")
    pending = [attempt for attempt in job.attempts if attempt.upload_pending]
    if not pending:
        return
    numbers = [str(attempt.number) for attempt in pending]
    which = f"attempt {numbers[0]}" if len(numbers) == 1 else f"attempts {', '.join(numbers)}"
    where = pending[0].pending_upload_directory or f"are in {job.job_dir}/attempt-{numbers[0]}"
    print_line("Pending upload", f"of {which}: results and logs {where}, and are stored {_uploader(job, pending[-1])}")


def _uploader(job: JobView, last: AttemptView) -> str:
    """Return which process stores the pending upload, and when."""
    is_daemons = job.ended_at is not None or (job.state == JobState.STORING and last.number == job.attempts[-1].number)
    if not is_daemons:
        return "by the next attempt, or by the daemon"
    if job.error_code == UNREADABLE:
        return "by the daemon when it starts again, if they can be read then"
    if last.store_by is None:
        return "by the daemon, which retries until it succeeds"
    return f"by the daemon, from {format_time(last.store_by)} at the latest"


def _print_places(attempts: Sequence[AttemptView]) -> None:
    """Print the directories of each attempt if several attempts ran."""
    ran = [attempt for attempt in attempts if attempt.logs]
    for attempt in ran if len(ran) > 1 else ():
        print_line(f"Attempt {attempt.number} results", attempt.results)
        print_line(f"Attempt {attempt.number} logs", attempt.logs)


def _row(job: JobView, attempt: AttemptView) -> list[str]:
    return [
        str(attempt.number),
        attempt.native_id or "none",
        attempt.nodes or "N/A",
        format_time(attempt.created_at if attempt.submitted_at is None else attempt.submitted_at),
        format_time(attempt.ended_at),
        why_attempt_ended(job, attempt),
        describe_checkpoint(attempt),
    ]


def _size(attempt: AttemptView) -> tuple[str, str]:
    batch = attempt.global_batch
    return str(attempt.learners), "N/A" if batch is None else str(batch)


def why_attempt_ended(job: JobView, attempt: AttemptView) -> str:
    """Return why the attempt ended. An interruption of a newer release is printed unchanged."""
    code = attempt.error_code if attempt.error_code != "000" else ""
    if not attempt.interruption:
        is_last = attempt.number == job.attempts[-1].number and job.ended_at is not None
        return code or (job.state.lower() if is_last else "")
    known = {each.value for each in Interruption}
    if attempt.interruption in known:
        why = describe_interruption(Interruption(attempt.interruption), simulated=attempt.simulated)
    else:
        why = attempt.interruption
    return f"{why} ({code})" if code else why


def describe_checkpoint(attempt: AttemptView) -> str:
    """Return a few words about the checkpoint of the attempt."""
    took = "" if attempt.checkpoint_took_s is None else f" after {attempt.checkpoint_took_s:.1f} s"
    if attempt.checkpoint_confirmed:
        return f"confirmed{took}"
    saved = "" if attempt.checkpoint_saved_at is None else f"saved {format_time(attempt.checkpoint_saved_at)}"
    if not attempt.checkpoint_asked:
        return saved
    asked = "answered without one" if attempt.checkpoint_answered else "none confirmed"
    return f"{asked}; {saved}" if saved else asked
