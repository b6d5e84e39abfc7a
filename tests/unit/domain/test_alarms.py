"""Incidents that end nothing, by the events of an attempt."""

from __future__ import annotations

from ffdl_batch.domain.alarms import alarms
from ffdl_batch.domain.events import Event, EventKind, Scalar


def event(seq: int, kind: EventKind, **fields: Scalar) -> Event:
    return Event(seq, 1000.0 + seq, "node-0", kind, fields)


def pace(seq: int, learner: int, step_s: float, *, steady: bool = True) -> Event:
    return event(seq, EventKind.PACE, learner_id=learner, host=f"n{learner}", step_s=step_s, steady=steady)


def hang(seq: int, learner: int, silent_s: Scalar) -> Event:
    return event(seq, EventKind.HANG, learner_id=learner, host=f"n{learner}", silent_s=silent_s, idle=False)


def test_hang_alarm_names_stack_end_and_file_of_all_stacks() -> None:
    stack = "Thread 1 (idle)\n    wait (threading.py:355)\n    all_reduce (train.py:12)"
    told = event(
        3, EventKind.HANG, learner_id=2, host="n1", silent_s=1800.4, idle=True, stack=stack, file="stacks-1800s.txt"
    )
    [found] = alarms("training-x", 1, [event(1, EventKind.STARTED), told])
    assert (found.kind, found.episode, found.learner, found.nodes) == ("user.hang", "hang-1", 2, ("n1",))
    assert (found.at, found.code) == (1003.0, "000")
    assert found.message == "learner 2 on n1 gave no sign of life for 1800 s, and computes nothing"
    assert found.evidence[1].text == "all stacks: stacks-1800s.txt in its $LOG_DIR"
    assert found.evidence[-1].text.endswith("all_reduce (train.py:12)")


def test_hang_alarms_number_repeated_hangs_of_one_learner() -> None:
    again = [hang(100, 1, 60.0), hang(400, 1, 60.0)]
    assert [(one.episode, one.at) for one in alarms("training-x", 1, again)] == [("hang-1", 1100.0), ("hang-2", 1400.0)]


def test_hang_alarm_merges_simultaneous_hangs_of_learners() -> None:
    """A collective operation that never ends has all of them, and nobody wants 64 mails of it."""
    together = [hang(100, 3, 60.0), hang(103, 1, 60.0), hang(109, 2, 60.0), hang(160, 4, 60.0)]
    [found] = alarms("training-x", 1, together)
    assert (found.learner, found.nodes, found.at) == (3, ("n3",), 1100.0)
    assert [one.episode for one in alarms("training-x", 1, [*together, hang(300, 1, 60.0)])] == ["hang-1", "hang-2"]


def test_alarms_ignore_values_that_are_not_numbers() -> None:
    """Events are in files that are the user's."""
    [found] = alarms("training-x", 1, [hang(1, 1, "long")])
    assert "no sign of life for 0 s" in found.message
    assert alarms("training-x", 1, [pace(1, 1, float("nan")), pace(2, 2, 1.0), pace(3, 3, float("inf"))]) == []


def test_straggler_alarm_is_absent_if_all_learners_slow_down_together() -> None:
    """Nodes look a minute apart: what one tells is compared when the others have looked, too."""
    before = [pace(1, 1, 1.0), pace(2, 2, 1.0), pace(3, 3, 1.0)]
    changed = [pace(70, 1, 3.0, steady=False), pace(80, 2, 3.0, steady=False), pace(120, 3, 3.0, steady=False)]
    settled = [pace(130, 1, 3.0), pace(140, 2, 3.0), pace(180, 3, 3.0)]
    assert alarms("training-x", 1, [*before, *changed, *settled]) == []


def test_straggler_alarm_waits_until_slowdown_is_steady() -> None:
    before = [pace(1, 1, 1.0), pace(2, 2, 1.0), pace(3, 3, 1.0), pace(70, 1, 3.0, steady=False)]
    assert alarms("training-x", 1, before) == []
    [found] = alarms("training-x", 1, [*before, pace(130, 1, 3.0)])
    assert (found.learner, found.at) == (1, 1130.0)


def test_straggler_alarm_reports_slow_learner_once() -> None:
    events = [pace(1, 1, 1.0), pace(2, 2, 1.1), pace(3, 3, 1.9), pace(4, 4, 1.0), pace(5, 3, 2.5)]
    [found] = alarms("training-x", 1, events)
    assert (found.kind, found.episode, found.learner, found.nodes) == ("user.straggler", "straggler-3", 3, ("n3",))
    assert "1.9 s a step, 1.9 times as long as the others (1 s)" in found.message


def test_straggler_alarm_is_absent_for_equal_or_single_learner() -> None:
    assert alarms("training-x", 1, [pace(1, 1, 9.0)]) == []
    assert alarms("training-x", 1, [pace(1, 1, 1.0), pace(2, 2, 1.4), pace(3, 3, 1.2)]) == []


def test_straggler_alarm_detects_slow_learner_that_reported_first() -> None:
    [found] = alarms("training-x", 1, [pace(1, 1, 3.0), pace(2, 2, 1.0)])
    assert (found.learner, found.nodes, found.at) == (1, ("n1",), 1002.0)
