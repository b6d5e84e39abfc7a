"""Ends that a drill simulated, and real ends of attempts on which a drill was made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import FinalRecord, GoesOn, Outcome
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.domain.outcome.verdict import VerdictKind, judge
from tests.unit.domain.test_verdict import ENDED_WELL, FAILED, OUTSIDE, RUN, WAITS, facts, seen


def drilled(
    observation: Observation,
    drill: str,
    final: FinalRecord | None = None,
    asked: RequestedAction = RequestedAction.NONE,
) -> AttemptFacts:
    found = facts(JobState.PROCESSING, observation, RUN[:2], final, asked)
    return replace(found, drill_event=drill)


def halted(goes_on: GoesOn) -> FinalRecord:
    """The record of an attempt on which a drill simulated a time limit."""
    return FinalRecord(
        "7", Outcome.HALTED, 40.0, True, goes_on=goes_on, interruption="timeout", simulated=True, message="m"
    )


KILLED = FinalRecord("7", Outcome.FAILED, 40.0, False, error_code="S106", message="it died without a word")


@pytest.mark.parametrize(
    ("drill", "end", "final"),
    [
        ("preempt", EndCause.FAILURE, OUTSIDE),
        ("preempt", EndCause.CANCELLED, OUTSIDE),
        ("preempt", EndCause.CANCELLED, None),
        ("node-fail", EndCause.FAILURE, KILLED),
        ("node-fail", EndCause.FAILURE, None),
    ],
)
def test_verdict_marks_interruption_by_drill_as_played(drill: str, end: EndCause, final: FinalRecord | None) -> None:
    verdict = judge(drilled(seen(Phase.ENDED, end), drill, final))
    why, code, message = {
        "preempt": (Interruption.PREEMPTION, "S111", "a drill simulated a preemption"),
        "node-fail": (Interruption.NODE_FAILURE, "S110", "a drill simulated a node failure"),
    }[drill]
    assert (verdict.interruption, verdict.is_simulated, verdict.message) == (why, True, message)
    assert (verdict.error_code, verdict.has_lost_node) == (code, False)


@pytest.mark.parametrize("drill", ["preempt", "node-fail", "timeout"])
@pytest.mark.parametrize(
    ("end", "why"), [(EndCause.NODE_FAIL, Interruption.NODE_FAILURE), (EndCause.PREEMPTED, Interruption.PREEMPTION)]
)
def test_verdict_does_not_mark_scheduler_interruption_as_drill(drill: str, end: EndCause, why: Interruption) -> None:
    verdict = judge(drilled(seen(Phase.ENDED, end), drill, OUTSIDE))
    assert (verdict.interruption, verdict.is_simulated) == (why, False)


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
    assert (verdict.interruption, verdict.is_simulated) == (why, False)


@pytest.mark.parametrize("goes_on", [GoesOn.SUCCESSOR, GoesOn.PLATFORM, GoesOn.NO])
def test_verdict_takes_simulated_timeout_from_final_record_unless_halt_was_requested(goes_on: GoesOn) -> None:
    verdict = judge(drilled(ENDED_WELL, "timeout", halted(goes_on)))
    assert (verdict.interruption, verdict.is_simulated, verdict.message) == (Interruption.TIMEOUT, True, "m")
    requested = judge(drilled(ENDED_WELL, "timeout", halted(GoesOn.NO), RequestedAction.HALT))
    assert (requested.interruption, requested.is_simulated) == (Interruption.HALT, False)


@pytest.mark.parametrize("simulated", [True, False])
def test_verdict_marks_requeue_after_simulated_timeout_as_drill(simulated: bool) -> None:
    verdict = judge(drilled(WAITS, "", replace(halted(GoesOn.REQUEUE), simulated=simulated)))
    assert (verdict.kind, verdict.interruption, verdict.is_simulated) == (
        VerdictKind.REQUEUED,
        Interruption.TIMEOUT,
        simulated,
    )
