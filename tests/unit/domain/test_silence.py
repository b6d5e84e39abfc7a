"""When an attempt with silent controllers is abandoned, and how its end is described."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import AbandonMark, Event, EventKind, FinalRecord, Outcome
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.heartbeat_loss import (
    LONGEST_LOOK_S,
    Beat,
    Finding,
    Step,
    decide,
    is_widespread,
    look_every_s,
    moment,
    patience_s,
    quiet,
)
from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.domain.outcome.verdict import VerdictKind, judge
from tests.unit.domain.test_verdict import DONE, FAILED, OUTSIDE, RUN, facts, seen

NOW = 10_000.0
SILENT_S = 900.0
EVERY_S = look_every_s(SILENT_S)


def beat(age_s: float, node: str = "n3") -> Beat:
    return Beat(node, NOW - age_s)


def find(
    *beats: Beat, phase: Phase = Phase.RUNNING, unchanged_s: float | None = EVERY_S, crowd: bool = False
) -> Finding:
    return decide(quiet(beats, NOW, SILENT_S), phase, NOW, SILENT_S, unchanged_s, is_widespread=crowd)


# ------------------------------------------------------------------------------------------- the decision


def test_silence_check_interval_is_capped_and_timeout_has_minimum_of_several_heartbeats() -> None:
    assert (look_every_s(900.0), look_every_s(9000.0), look_every_s(3.0)) == (LONGEST_LOOK_S, LONGEST_LOOK_S, 1.0)
    assert (patience_s(900.0, 10.0), patience_s(5.0, 10.0), patience_s(9.0, 0.5)) == (900.0, 60.0, 9.0)


@pytest.mark.parametrize(
    ("age_s", "unchanged_s", "step"),
    [
        (0.0, EVERY_S, Step.NONE), (449.9, EVERY_S, Step.NONE), (450.0, None, Step.WARN),
        (899.9, EVERY_S, Step.WARN), (900.0, None, Step.WARN), (900.0, 0.0, Step.WARN),
        (900.0, EVERY_S - 0.1, Step.WARN), (900.0, EVERY_S, Step.ABANDON), (1e6, EVERY_S, Step.ABANDON),
        (1e6, None, Step.WARN),
    ],
)  # fmt: skip
def test_silence_decision_abandons_attempt_after_timeout_and_two_checks(
    age_s: float, unchanged_s: float | None, step: Step
) -> None:
    assert find(beat(age_s), unchanged_s=unchanged_s).step is step


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_silence_decision_ignores_old_heartbeat_unless_phase_is_running(phase: Phase) -> None:
    assert find(beat(1e6), phase=phase) == Finding(Step.NONE)


def test_silence_decision_reports_no_silence_without_heartbeats_or_with_one_in_the_future() -> None:
    assert find().step is Step.NONE
    assert find(beat(-1e6)).step is Step.NONE


def test_silence_decision_holds_attempt_when_many_attempts_are_silent() -> None:
    finding = find(beat(1e4), crowd=True)
    assert finding.step is Step.HOLD
    assert "file system" in finding.sentence


def test_silence_decision_names_only_silent_nodes() -> None:
    finding = find(beat(2.0, "n1"), beat(1000.0, "n2"), beat(500.0, "n3"))
    assert (finding.step, finding.nodes, finding.since) == (Step.ABANDON, ("n2",), NOW - 1000.0)
    both = find(beat(1000.0, "n2"), beat(950.0, "n3"), beat(960.0, "n3"))
    assert (both.nodes, both.since) == (("n2", "n3"), NOW - 950.0)


def test_silence_message_gives_last_heartbeat_and_planned_abandon_time() -> None:
    soon = find(beat(500.0), unchanged_s=None)
    assert soon.sentence == (
        f"nothing was heard of the controllers on n3 since {moment(NOW - 500.0)}; "
        f"the attempt will be abandoned at {moment(NOW + 400.0)}"
    )
    assert find(beat(5000.0), unchanged_s=None).at == NOW + EVERY_S
    assert find(beat(5000.0), unchanged_s=100.0).at == NOW + EVERY_S - 100.0
    assert find(beat(900.0)).sentence.endswith("the attempt is abandoned, and the scheduler is asked to cancel it")


@pytest.mark.parametrize(
    ("silent", "running", "crowd"),
    [
        ([], 0, False), (["n1"], 1, False), (["n1 n2"], 1, False), (["n1", "n1"], 2, False), (["n1", "n2"], 2, True),
        (["n1", "n2"], 3, True), (["n1", "n2"], 4, False), (["n1", "n1 n2", "n3"], 5, True),
        (["n1", "n1 n2", "n3"], 6, False),
    ],
)  # fmt: skip
def test_is_crowd_needs_most_attempts_on_several_nodes(silent: list[str], running: int, crowd: bool) -> None:
    assert is_widespread([[beat(1000.0, node) for node in nodes.split()] for nodes in silent], running) is crowd


# ------------------------------------------------------------------------------------------------ the end

MARK = AbandonMark(1, ("n3",), 25.0, 45.0)
WHY = f"nothing was heard of the controllers on n3 since {moment(25.0)}, and the attempt was abandoned"
FENCED = FinalRecord("7", Outcome.FAILED, 40.0, False, error_code="S106", message="the learners were killed")


def abandoned(
    observation: Observation | None,
    final: FinalRecord | None = None,
    requested_action: RequestedAction = RequestedAction.NONE,
    events: int = 2,
) -> AttemptFacts:
    found = facts(JobState.PROCESSING, observation, RUN[:events], final, requested_action)
    return replace(found, abandon_mark=MARK)


@pytest.mark.parametrize("final", [None, OUTSIDE, FENCED])
@pytest.mark.parametrize(
    "end", [EndCause.CANCELLED, EndCause.FAILURE, EndCause.NODE_FAIL, EndCause.TIMEOUT, EndCause.PREEMPTED]
)
def test_verdict_is_node_failure_for_abandoned_attempt_of_any_end(end: EndCause, final: FinalRecord | None) -> None:
    verdict = judge(abandoned(seen(Phase.ENDED, end), final))
    assert (verdict.kind, verdict.interruption, verdict.is_simulated) == (
        VerdictKind.ENDED,
        Interruption.NODE_FAILURE,
        False,
    )
    assert (verdict.error_code, verdict.message, verdict.has_lost_node) == ("S110", WHY, True)


def test_verdict_reports_node_failure_for_abandoned_and_forgotten_attempt() -> None:
    verdict = judge(replace(abandoned(None), is_forgotten=True))
    assert (verdict.interruption, verdict.message) == (Interruption.NODE_FAILURE, WHY)


@pytest.mark.parametrize(
    ("end", "final", "code", "why"),
    [
        (EndCause.CANCELLED, DONE, DONE.error_code, None),
        (EndCause.CANCELLED, FAILED, FAILED.error_code, Interruption.FAILURE),
        (EndCause.OUT_OF_MEMORY, None, "C202", Interruption.FAILURE),
    ],
)
def test_verdict_uses_final_record_or_memory_failure_of_abandoned_attempt_that_finished(
    end: EndCause, final: FinalRecord | None, code: str, why: Interruption | None
) -> None:
    verdict = judge(abandoned(seen(Phase.ENDED, end), final))
    assert (verdict.error_code, verdict.interruption) == (code, why)


def test_verdict_prefers_cancel_and_halt_requests_over_abandon_mark() -> None:
    ended = seen(Phase.ENDED, EndCause.CANCELLED)
    assert judge(abandoned(ended, requested_action=RequestedAction.CANCEL)).steps[-1][0] is JobState.CANCELLED
    halted = judge(abandoned(ended, requested_action=RequestedAction.HALT))
    assert (halted.steps[-1][0], halted.interruption) == (JobState.HALTED, Interruption.HALT)


def test_verdict_sets_pending_upload_for_abandoned_attempt_after_learners_ended() -> None:
    over = Event(4, 31.0, "node-0", EventKind.LEARNER_ENDED, {"learner_id": 1, "exit_code": 0})
    found = abandoned(seen(Phase.ENDED, EndCause.CANCELLED), events=3)
    verdict = judge(replace(found, events=(*RUN, over)))
    assert verdict.kind is VerdictKind.UPLOAD_PENDING


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING, Phase.UNKNOWN])
def test_verdict_keeps_abandoned_attempt_open_until_scheduler_ends_it_or_cannot_terminate_it(phase: Phase) -> None:
    assert judge(abandoned(seen(phase))).kind is VerdictKind.NONE
    verdict = judge(replace(abandoned(seen(Phase.COMPLETING)), is_unkillable=True))
    assert (verdict.kind, verdict.interruption, verdict.has_lost_node) == (
        VerdictKind.ENDED,
        Interruption.NODE_FAILURE,
        True,
    )
