"""Attempts that the scheduler starts again, or that their head continues before the scheduler reports their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Interruption, Spent
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, GoesOn, Outcome, is_final
from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.domain.outcome.verdict import VerdictKind, judge
from tests.unit.domain.test_verdict import DONE, FAILED, NOW, OUTSIDE, RUN, WAITS, claim, event, facts, halted, seen

CONTROLLER_LOST = FinalRecord("7", Outcome.FAILED, 40.0, False, error_code="S106")
SECOND = [claim(1, 1.0, 0), *RUN[:2], claim(2, 500.0, 1), event(4, "learner", 520.0)]
SAVED = halted(45.0, goes_on=GoesOn.REQUEUE, interruption="timeout")


def runs(restarts: int, submitted_at: float | None = None) -> Observation:
    return Observation(Phase.RUNNING, "RUNNING", restarts=restarts, submitted_at=submitted_at)


def test_verdict_returns_to_queued_once_per_requeue_and_ignores_old_phases() -> None:
    back = judge(facts(JobState.PROCESSING, seen(Phase.PENDING), RUN[:2]))
    assert (back.steps, back.cause) == (((JobState.QUEUED, NOW),), Cause.REQUEUED)
    claims = [Event(1, 1.0, "head", EventKind.CLAIMED), *RUN[:2], Event(2, 500.0, "head", EventKind.CLAIMED)]
    again = [*claims, event(4, "learner", 520.0)]
    assert judge(facts(JobState.QUEUED, seen(Phase.PENDING), claims)).steps == ()
    assert judge(facts(JobState.QUEUED, seen(Phase.RUNNING), again)).steps == ((JobState.PROCESSING, 520.0),)


ENDED_AGAIN = Observation(Phase.ENDED, "COMPLETED", EndCause.SUCCESS, restarts=1, ended_at=600.0)


@pytest.mark.parametrize("final", [OUTSIDE, CONTROLLER_LOST])
def test_verdict_ignores_final_record_from_before_restart(final: FinalRecord) -> None:
    found = replace(facts(JobState.PROCESSING, ENDED_AGAIN, SECOND, final), requeues=1)
    verdict = judge(found)
    assert (verdict.error_code, verdict.interruption) == ("S106", Interruption.NODE_FAILURE)
    assert judge(replace(found, is_settled=False)).steps == ()


def test_verdict_keeps_final_outcome_when_scheduler_restarts_job() -> None:
    assert judge(facts(JobState.STORING, ENDED_AGAIN, RUN, DONE)).steps[-1][0] is JobState.COMPLETED
    assert is_final(DONE) and is_final(FAILED)
    assert not is_final(OUTSIDE)
    assert not is_final(halted(goes_on=GoesOn.REQUEUE))


@pytest.mark.parametrize(
    ("final", "why"),
    [
        (None, Interruption.NODE_FAILURE),
        (OUTSIDE, Interruption.PREEMPTION),
        (CONTROLLER_LOST, Interruption.NODE_FAILURE),
        (halted(goes_on=GoesOn.REQUEUE, interruption="timeout", message="m"), Interruption.TIMEOUT),
    ],
)
def test_verdict_adopts_requeue_with_interruption_of_final_record(final: FinalRecord | None, why: Interruption) -> None:
    verdict = judge(facts(JobState.PROCESSING, WAITS, RUN[:2], final))
    at = NOW if final is None else final.at
    assert (verdict.steps, verdict.kind, verdict.interruption) == (((JobState.QUEUED, at),), VerdictKind.REQUEUED, why)
    known = replace(facts(JobState.QUEUED, WAITS, RUN[:2], final), requeues=1)
    assert judge(known).steps == (), "phases of the run before must not come back"


def test_verdict_adopts_requeue_after_final_record_silence_or_next_claim() -> None:
    loud = replace(facts(JobState.PROCESSING, WAITS, RUN[:2]), is_silent=False)
    assert judge(loud).kind is VerdictKind.NONE
    assert judge(replace(loud, is_silent=True)).interruption is Interruption.NODE_FAILURE
    assert judge(replace(loud, events=RUN[:2], final_record=OUTSIDE)).interruption is Interruption.PREEMPTION
    assert judge(replace(loud, events=SECOND)).kind is VerdictKind.REQUEUED, "the next run began"


def test_verdict_adopts_unseen_restart_before_its_phases() -> None:
    again = facts(JobState.PROCESSING, runs(1), SECOND)
    assert judge(again).kind is VerdictKind.REQUEUED
    assert judge(replace(again, state=JobState.QUEUED, requeues=1)).steps == ((JobState.PROCESSING, 520.0),)


@pytest.mark.parametrize(
    ("observation", "events", "final", "at"),
    [
        pytest.param(replace(WAITS, submitted_at=50.0), RUN[:2], SAVED, 50.0, id="waits"),
        pytest.param(runs(1, 50.0), SECOND, None, 50.0, id="runs"),
        pytest.param(replace(WAITS, submitted_at=5.0), RUN[:2], SAVED, 45.0, id="first-submission"),
        pytest.param(runs(2, 600.0), SECOND, SAVED, 45.0, id="second-requeue"),
        pytest.param(runs(2, 600.0), SECOND, None, 500.0, id="only-the-claim"),
        pytest.param(None, SECOND, replace(OUTSIDE, at=700.0, restart=1), 500.0, id="later-record"),
        pytest.param(replace(WAITS, submitted_at=NOW + 9.0), RUN[:2], SAVED, NOW, id="ahead"),
        pytest.param(WAITS, RUN[:2], None, NOW, id="nothing"),
    ],
)
def test_verdict_dates_requeue_by_submission_record_or_claim(
    observation: Observation | None, events: Sequence[Event], final: FinalRecord | None, at: float
) -> None:
    verdict = judge(facts(JobState.PROCESSING, observation, events, final))
    assert (verdict.kind, verdict.steps) == (VerdictKind.REQUEUED, ((JobState.QUEUED, at),))


def test_verdict_ends_held_job_as_node_failure_at_its_final_record_without_halt_request() -> None:
    held = Observation(Phase.PENDING, "PENDING", reason="JobHoldMaxRequeue", restarts=5, held_for_good=True)
    verdict = judge(facts(JobState.PROCESSING, held, RUN[:2]))
    assert (verdict.is_held, verdict.interruption) == (True, Interruption.NODE_FAILURE)
    assert "JobHoldMaxRequeue" in verdict.message
    dated = judge(facts(JobState.PROCESSING, held, RUN[:2], replace(OUTSIDE, restart=4)))
    assert (dated.is_held, dated.steps[-1]) == (True, (JobState.FAILED, OUTSIDE.at))
    assert not judge(facts(JobState.QUEUED, held, RUN[:2], requested_action=RequestedAction.HALT)).is_held


def test_verdict_follows_continuation_before_scheduler_reports_end() -> None:
    final = halted(goes_on=GoesOn.SUCCESSOR, interruption="preemption", spent=Spent(preemptions=1))
    verdict = judge(facts(JobState.QUEUED, seen(Phase.RUNNING), RUN, final))
    assert (verdict.kind, verdict.interruption) == (VerdictKind.CONTINUED, Interruption.PREEMPTION)
    assert [state for state, _ in verdict.steps] == [JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING]


@pytest.mark.parametrize(("asked", "why"), [(False, Interruption.NODE_FAILURE), (True, Interruption.PREEMPTION)])
def test_verdict_adopts_unseen_requeue_before_continuation(asked: bool, why: Interruption) -> None:
    request = [Event(3, 30.0, "node-0", EventKind.ASKED, {"reason": "term"})] if asked else []
    events = [*SECOND[:3], *request, *SECOND[3:]]
    final = halted(600.0, restart=1, goes_on=GoesOn.SUCCESSOR, interruption="timeout", spent=Spent())
    found = facts(JobState.PROCESSING, None, events, final)
    first, then = judge(found), judge(replace(found, state=JobState.QUEUED, requeues=1))
    assert (first.kind, first.interruption) == (VerdictKind.REQUEUED, why)
    assert (then.kind, then.interruption) == (VerdictKind.CONTINUED, Interruption.TIMEOUT)
