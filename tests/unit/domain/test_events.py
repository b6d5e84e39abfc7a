"""Event files: torn lines, repeated numbers, strangers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.file_format import FORMAT, NewerFormat
from ffdl_batch.domain.outcome.controller_events import MAX_EVENTS, Event, EventKind, decode_events, encode_event, merge

EVENTS = [Event(i, 100.0 + i, "head", EventKind.PHASE, {"phase": "learner", "status": "started"}) for i in (1, 2, 3)]
TEXT = "".join(encode_event(e) for e in EVENTS)


@given(st.integers(min_value=0, max_value=len(TEXT)))
def test_event_file_yields_complete_lines_when_cut_anywhere(cut: int) -> None:
    assert decode_events(TEXT[:cut]) == EVENTS[: TEXT[:cut].count("\n")]
    assert decode_events(TEXT) == EVENTS


def test_event_file_drops_repeated_sequence_numbers_and_kinds_of_newer_release() -> None:
    assert decode_events(encode_event(EVENTS[0]) * 2 + encode_event(EVENTS[1])) == EVENTS[:2]
    newer = '{"seq":1,"at":1,"source":"head","kind":"teleported"}\n'
    assert decode_events(newer + encode_event(EVENTS[1])) == [EVENTS[1]]


@given(st.text())
def test_event_file_decodes_around_arbitrary_text(text: str) -> None:
    good = encode_event(EVENTS[0])
    assert decode_events(text.replace("\n", "") + "\n" + good)[-1:] in ([EVENTS[0]], [])
    assert EVENTS[0] in decode_events(good + text + "\n")


def test_merge_orders_events_by_time_but_keeps_order_of_writer_when_clock_is_set_back() -> None:
    late = Event(1, 50.0, "node-0", EventKind.STARTED)
    assert merge([EVENTS, [late]])[0] == late
    started = Event(1, 5000.0, "node-0", EventKind.LEARNER_STARTED, {"learner_id": 1})
    ended = Event(2, 1400.0, "node-0", EventKind.LEARNER_ENDED, {"learner_id": 1})
    other = Event(1, 4000.0, "head", EventKind.CLAIMED, {})
    assert merge([[started, ended], [other]]) == [other, started, ended]


def test_event_lines_carry_format_default_to_first_one_and_are_rejected_with_a_newer_one() -> None:
    line = json.loads(encode_event(EVENTS[0]))
    assert line.pop("format") == FORMAT
    assert decode_events(json.dumps(line) + "\n") == [EVENTS[0]]
    newer = json.dumps({"format": FORMAT + 1, "seq": 4, "kind": "stored", "what": "else"}) + "\n"
    with pytest.raises(NewerFormat, match=r"at least as new"):
        decode_events(TEXT + newer)


def test_decode_events_ignores_lines_after_limit() -> None:
    good = encode_event(EVENTS[0])
    assert decode_events(good + "y\n" * MAX_EVENTS + encode_event(EVENTS[1])) == [EVENTS[0]]


@pytest.mark.parametrize("field", ["learner_id", "pid", "start_ticks", "exit_code", "signal"])
@pytest.mark.parametrize("value", ["x", 1.5, "1"])
def test_decode_events_ignores_event_with_invalid_number(field: str, value: str | float) -> None:
    assert decode_events(encode_event(Event(1, 1.0, "node-0", EventKind.LEARNER_ENDED, {field: value}))) == []
