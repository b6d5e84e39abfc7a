"""What a request for a checkpoint led to, from events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.attempt.conclusion import StepEnd, conclude
from ffdl_batch.attempt.learner_endings import answer, endings_of_run
from ffdl_batch.domain.launch.launch_file import LaunchFile, Pod
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Outcome, Scalar
from tests.unit.controller.rig import launch_file

K = EventKind
LIMITS = Limits(grace_s=30, lead_s=60, time_s=None)


def launch(learners: int = 1) -> LaunchFile:
    return launch_file(learners=learners, nodes=learners, limits=LIMITS)


def ev(kind: EventKind, at: float, node: int = 0, **fields: Scalar) -> Event:
    return Event(int(at * 10), at, f"node-{node}", kind, fields)


def started(learner: int = 1, at: float = 1.0) -> list[Event]:
    return [ev(K.STARTED, at, learner - 1, host="h"), ev(K.LEARNER_STARTED, at + 0.1, learner - 1, learner_id=learner)]


def asked(reason: str, at: float = 2.0, node: int = 0) -> Event:
    return ev(K.ASKED, at, node, reason=reason)


def ended(learner: int = 1, at: float = 3.0, **fields: Scalar) -> Event:
    body: dict[str, Scalar] = {"learner_id": learner, "exit_code": 0, "ended_by": "", "asked": "", "signalled": False}
    return ev(K.LEARNER_ENDED, at, learner - 1, **{**body, **fields})


def report(node: int = 0, at: float = 4.0, **fields: Scalar) -> Event:
    body: dict[str, Scalar] = {"asked": True, "confirmed": False, "answered": True, "took_s": 1.0, "saved_at": None}
    return ev(K.CHECKPOINT, at, node, **{**body, **fields})


CONFIRMED = report(confirmed=True, saved_at=2.5, newest="c.pt")
NONE = report()
SIGNALLED = {"signalled": True}
STORED = ev(K.STORED, 5.0, learner_id=1)


@pytest.mark.parametrize(
    ("reason", "ending", "said", "outcome", "interruption", "code"),
    [
        ("halt", {}, CONFIRMED, Outcome.HALTED, "halt", "000"),
        ("halt", {}, NONE, Outcome.COMPLETED, "", "000"),
        ("halt", SIGNALLED, NONE, Outcome.HALTED, "halt", "000"),
        ("halt", {"exit_code": 3}, CONFIRMED, Outcome.HALTED, "halt", "000"),
        ("halt", {"exit_code": 3}, NONE, Outcome.FAILED, "", "C201"),
        ("halt", {"exit_code": 137, "out_of_memory": True}, CONFIRMED, Outcome.FAILED, "", "C202"),
        ("halt", {"exit_code": 143, "ended_by": "halt"}, NONE, Outcome.HALTED, "halt", "000"),
        ("warned", {}, CONFIRMED, Outcome.HALTED, "timeout", "000"),
        ("warned", {}, NONE, Outcome.COMPLETED, "", "000"),
        ("warned", SIGNALLED, NONE, Outcome.HALTED, "timeout", "000"),
        ("warned", {"exit_code": 143, "ended_by": "warned"}, NONE, Outcome.TIMED_OUT, "timeout", "C203"),
        ("time", {"exit_code": 143, "ended_by": "time"}, NONE, Outcome.TIMED_OUT, "timeout", "C203"),
        ("warned", {"exit_code": 143, "ended_by": "term"}, NONE, Outcome.CANCELLED, "", "000"),
        ("term", {}, CONFIRMED, Outcome.CANCELLED, "", "000"),
        ("term", {}, NONE, Outcome.COMPLETED, "", "000"),
        ("term", SIGNALLED, NONE, Outcome.CANCELLED, "", "000"),
    ],
)
def test_conclude_maps_checkpoint_request_and_learner_end_to_outcome(
    reason: str, ending: dict[str, Scalar], said: Event, outcome: Outcome, interruption: str, code: str
) -> None:
    events = [*started(), asked(reason), ended(asked=reason, **ending), said, STORED]  # type: ignore[arg-type]
    found = conclude(launch(), events, False)
    assert (found.outcome, found.interruption, found.error_code) == (outcome, interruption, code)
    assert found.stored


def test_conclude_reports_halt_without_checkpoint_after_grace_period() -> None:
    events = [*started(), asked("halt"), ended(asked="halt", exit_code=143, ended_by="halt"), report(answered=False)]
    found = conclude(launch(), events, False)
    over = "the grace period of 30 s was over, and learner 1 had to be ended"
    assert found.message == f"halted on request; no checkpoint was confirmed; {over}"
    assert (found.checkpoint.asked, found.checkpoint.answered, found.checkpoint.confirmed) == (True, False, False)


def test_conclude_reports_learner_that_failed_after_checkpoint_request() -> None:
    events = [*started(), asked("halt"), ended(asked="halt", exit_code=3), NONE, STORED]
    said = "learner 1 ended with exit code 3, asked for a checkpoint, without leaving a new one"
    assert conclude(launch(), events, False).message == said


def test_conclude_returns_details_of_confirmed_checkpoint() -> None:
    found = conclude(launch(), [*started(), asked("warned"), ended(asked="warned"), CONFIRMED, STORED], False)
    told = found.checkpoint
    assert (told.confirmed, told.answered, told.took_s, told.saved_at, told.newest) == (True, True, 1.0, 2.5, "c.pt")
    assert found.message.endswith("checkpoint confirmed after 1.0 s (newest file: c.pt)")


def test_conclude_reports_checkpoint_lost_with_pod() -> None:
    in_pod = replace(launch(), pod=Pod("/ffdl-pod"))
    events = [*started(), asked("halt"), ended(asked="halt"), CONFIRMED, STORED]
    gone = "checkpoint confirmed after 1.0 s (newest file: c.pt), and gone with its pod: no store and no claim keeps it"
    assert conclude(in_pod, events, False).message.endswith(gone)
    in_claim = replace(in_pod, pod=Pod("/ffdl-pod", apart=False))
    assert conclude(in_claim, events, False).message.endswith("confirmed after 1.0 s (newest file: c.pt)")


@pytest.mark.parametrize(
    ("saved_by", "pod", "second", "said"),
    [
        ("all", None, {}, "checkpoint confirmed"),
        ("all", Pod("/ffdl-pod"), {}, "no checkpoint was confirmed by all learners: learner 2 did not"),
        ("first", Pod("/ffdl-pod"), {}, "checkpoint confirmed"),
        ("all", None, {"ended_by": "halt", "exit_code": 143}, "by all learners: learner 2 did not"),
        ("first", None, {"ended_by": "halt", "exit_code": 143}, "checkpoint confirmed"),
    ],
)
def test_conclude_confirms_checkpoint_that_every_saver_confirmed(
    saved_by: str, pod: Pod | None, second: dict[str, Scalar], said: str
) -> None:
    gang = replace(launch(2), pod=pod, checkpoint_saved_by=saved_by)
    ends = [ended(asked="halt"), ended(2, **{"asked": "halt", **second})]  # type: ignore[arg-type]
    events = [*started(), *started(2), asked("halt"), asked("halt", node=1), *ends, CONFIRMED, report(1)]
    found = conclude(gang, events, False)
    assert said in found.message and found.checkpoint.confirmed == (said == "checkpoint confirmed"), found


def test_conclude_reports_preemption_if_deleted_pod_hears_no_other() -> None:
    gang = replace(launch(2), pod=Pod("/ffdl-pod"))
    events = [*started(), *started(2), asked("warned"), ended(asked="warned"), CONFIRMED, STORED]
    found = conclude(gang, events, False, step=StepEnd(unheard=True))
    assert (found.outcome, found.interruption, found.error_code) == (Outcome.HALTED, "preemption", "000")
    assert not found.checkpoint.confirmed
    assert conclude(gang, events, False).error_code == "S106"


@pytest.mark.parametrize(
    ("left_s", "interruption"), [(None, "timeout"), (60.0, "timeout"), (179.0, "timeout"), (181.0, "preemption")]
)
def test_conclude_distinguishes_preemption_from_timeout_by_time_left(left_s: float | None, interruption: str) -> None:
    events = [*started(), asked("warned", 2.0), ended(asked="warned"), CONFIRMED, STORED]
    found = conclude(launch(), events, False, None if left_s is None else 2.0 + left_s)
    assert (found.outcome, found.interruption) == (Outcome.HALTED, interruption)


def test_conclude_reports_preemption_of_learner_without_answer() -> None:
    events = [*started(), asked("warned"), ended(asked="warned", ended_by="warned", exit_code=143), NONE, STORED]
    found = conclude(launch(), events, False, 10_000.0)
    assert (found.outcome, found.interruption, found.checkpoint.confirmed) == (Outcome.HALTED, "preemption", False)


def test_conclude_prefers_halt_over_earlier_warning() -> None:
    events = [*started(), asked("warned"), asked("halt", 2.5), ended(asked="halt"), CONFIRMED, STORED]
    assert conclude(launch(), events, False).interruption == "halt"


def two(second: Event, *more: Event) -> list[Event]:
    return [*started(1), *started(2), asked("warned"), asked("warned", node=1), ended(1, asked="warned"), second,
            CONFIRMED, *more]  # fmt: skip


def test_answer_confirms_checkpoint_only_if_every_learner_ends_itself() -> None:
    found = answer(launch(2), two(ended(2, 3.5, asked="warned"), report(1, took_s=7.0)))
    assert (found.checkpoint.confirmed, found.checkpoint.took_s) == (True, 7.0)
    found = answer(launch(2), two(ended(2, 3.5, asked="warned", ended_by="warned", exit_code=137)))
    assert (found.checkpoint.confirmed, found.fresh, found.reacted) == (False, True, True)


@pytest.mark.parametrize("late", [0, 1], ids=["first node", "other node"])
def test_answer_confirms_checkpoint_seen_by_only_one_node(late: int) -> None:
    """Each node looks when its own learners have ended, and a file may be completed after that."""
    events = [*started(1), *started(2), asked("warned"), asked("warned", node=1), ended(1, asked="warned"),
              ended(2, 3.5, asked="warned"), report(1 - late, saved_at=1.5, newest="early"),
              report(late, 4.5, confirmed=True, saved_at=3.4, newest="late")]  # fmt: skip
    told = answer(launch(2), events)
    assert told.fresh
    assert (told.checkpoint.confirmed, told.checkpoint.saved_at, told.checkpoint.newest) == (True, 3.4, "late")
    assert conclude(launch(2), events, False).outcome is Outcome.HALTED


def test_answer_confirms_no_checkpoint_if_no_node_has_seen_one() -> None:
    events = two(ended(2, 3.5, asked="warned"), report(1))
    events.remove(CONFIRMED)
    found = answer(launch(2), [*events, NONE]).checkpoint
    assert (found.confirmed, found.answered, found.saved_at, found.newest) == (False, True, None, "")


def test_conclude_fails_if_node_dies_after_warning() -> None:
    found = conclude(launch(2), two(ev(K.PHASE, 3.5, 1, phase="x")), False)
    assert (found.outcome, found.error_code, found.checkpoint.asked) == (Outcome.FAILED, "S106", True)


@pytest.mark.parametrize("reason", ["halt", "warned", "time", "term"])
def test_conclude_maps_end_before_learner_start_to_outcome(reason: str) -> None:
    expected = {"halt": Outcome.HALTED, "warned": Outcome.TIMED_OUT, "time": Outcome.TIMED_OUT}
    fault = ev(K.FAULT, 2.0, code="", message="ended before the learners started", ended_by=reason)
    found = conclude(launch(), [ev(K.STARTED, 1.0), fault], False)
    assert found.outcome is expected.get(reason, Outcome.CANCELLED)


def test_answer_ignores_checkpoint_request_of_earlier_run() -> None:
    first = [*started(), asked("warned"), ended(asked="warned"), CONFIRMED, STORED]
    again = [ev(K.STARTED, 10.0, host="h")]
    assert endings_of_run([*first, *again]) == {}
    assert not answer(launch(), [*first, *again]).checkpoint.asked
    halted = ev(K.FAULT, 11.0, code="", message="halted before the learners started", ended_by="halt")
    found = conclude(launch(), [*first, *again, halted], False)
    assert (found.outcome, found.interruption) == (Outcome.HALTED, "halt")
    done = [*again, *started(at=12.0), ended(at=13.0), ev(K.STORED, 14.0, learner_id=1)]
    assert conclude(launch(), [*first, *done], False).outcome is Outcome.COMPLETED


def test_conclude_keeps_completed_learner_in_new_run() -> None:
    events = [*started(), ended(), ev(K.STARTED, 10.0, host="h"), ev(K.STORED, 11.0, learner_id=1)]
    assert conclude(launch(), events, False).outcome is Outcome.COMPLETED


def test_conclude_names_time_limit_of_launch_file() -> None:
    own = replace(launch(), limits=replace(LIMITS, time_s=90))
    events = [*started(), asked("warned"), ended(asked="warned", ended_by="time", exit_code=143), NONE]
    assert "the time limit of 90 s was reached" in conclude(own, events, False, 95.0).message


def test_endings_of_run_drops_learner_that_failed_on_unfit_node() -> None:
    failed = ended(exit_code=255, code="S107")
    again = [ev(K.STARTED, 10.0, host="h")]
    assert list(endings_of_run([*started(), failed])) == [1]
    assert endings_of_run([*started(), failed, *again]) == {}
    assert list(endings_of_run([*started(), ended(exit_code=255, code="S103"), *again])) == [1]
