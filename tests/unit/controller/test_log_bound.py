"""How much of a learner's output goes into its log, and what is told of the rest."""

from __future__ import annotations

import re

from ffdl_batch.controller.record.log_bound import KEPT_BYTES, LINE_COST, Bound

RATE, BURST = 1000, 5000
LINE = b"x" * 199 + b"\n"
NOTE = re.compile(rb"\[ffdl: (\d+) lines \(\d+\.\d MB\) left out here: more than 1000 bytes/s \(log_rate\)\]\n")


def notes(written: bytes) -> int:
    """How many lines are told to be left out."""
    return sum(int(number) for number in NOTE.findall(written))


def test_log_bound_passes_burst_and_counts_dropped_lines() -> None:
    bound = Bound(RATE, BURST, 0.0)
    written = b"".join(b"".join(bound.feed(LINE, 0.0)) for _ in range(100))
    assert written == LINE * (BURST // len(LINE))
    more = b"".join(bound.feed(LINE, 1.5))
    assert more.endswith(LINE) and notes(more) == 100 - BURST // len(LINE)
    assert not bound.is_shut and bound.finish() == []


def test_log_bound_limits_rate_and_accounts_for_every_line() -> None:
    bound = Bound(RATE, BURST, 0.0)
    written, fed = b"", 0
    for tick in range(1000):  # 100 s of 20 kB/s
        written += b"".join(bound.feed(LINE * 10, tick / 10))
        fed += 10
    written += b"".join(bound.finish())
    assert len(written) <= BURST + 100 * RATE + KEPT_BYTES + 20_000
    assert written.count(LINE) + notes(written) == fed
    assert len(NOTE.findall(written)) <= 101, "not more than one a second"


def test_log_bound_charges_minimum_cost_per_line() -> None:
    bound = Bound(RATE, BURST, 0.0)
    written = b"".join(b"".join(bound.feed(b"\n", 0.0)) for _ in range(1000))
    assert len(written) == BURST // LINE_COST


def test_log_bound_keeps_last_lines_after_flood() -> None:
    bound = Bound(RATE, BURST, 0.0)
    lines = [f"{number:05d}\n".encode() for number in range(50_000)]
    written = b"".join(b"".join(bound.feed(line, 0.0)) for line in lines)
    written += b"".join(bound.finish())
    assert written.endswith(b"".join(lines[-KEPT_BYTES // 6 + 1 :]))
    assert written.splitlines().count(b"00049") == 1
    assert written.count(b"\n") - len(NOTE.findall(written)) + notes(written) == len(lines)


def test_log_bound_writes_no_note_if_nothing_was_dropped() -> None:
    bound = Bound(RATE, BURST, 0.0)
    assert bound.feed(b"x" * 6000, 0.0) == [b"x" * 6000]
    assert bound.feed(b"y\nz", 0.0) == []
    assert bound.finish() == [b"y\nz"]


def test_log_bound_writes_note_on_own_line_between_whole_lines() -> None:
    bound = Bound(RATE, BURST, 0.0)
    bound.feed(b"x" * 6000, 0.0)
    assert bound.feed(b"rest\nhalf", 0.0) == []
    note, rest = bound.feed(b" a line\nwhole\n", 10.0)
    assert note.startswith(b"\n[ffdl: 2 lines ") and rest == b"whole\n"


def test_log_bound_resumes_output_without_newlines() -> None:
    bound = Bound(RATE, BURST, 0.0)
    bound.feed(b"\r" * 6000, 0.0)
    bound.feed(b"\r1", 0.0)
    note, rest = bound.feed(b"\r2", 10.0)
    assert note.startswith(b"\n[ffdl: 0 lines ") and rest == b"\r2"
