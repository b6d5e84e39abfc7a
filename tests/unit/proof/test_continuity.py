"""The judge of the proof of resumption can fail: each fault that it must find is put in, one at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.proof.continuity import Record, Remains, Session, judge, sessions_in
from tests.proof.resume import FULL, SHORT, report


def steps(first: int, last: int) -> tuple[int, ...]:
    """Their numbers."""
    return tuple(range(first, last + 1))


SESSIONS = (
    Session(1, 0, steps(1, 12), (10, 12)),
    Session(2, 12, steps(13, 27), (20,)),
    Session(3, 20, steps(21, 30), (30,)),
)
RECORDS = (
    Record(1, "101", "timeout", True, 0.4, 1000.0, 1020.0),
    Record(2, "102", "node_failure", False, None, 1023.5, 1040.0),
    Record(3, "103", "", False, None, 1075.0, 1090.0),
)
GOOD = Remains(
    total=30, sessions=SESSIONS, records=RECORDS, expected=["timeout", "node_failure"],
    natives=["101", "102", "103"], allocations=frozenset({"101", "102", "103"}),
    weights={"w1.npy": b"a", "w2.npy": b"b"}, whole_weights={"w1.npy": b"a", "w2.npy": b"b"}, state="COMPLETED",
    whole_state="COMPLETED",
)  # fmt: skip


def test_resume_proof_accepts_faultless_training_and_reports_it() -> None:
    verdict = judge(GOOD)
    assert verdict.troubles == []
    assert [(cut.kind, cut.lost, cut.took_s, cut.gap_s) for cut in verdict.interruptions] == [
        ("timeout", 0, 0.4, 3.5),
        ("node_failure", 7, None, 35.0),
    ]
    assert report(GOOD, verdict).splitlines() == [
        "allocation 101 steps 1-12; timeout: lost 0 steps, signal -> confirmed checkpoint 0.4 s, "
        "end -> next PROCESSING 3.5 s",
        "allocation 102 steps 13-27; node_failure: lost 7 steps, signal -> confirmed checkpoint none, "
        "end -> next PROCESSING 35.0 s",
        "allocation 103 steps 21-30",
        "allocations 3 steps 30 lost 7 weights equal",
    ]


def swap(index: int, session: Session) -> Callable[[Remains], Remains]:
    """One session replaced."""
    return lambda good: replace(good, sessions=[*good.sessions[:index], session, *good.sessions[index + 1 :]])


def note(index: int, **changes: object) -> Callable[[Remains], Remains]:
    """One record altered."""

    def alter(good: Remains) -> Remains:
        records = list(good.records)
        records[index] = replace(records[index], **changes)  # type: ignore[arg-type]
        return replace(good, records=records)

    return alter


FAULTS: dict[str, tuple[Callable[[Remains], Remains], str]] = {
    "one bit": (lambda good: replace(good, weights={"w1.npy": b"a", "w2.npy": b"c"}), "weights differ .*w2.npy"),
    "no weights": (lambda good: replace(good, weights={}, whole_weights={}), "against"),
    "an array missing": (lambda good: replace(good, weights={"w1.npy": b"a"}), "against"),
    "ran twice unrecorded": (note(1, interruption="timeout", confirmed=True), "21 to 27 ran in attempts 2 and 3"),
    "lost although confirmed": (note(1, confirmed=True), "no record says that they were lost"),
    "no record": (note(1, interruption=""), "no record says that they were lost"),
    "not from the last checkpoint": (swap(2, Session(3, 10, steps(11, 30), (30,))), "began after step 10"),
    "a gap": (swap(1, Session(2, 12, steps(14, 27), (20,))), "in order"),
    "twice within a session": (swap(0, Session(1, 0, (*steps(1, 12), 12), (10, 12))), "in order"),
    "not to the end": (swap(2, Session(3, 20, steps(21, 29), (29,))), "29 different steps"),
    "another interruption": (note(0, interruption="preemption"), "the record says"),
    "time limit without a checkpoint": (note(0, confirmed=False), "without a confirmed checkpoint"),
    "an allocation too many": (lambda good: replace(good, allocations=good.allocations | {"104"}), "accounting knows"),
    "one allocation for two attempts": (lambda good: replace(good, natives=["101", "101", "103"]), "accounting knows"),
    "not completed": (lambda good: replace(good, state="FAILED"), "is FAILED"),
    "held": (lambda good: replace(good, held=["4 GPUs of nodes, 0 of living jobs"]), "still held: 4 GPUs"),
}


@pytest.mark.parametrize(("spoil", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_resume_proof_detects_each_planted_fault(spoil: Callable[[Remains], Remains], words: str) -> None:
    verdict = judge(spoil(GOOD))
    assert not verdict.holds
    assert any(re.search(words, trouble) for trouble in verdict.troubles), verdict.troubles


def test_resume_proof_rejects_fewer_than_three_allocations() -> None:
    few = replace(GOOD, sessions=SESSIONS[:2], records=RECORDS[:2])
    assert any("three are needed" in trouble for trouble in judge(few).troubles)


def test_resume_proof_accepts_attempt_restarted_by_scheduler() -> None:
    sessions = [SESSIONS[0], replace(SESSIONS[1], attempt=1), SESSIONS[2]]
    records = [RECORDS[0], replace(RECORDS[1], attempt=1, native_id="101"), RECORDS[2]]
    again = replace(GOOD, sessions=sessions, records=records, natives=["101", "103"])
    assert judge(replace(again, allocations=frozenset({"101", "103"}))).troubles == []


def test_resume_proof_reads_sessions_from_log_and_drops_torn_line() -> None:
    log = 'session {"after": 0, "RESUME": "0"}\nstep 1\nstep 2\nsaved 2\nnoise 3\nsession {"after": 2}\nstep 3\nstep 4'
    assert sessions_in(4, log) == [Session(4, 0, (1, 2), (2,)), Session(4, 2, (3,), ())]


def test_resume_proof_scripts_force_interruptions_before_the_end() -> None:
    assert [blow.kind for blow in FULL.blows] == ["preemption", "node_failure", "timeout"]
    for script in (FULL, SHORT):
        assert len(script.blows) >= 2
    work_s = (FULL.steps - sum(blow.after_steps for blow in FULL.blows)) * FULL.pause_s
    assert FULL.time_limit == "3m" and work_s > 180
