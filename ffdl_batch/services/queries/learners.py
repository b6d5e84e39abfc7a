"""Reads the states of a job's learners, the progress of its transfers, and when its learners expect to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ffdl_batch.attempt.element_files import make_elements
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.log_tail import read_end
from ffdl_batch.attempt.reader import NO_FILE, find_object
from ffdl_batch.domain.job.job import HistoryEntry, Job, parse_job_id
from ffdl_batch.domain.job.learners import StartedAgain, describe_restart, gpu_devices, learner_list
from ffdl_batch.domain.job.views import JobView, LearnerView
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.advice import expected_end
from ffdl_batch.domain.metrics.learner_reports import remaining_samples, throughputs
from ffdl_batch.domain.metrics.records import RecordError, decode_record
from ffdl_batch.domain.outcome.controller_events import is_time
from ffdl_batch.services.outcome.attempt_records import read_events, read_launch


def learners_of(root: Root, job: JobView) -> tuple[LearnerView, ...]:
    """Return the learners of the last attempt of `job` that ran, from the events of its controllers; none if it has no
    launch file. Raises OSError."""
    ran = [attempt for attempt in job.attempts if attempt.logs] or list(job.attempts)
    if not ran:
        return ()
    attempt = root.job(parse_job_id(job.id)).attempt(ran[-1].number)
    launch = read_launch(attempt)
    if launch is None and job.array and make_elements(root, job.array, [job.id]):
        launch = read_launch(attempt)
    if launch is None:
        return ()
    is_over = ran[-1].ended_at is not None or ran[-1].number < job.attempt
    return learner_list(launch, read_events(attempt), is_over=is_over)


def unrecorded_restarts(
    job: Job, attempt: AttemptDir, again: Sequence[StartedAgain], history: Sequence[HistoryEntry]
) -> list[tuple[float, str]]:
    """Return the time and the message of each restart of a learner that the history does not contain yet."""
    launch = read_launch(attempt)
    recorded = {entry.message for entry in history if entry.is_learner_restart_of(job.attempt)}
    said = ((one.at, describe_restart(one, launch)) for one in again)
    return [(at, message) for at, message in said if message not in recorded]


MOVES = frozenset({JobState.DOWNLOADING.value, JobState.PROCESSING.value, JobState.STORING.value})
"""States in which data may be transferred."""
MOST_BYTES = 10_000


TAIL_BYTES = 64 * 1024
"""How much of the first learner's metrics is read for its latest reports."""


def with_progress(root: Root, job: JobView) -> JobView:
    """Return `job` with the progress of its transfers, its GPUs, and its expected end according to its own reports.
    Raises OSError."""
    attempt = root.job(parse_job_id(job.id)).attempt(job.attempt)
    if job.state == JobState.PROCESSING:
        devices = gpu_devices(read_events(attempt)) if any(one.gpus for one in job.attempts[-1:]) else ()
        job = replace(job, expected_end=expected_end(_reports(attempt)), gpu_devices=devices)
    try:
        cell = find_object(attempt.moving, MOST_BYTES, below=attempt.path)
        what, said, at = cell["what"], cell["said"], cell["at"]
    except KeyError:
        return job
    if not is_time(at):
        return job
    return replace(job, moving=f"{what}: {said}" if said else str(what), moving_at=float(at))


def _reports(attempt: AttemptDir) -> list[tuple[float, float, float]]:
    """Return time, samples per second and remaining samples of the latest reports."""
    try:
        data, _ = read_end(attempt.learner_metrics(1), TAIL_BYTES, below=attempt.path)
    except NO_FILE:
        return []
    found = []
    for line in data.splitlines():
        try:
            records = [decode_record(line.decode("utf-8", "replace"))]
        except RecordError:  # the first and the last line may be torn, and users can write the file
            continue
        left = remaining_samples(records)
        found += [(at, speed, left) for at, speed in throughputs(records) if left is not None]
    return found
