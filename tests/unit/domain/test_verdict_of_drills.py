"""Ends that a drill played, and ends in earnest of attempts on which one was played."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.continuation import Interruption
from ffdl_batch.domain.events import FinalRecord, GoesOn, Outcome
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.known import Known
from ffdl_batch.domain.observation import EndCause, Observation, Phase
from ffdl_batch.domain.verdict import Move, judge
from tests.unit.domain.test_verdict import ENDED_WELL, FAILED, OUTSIDE, RUN, known, seen


def drilled(observation: Observation, drill: str, final: FinalRecord | None = None) -> Known:
    found = known(JobState.PROCESSING, observation, RUN[:2], final)
    return replace(found, evidence=replace(found.evidence, drill=drill))


KILLED = FinalRecord("7", Outcome.FAILED, 40.0, False, error_code="S106", message="it died without a word")


@pytest.mark.parametrize(
    ("drill", "end", "final", "why", "message"),
    [
        ("preempt", EndCause.FAILURE, OUTSIDE, Interruption.PREEMPTION, "a drill played a preemption"),
        ("preempt", EndCause.CANCELLED, OUTSIDE, Interruption.PREEMPTION, "a drill played a preemption"),
        ("preempt", EndCause.CANCELLED, None, Interruption.PREEMPTION, "a drill played a preemption"),
        ("node-fail", EndCause.FAILURE, KILLED, Interruption.NODE_FAILURE, "a drill played a node failure"),
        ("node-fail", EndCause.FAILURE, None, Interruption.NODE_FAILURE, "a drill played a node failure"),
    ],
)
def test_verdict_marks_interruption_caused_by_drill_as_played(
    drill: str, end: EndCause, final: FinalRecord | None, why: Interruption, message: str
) -> None:
    verdict = judge(drilled(seen(Phase.ENDED, end), drill, final))
    assert (verdict.interruption, verdict.played, verdict.message) == (why, True, message)
    code = {Interruption.PREEMPTION: "S111", Interruption.NODE_FAILURE: "S110"}[why]
    assert (verdict.error_code, verdict.lost_node) == (code, False)


@pytest.mark.parametrize("drill", ["preempt", "node-fail", "timeout"])
@pytest.mark.parametrize(
    ("end", "why"), [(EndCause.NODE_FAIL, Interruption.NODE_FAILURE), (EndCause.PREEMPTED, Interruption.PREEMPTION)]
)
def test_verdict_does_not_mark_scheduler_interruption_as_drill(drill: str, end: EndCause, why: Interruption) -> None:
    verdict = judge(drilled(seen(Phase.ENDED, end), drill, OUTSIDE))
    assert (verdict.interruption, verdict.played) == (why, False)


@pytest.mark.parametrize(
    ("end", "final", "why"),
    [
        (EndCause.CANCELLED, OUTSIDE, None),
        (EndCause.FAILURE, KILLED, Interruption.NODE_FAILURE),
        (EndCause.FAILURE, FAILED, Interruption.FAILURE),
        (EndCause.TIMEOUT, None, Interruption.TIMEOUT),
    ],
)
def test_verdict_ignores_timeout_drill_if_final_record_lacks_drill_mark(
    end: EndCause, final: FinalRecord | None, why: Interruption | None
) -> None:
    verdict = judge(drilled(seen(Phase.ENDED, end), "timeout", final))
    assert (verdict.interruption, verdict.played) == (why, False)


@pytest.mark.parametrize("goes_on", [GoesOn.SUCCESSOR, GoesOn.PLATFORM, GoesOn.NO])
def test_verdict_takes_played_timeout_from_final_record_unless_halt_was_requested(goes_on: GoesOn) -> None:
    final = FinalRecord(
        "7", Outcome.HALTED, 40.0, True, goes_on=goes_on, interruption="timeout", played=True, message="said"
    )
    verdict = judge(drilled(seen(Phase.ENDED, EndCause.SUCCESS), "timeout", final))
    assert (verdict.interruption, verdict.played, verdict.message) == (Interruption.TIMEOUT, True, "said")
    wished = judge(replace(drilled(ENDED_WELL, "timeout", replace(final, goes_on=GoesOn.NO)), wish=Wish.HALT))
    assert (wished.interruption, wished.played) == (Interruption.HALT, False)


def test_verdict_marks_requeue_after_played_timeout_as_drill() -> None:
    final = FinalRecord(
        "7", Outcome.HALTED, 40.0, True, goes_on=GoesOn.REQUEUE, interruption="timeout", played=True, message="said"
    )
    waits = Observation(Phase.PENDING, "PENDING", restarts=1)
    verdict = judge(drilled(waits, "", final))
    assert (verdict.move, verdict.interruption, verdict.played) == (Move.REQUEUED, Interruption.TIMEOUT, True)
    again = judge(drilled(waits, "", replace(final, played=False)))
    assert not again.played
