"""When a job held what: runs, waits and lost work out of histories."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.usage_timeline import Asked, AttemptRecord, Loss, Run, Step, losses, timeline

P, D, Q = JobState.PENDING, JobState.DEPLOYING, JobState.QUEUED
DOWN, PROC, STORE = JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING
TWO = Asked(learners=2, gpus_each=1.0, gpus=2.0, cpus=8.0)


def steps(*entries: tuple[float, JobState, int], **causes: str) -> list[Step]:
    """Rows of a history; `causes` by the number of the row, as r3="requeued"."""
    said = [causes.get(f"r{number}", "progress") for number in range(len(entries))]
    return [Step(float(at), state, attempt, cause) for (at, state, attempt), cause in zip(entries, said, strict=True)]


def record(number: int = 1, **values: object) -> dict[int, AttemptRecord]:
    return {number: AttemptRecord(number, 0.0, **values)}  # type: ignore[arg-type]


DONE = steps((0, P, 0), (1, D, 1), (2, Q, 1), (10, DOWN, 1), (20, PROC, 1), (80, STORE, 1), (90, JobState.COMPLETED, 1))


def test_timeline_run_spans_first_phase_to_end_with_recorded_gpu_time() -> None:
    line = timeline(DONE, record(ended_at=90.0, gpu_seconds=160.0), TWO, now=1000)
    (run,) = line.runs
    assert (run.began, run.ended, run.gpus, run.cpus, run.end) == (10, 90, 2.0, 8.0, JobState.COMPLETED)
    assert run.phases == ((DOWN, 10.0, 20.0), (PROC, 20.0, 80.0), (STORE, 80.0, 90.0))
    assert line.waits == ((1, 0.0, 10.0),)
    assert line.alive == ((0.0, 90.0),)
    assert losses(line, record()) == []
    # Nodes that are asked for what the fullest needs have more GPUs than the learners.
    (more,) = timeline(DONE, record(ended_at=90.0, gpu_seconds=240.0), TWO, now=1000).runs
    assert more.gpus * more.length_s == pytest.approx(240.0)
    # What could not be stored beside it is stored afterwards, without its nodes.
    (early,) = timeline(DONE, record(ended_at=85.0), TWO, now=1000).runs
    assert (early.ended, early.phases[-1]) == (85.0, (STORE, 80, 85.0))


@pytest.mark.parametrize(("since", "until", "seconds"), [(0, 100, 80), (0, 50, 40), (85, 95, 5), (100, 200, 0)])
def test_run_and_loss_within_count_only_part_inside_period(since: float, until: float, seconds: float) -> None:
    (run,) = timeline(DONE, record(), TWO, now=1000).runs
    assert run.within(since, until) == seconds
    assert Loss(1, 20, 80, 2.0).within(70, 200) == 20.0


def test_timeline_counts_the_learners_that_an_elastic_job_had_at_each_time() -> None:
    sizes = ((0.0, 4), (50.0, 2))
    (run,) = timeline(DONE, record(sizes=sizes), TWO, now=1000).runs
    assert (run.gpus, run.cpus) == (3.0, 12.0)
    (now,) = timeline(DONE[:5], record(sizes=sizes), TWO, now=50).runs
    assert (now.gpus, now.cpus) == (4.0, 16.0)
    resized = [*DONE[:5], Step(50.0, PROC, 1, "resized"), *DONE[5:]]
    (same,) = timeline(resized, record(sizes=sizes), TWO, now=1000).runs
    assert same == run


def test_timeline_counts_running_job_up_to_now() -> None:
    line = timeline(DONE[:5], record(), TWO, now=50)
    (run,) = line.runs
    assert (run.began, run.ended, run.end) == (10, 50, None)
    assert line.alive == ((0.0, 50.0),)
    assert losses(line, record()) == []


def test_timeline_has_no_run_for_waiting_or_cancelled_pending_job() -> None:
    waiting = timeline(DONE[:3], record(), TWO, now=50)
    assert (waiting.runs, waiting.waits) == ((), ())
    gone = timeline(steps((0, P, 0), (5, JobState.CANCELLED, 0)), {}, TWO, now=50)
    assert (gone.runs, gone.waits, gone.alive) == ((), (), ((0.0, 5.0),))


def test_timeline_splits_requeued_attempt_into_two_runs() -> None:
    entries = steps(
        (0, P, 0), (1, D, 1), (2, Q, 1), (10, PROC, 1), (40, Q, 1), (50, PROC, 1), (70, JobState.COMPLETED, 1),
        r4="requeued",
    )  # fmt: skip
    line = timeline(entries, record(ended_at=70.0, gpu_seconds=60.0), TWO, now=1000)
    runs = [(run.began, run.ended, run.gpus, run.end) for run in line.runs]
    assert runs == [(10, 40, 2.0, Q), (50, 70, 3.0, JobState.COMPLETED)]
    assert line.waits == ((1, 0.0, 10.0), (1, 40.0, 50.0))
    assert losses(line, record(ended_at=70.0)) == [Loss(1, 10, 40, 2.0, Q)]


def test_timeline_has_one_run_per_attempt_despite_learner_restart() -> None:
    entries = steps(
        (0, P, 0), (1, D, 1), (2, Q, 1), (10, PROC, 1), (20, PROC, 1), (30, D, 2), (31, Q, 2), (40, PROC, 2),
        (60, JobState.HALTED, 2), r4="restarted", r5="requeued",
    )  # fmt: skip
    attempts = {
        1: AttemptRecord(1, 1.0, ended_at=30.0, interruption="timeout", saved_at=25.0),
        2: AttemptRecord(2, 30.0, ended_at=60.0, interruption="halt", saved_at=60.5),
    }
    line = timeline(entries, attempts, TWO, now=1000)
    assert [(run.attempt, run.began, run.ended) for run in line.runs] == [(1, 10, 30), (2, 40, 60)]
    assert line.waits == ((1, 0.0, 10.0), (2, 30.0, 40.0))
    assert losses(line, attempts) == [Loss(1, 25, 30, 2.0, D)]


def test_timeline_excludes_time_between_halt_and_resume() -> None:
    entries = steps(
        (0, P, 0), (1, D, 1), (10, PROC, 1), (20, JobState.HALTED, 1), (100, P, 1), (101, D, 2), (110, PROC, 2),
        (120, JobState.COMPLETED, 2), r4="resumed",
    )  # fmt: skip
    line = timeline(entries, {}, TWO, now=1000)
    assert line.alive == ((0.0, 20.0), (100.0, 120.0))
    assert line.waits == ((1, 0.0, 10.0), (2, 100.0, 110.0))


def test_timeline_derives_run_from_recorded_gpu_time_without_phases() -> None:
    entries = steps((0, P, 0), (1, D, 1), (2, Q, 1), (30, JobState.FAILED, 1))
    (run,) = timeline(entries, record(ended_at=30.0, gpu_seconds=20.0), TWO, now=1000).runs
    assert (run.began, run.ended, run.phases, run.end) == (20.0, 30.0, (), JobState.FAILED)


def test_timeline_counts_requested_gpus_for_run_without_length() -> None:
    entries = steps((0, P, 0), (1, D, 1), (10, DOWN, 1), (10, JobState.FAILED, 1))
    (run,) = timeline(entries, record(ended_at=10.0, gpu_seconds=3.0), TWO, now=1000).runs
    assert (run.length_s, run.gpus) == (0.0, 2.0)


def test_timeline_counts_no_gpus_for_staging_attempt() -> None:
    entries = steps((0, P, 0), (1, D, 1), (10, DOWN, 1), (30, D, 2), (40, PROC, 2), (60, JobState.COMPLETED, 2))
    attempts = {1: AttemptRecord(1, 1.0, ended_at=30.0, interruption="staged"), 2: AttemptRecord(2, 30.0)}
    line = timeline(entries, attempts, TWO, now=1000)
    assert [(run.gpus, run.cpus) for run in line.runs] == [(0.0, 4.0), (2.0, 8.0)]
    ahead = Asked(2, 1.0, 2.0, 8.0, stages_ahead=True)
    (now,) = timeline(entries[:3], {1: AttemptRecord(1, 1.0)}, ahead, now=20).runs
    assert now.gpus == 0.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [Loss(1, 20, 80, 2.0, JobState.FAILED)]),
        ({"saved_at": 60.0}, [Loss(1, 60, 80, 2.0, JobState.FAILED)]),
        ({"saved_at": 5.0}, [Loss(1, 20, 80, 2.0, JobState.FAILED)]),
        ({"saved_at": 85.0}, []),
        ({"outcome_code": "S303"}, []),
        ({"interruption": "staged"}, []),
    ],
)
def test_losses_count_time_after_last_checkpoint(values: dict[str, Any], expected: list[Loss]) -> None:
    run = Run(1, 10, 90, 2.0, 8.0, ((DOWN, 10, 20), (PROC, 20, 80), (STORE, 80, 90)), JobState.FAILED)
    line = timeline([*DONE[:-1], Step(90, JobState.FAILED, 1)], record(ended_at=90.0), TWO, now=1000)
    assert line.runs == (run,)
    assert losses(line, record(ended_at=90.0, **values)) == expected
