"""The learners of a job: where each of them is and how it fares, and which of them were started again."""

from __future__ import annotations

from collections.abc import Sequence

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import HistoryEntry, Job, parse_job_id
from ffdl_batch.domain.job.learners import StartedAgain, learner_list, say_restart
from ffdl_batch.domain.job.views import JobView, LearnerView
from ffdl_batch.services.outcome.attempt_records import read_evidence, read_launch
from ffdl_batch.services.platform import Platform


def learners_of(platform: Platform, job: JobView) -> tuple[LearnerView, ...]:
    """Those of the last attempt of `job` that ran, by what its controllers wrote; none where it left no launch file.
    Raises OSError."""
    ran = [attempt for attempt in job.attempts if attempt.logs] or list(job.attempts)
    if not ran:
        return ()
    attempt = platform.root.job(parse_job_id(job.id)).attempt(ran[-1].number)
    launch = read_launch(attempt)
    if launch is None:
        return ()
    is_over = ran[-1].ended_at is not None or ran[-1].number < job.attempt
    return learner_list(launch, read_evidence(attempt).events, is_over=is_over)


def untold_restarts(
    job: Job, attempt: AttemptDir, again: Sequence[StartedAgain], history: Sequence[HistoryEntry]
) -> list[tuple[float, str]]:
    """When each learner was started again that the history does not tell of yet, and what to say of it."""
    launch = read_launch(attempt)
    told = {entry.message for entry in history if entry.is_learner_restart_of(job.attempt)}
    said = ((one.at, say_restart(one, launch)) for one in again)
    return [(at, message) for at, message in said if message not in told]
