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


def test_job_states_are_live_or_terminal_with_row_for_every_cause() -> None:
    assert set(JobState) == LIVE | TERMINAL
    assert not LIVE & TERMINAL
    for cause in Cause:
        assert set(TRANSITIONS[cause]) == set(JobState)


@pytest.mark.parametrize(("earlier", "later"), list(itertools.combinations(ORDER, 2)))
def test_advance_allows_progress_forward_only(earlier: JobState, later: JobState) -> None:
    assert advance(earlier, later) is later
    with pytest.raises(IllegalTransition, match=f"from {later} to {earlier}"):
        advance(later, earlier)


@pytest.mark.parametrize("end", sorted(TERMINAL))
@pytest.mark.parametrize("target", sorted(JobState))
def test_terminal_state_rejects_progress_and_requeue(end: JobState, target: JobState) -> None:
    assert not is_legal(end, target)
    assert not is_legal(end, target, Cause.REQUEUED)


@pytest.mark.parametrize("state", ORDER)
def test_live_state_may_end_in_every_terminal_state(state: JobState) -> None:
    assert all(is_legal(state, end) for end in TERMINAL)


def test_requeue_moves_only_backward() -> None:
    assert advance(JobState.PROCESSING, JobState.QUEUED, Cause.REQUEUED) is JobState.QUEUED
    assert not is_legal(JobState.QUEUED, JobState.PROCESSING, Cause.REQUEUED)


def test_terminal_state_is_left_only_on_user_request() -> None:
    """All pairs of all causes that begin at an end, or that an owner's word allows. Storing late leaves none."""
    ours = (Cause.RESUMED, Cause.CANCELLED)
    legal = {
        (current, target, cause)
        for current, target, cause in itertools.product(JobState, JobState, Cause)
        if (current in TERMINAL or cause in ours) and is_legal(current, target, cause)
    }
    assert legal == {
        (JobState.HALTED, JobState.PENDING, Cause.RESUMED),
        (JobState.FAILED, JobState.PENDING, Cause.RESUMED),
        (JobState.HALTED, JobState.CANCELLED, Cause.CANCELLED),
        *((end, end, Cause.STORED) for end in TERMINAL),
    }
