"""Event files: torn lines, repeated numbers, strangers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.events import Event, EventKind, decode_events, encode_event, merge

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
