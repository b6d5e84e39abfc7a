"""Event files: torn lines, repeated numbers, strangers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.events import Event, EventKind, decode_events, encode_event, merge
from ffdl_batch.domain.formats import FORMAT, NewerFormat

EVENTS = [Event(i, 100.0 + i, "head", EventKind.PHASE, {"phase": "learner", "status": "started"}) for i in (1, 2, 3)]
TEXT = "".join(encode_event(e) for e in EVENTS)


def test_round_trip() -> None:
    assert decode_events(TEXT) == EVENTS


@given(st.integers(min_value=0, max_value=len(TEXT)))
def test_a_file_cut_anywhere_gives_its_whole_lines(cut: int) -> None:
    assert decode_events(TEXT[:cut]) == EVENTS[: TEXT[:cut].count("\n")]


def test_a_number_that_was_seen_is_not_told_twice() -> None:
    assert decode_events(encode_event(EVENTS[0]) * 2 + encode_event(EVENTS[1])) == EVENTS[:2]


@given(st.text())
def test_anything_can_stand_in_the_file(text: str) -> None:
    good = encode_event(EVENTS[0])
    assert decode_events(text.replace("\n", "") + "\n" + good)[-1:] in ([EVENTS[0]], [])
    assert EVENTS[0] in decode_events(good + text + "\n")


def test_kinds_of_a_newer_release_are_passed_over() -> None:
    assert decode_events('{"seq":1,"at":1,"source":"head","kind":"teleported"}\n' + encode_event(EVENTS[1])) == [
        EVENTS[1]
    ]


def test_merging_orders_by_time() -> None:
    late = Event(1, 50.0, "node-0", EventKind.STARTED)
    assert merge([EVENTS, [late]])[0] == late


def test_a_writers_events_stay_in_order_when_its_clock_is_set_back() -> None:
    started = Event(1, 5000.0, "node-0", EventKind.LEARNER_STARTED, {"learner_id": 1})
    ended = Event(2, 1400.0, "node-0", EventKind.LEARNER_ENDED, {"learner_id": 1})
    other = Event(1, 4000.0, "head", EventKind.CLAIMED, {})
    assert merge([[started, ended], [other]]) == [other, started, ended]


def test_each_line_has_its_format_and_one_without_is_of_the_first() -> None:
    line = json.loads(encode_event(EVENTS[0]))
    assert line.pop("format") == FORMAT
    assert decode_events(json.dumps(line) + "\n") == [EVENTS[0]]


def test_a_line_of_a_newer_format_is_not_passed_over_in_silence() -> None:
    newer = json.dumps({"format": FORMAT + 1, "seq": 4, "kind": "stored", "what": "else"}) + "\n"
    with pytest.raises(NewerFormat, match=r"at least as new"):
        decode_events(TEXT + newer)
