"""The table of states: what is legal, and that everything else raises."""

from __future__ import annotations

import itertools

import pytest

from ffdl_batch.domain.job_state import (
    LIVE,
    TERMINAL,
    TRANSITIONS,
    Cause,
    IllegalTransition,
    JobState,
    advance,
    is_legal,
)

ORDER = [s for s in JobState if s in LIVE]


def test_every_state_is_live_or_terminal_and_has_a_row_for_every_cause() -> None:
    assert set(JobState) == LIVE | TERMINAL
    assert not LIVE & TERMINAL
    for cause in Cause:
        assert set(TRANSITIONS[cause]) == set(JobState)


@pytest.mark.parametrize(("earlier", "later"), list(itertools.combinations(ORDER, 2)))
def test_progress_may_jump_forward_and_never_back(earlier: JobState, later: JobState) -> None:
    assert advance(earlier, later) is later
    with pytest.raises(IllegalTransition, match=f"from {later} to {earlier}"):
        advance(later, earlier)


@pytest.mark.parametrize("end", sorted(TERMINAL))
@pytest.mark.parametrize("target", sorted(JobState))
def test_an_end_is_final_for_progress_and_requeue(end: JobState, target: JobState) -> None:
    assert not is_legal(end, target)
    assert not is_legal(end, target, Cause.REQUEUED)


@pytest.mark.parametrize("state", ORDER)
def test_a_live_job_may_end_in_every_way(state: JobState) -> None:
    assert all(is_legal(state, end) for end in TERMINAL)


def test_only_a_requeue_goes_back_and_only_a_resume_leaves_an_end() -> None:
    assert advance(JobState.PROCESSING, JobState.QUEUED, Cause.REQUEUED) is JobState.QUEUED
    assert not is_legal(JobState.QUEUED, JobState.PROCESSING, Cause.REQUEUED)
    assert advance(JobState.HALTED, JobState.PENDING, Cause.RESUMED) is JobState.PENDING
    assert not is_legal(JobState.COMPLETED, JobState.PENDING, Cause.RESUMED)
    assert not is_legal(JobState.PROCESSING, JobState.PENDING, Cause.RESUMED)
