"""The chain of a job's attempts as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.render.formatting import format_time, print_line, print_table
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.continuation import Interruption, describe_interruption

if TYPE_CHECKING:
    from ffdl_batch.domain.job.views import AttemptView, JobView, LearnerView


LEARNER_COLUMNS = ("LEARNER", "ROLE", "NAME", "NODE", "STATE", "AGAIN")


def print_learners(job: JobView) -> None:
    """One line per learner, where there are several and it is known what they do. Columns in which nobody has anything
    are left out."""
    if len(job.learner_list) < 2:
        return
    click.echo("Learners:")
    rows = [_learner_row(one) for one in job.learner_list]
    kept = [place for place in range(len(LEARNER_COLUMNS)) if any(row[place] for row in rows)]
    print_table([LEARNER_COLUMNS[place] for place in kept], [[row[place] or "N/A" for place in kept] for row in rows])


def _learner_row(one: LearnerView) -> list[str]:
    role = f"{one.role} {one.index}" if one.role else ""
    again = str(one.restarts) if one.restarts else ""
    return [str(one.number), role, one.name, one.node, _learner_state(one), again]


def _learner_state(one: LearnerView) -> str:
    """``ended with exit code 7``; with the reason for which the platform ended it, where it did."""
    from ffdl_batch.domain.launch.learner_text import describe_end

    if one.exit_code is None and one.exit_signal is None:
        return one.state
    ended = describe_end(one.exit_code, one.exit_signal)
    why = ", ".join(word for word in (one.ended_by, one.state if one.state != "ended" else "") if word)
    return f"{ended} ({why})" if why else ended


_COLUMNS = ("ATTEMPT", "SCHEDULER'S ID", "NODES", "FROM", "TO", "ENDED BECAUSE", "CHECKPOINT")


def print_attempts(job: JobView) -> None:
    """One line per attempt, oldest first; what they left, and which of them still owe results."""
    if not job.attempts:
        return
    click.echo("Attempts:")
    print_table(_COLUMNS, [_row(job, attempt) for attempt in job.attempts])
    _print_restarts(job.attempts)
    _print_places(job.attempts)
    _print_pending_uploads(job)


def _print_restarts(attempts: Sequence[AttemptView]) -> None:
    """The runs that the scheduler started by itself, and the learners that their controllers did: the table has a line
    per attempt, not per run."""
    for attempt in attempts:
        for restart in attempt.restarts:
            print_line(f"Attempt {attempt.number} again", f"{format_time(restart.at)} {restart.message}")
        for restart in attempt.learner_restarts:
            print_line(f"In attempt {attempt.number}", f"{format_time(restart.at)} {restart.message}")


def _print_pending_uploads(job: JobView) -> None:
    """Which attempts owed results, and when those were stored; which still do, where those lie, and who stores them."""
    for paid in job.attempts:
        if paid.uploaded_at is not None:
            print_line(
                f"Attempt {paid.number} paid", f"{format_time(paid.uploaded_at)} what it could not store is stored"
            )
    debts = [attempt for attempt in job.attempts if attempt.upload_pending]
    if not debts:
        return
    owing = [str(attempt.number) for attempt in debts]
    which = f"attempt {owing[0]}" if len(owing) == 1 else f"attempts {', '.join(owing)}"
    lies = f"lie in {job.job_dir}/attempt-{owing[0]}"
    where = f"not everything could be stored: results and logs {debts[0].pending_upload_directory or lies}"
    print_line("Results owed", f"by {which}: {where}, and are stored {_uploader(job, debts[-1])}")


def _uploader(job: JobView, last: AttemptView) -> str:
    """Who stores what the attempt owes, and when."""
    is_daemons = job.ended_at is not None or (job.state == JobState.STORING and last.number == job.attempts[-1].number)
    if not is_daemons:
        return "by the next attempt, or by the daemon"
    if last.store_by is None:
        return "by the daemon, which tries again and again"
    return f"by the daemon, which begins at {format_time(last.store_by)} at the latest"


def _print_places(attempts: Sequence[AttemptView]) -> None:
    """What each attempt left, where more than one of them ran."""
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
        _why(job, attempt),
        describe_checkpoint(attempt),
    ]


def _why(job: JobView, attempt: AttemptView) -> str:
    """What ended the attempt, in words; a word of a newer release as it is."""
    code = attempt.error_code if attempt.error_code != "000" else ""
    if not attempt.interruption:
        is_last = attempt.number == job.attempts[-1].number and job.ended_at is not None
        return code or (job.state.lower() if is_last else "")
    known = {each.value for each in Interruption}
    if attempt.interruption in known:
        said = describe_interruption(Interruption(attempt.interruption), played=attempt.played)
    else:
        said = attempt.interruption
    return f"{said} ({code})" if code else said


def describe_checkpoint(attempt: AttemptView) -> str:
    """Return what the attempt left to continue from, in a few words."""
    took = "" if attempt.checkpoint_took_s is None else f" after {attempt.checkpoint_took_s:.1f} s"
    if attempt.checkpoint_confirmed:
        return f"confirmed{took}"
    saved = "" if attempt.checkpoint_saved_at is None else f"saved {format_time(attempt.checkpoint_saved_at)}"
    if not attempt.checkpoint_asked:
        return saved
    asked = "answered without one" if attempt.checkpoint_answered else "none confirmed"
    return f"{asked}; {saved}" if saved else asked
