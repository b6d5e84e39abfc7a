"""The file of records survives deaths and full disks between any two steps."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.collectors.record_file import Ledger, Taken, open_ledger
from ffdl_batch.domain.metrics.records import Measure, MetricRecord, decode_record


def some(*numbers: int) -> list[MetricRecord]:
    return [MetricRecord("t", 0, 0, "", "g", {}, {"n": Measure("INT", str(number))}) for number in numbers]


def numbers(out: Path) -> list[tuple[int, int]]:
    """`rindex` and number of each record."""
    found = [decode_record(line) for line in out.read_text().splitlines()]
    return [(record.rindex, int(record.values["n"].value)) for record in found]


def opened(out: Path) -> Ledger:
    found, whole = open_ledger(str(out))
    assert whole
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "metrics" / "learner-1.jsonl"


def test_ledger_numbers_records_without_gaps_across_restarts(out: Path) -> None:
    first = opened(out)
    first.commit(some(10, 11), {"at": 1})
    first.commit([], {"at": 2})
    first.commit(some(12), {"at": 3})
    first.close()
    second = opened(out)
    assert (second.rindex, second.state) == (3, {"at": 3})
    second.commit(some(13), {"at": 4})
    assert numbers(out) == [(1, 10), (2, 11), (3, 12), (4, 13)]
    assert (out.stat().st_mode & 0o777, out.parent.stat().st_mode & 0o777) == (0o644, 0o700)
    second.close()


def test_ledger_completes_batch_after_crash_at_any_byte(out: Path) -> None:
    ledger = opened(out)
    ledger.commit(some(1), {"at": 1})
    before = out.read_bytes()
    ledger.commit(some(2, 3), {"at": 2})
    ledger.close()
    whole = out.read_bytes()
    for size in range(len(before), len(whole) + 1):
        out.write_bytes(whole[:size])
        successor = opened(out)
        successor.close()
        assert out.read_bytes() == whole
        assert (successor.rindex, successor.state) == (3, {"at": 2})


def test_ledger_repeats_batch_after_crash_before_position_write(out: Path) -> None:
    ledger = opened(out)
    ledger.commit(some(1), {"at": 1})
    old = (out.read_bytes(), Path(f"{out}.position").read_bytes())
    ledger.commit(some(2), {"at": 2})
    ledger.close()
    out.write_bytes(old[0])
    Path(f"{out}.position").write_bytes(old[1])
    successor = opened(out)
    assert (successor.rindex, successor.state) == (1, {"at": 1})
    successor.commit(some(2), {"at": 2})
    assert numbers(out) == [(1, 1), (2, 2)]
    successor.close()


@pytest.mark.parametrize("step", ["replace", "write", "fsync"])
def test_ledger_loses_and_duplicates_nothing_on_full_disk(
    out: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    ledger = opened(out)
    ledger.commit(some(1), {"at": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, step, failing(os.write, step))
        before = out.read_bytes()
        with pytest.raises(OSError, match="full"):
            ledger.commit(some(2, 3), {"at": 2})
        assert (out.read_bytes() == before) == (step != "write")  # nothing is appended that the position does not know
        with pytest.raises(OSError, match="full"):
            ledger.complete()
    ledger.complete()
    ledger.commit(some(4), {"at": 3})
    assert numbers(out) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    ledger.close()


def failing(write: Callable[[int, bytes], int], step: str) -> Callable[..., int]:
    """A disk that takes seven bytes a time and then no more."""

    def fail(descriptor: int, data: bytes = b"") -> int:
        if step == "write" and data:
            write(descriptor, data[:7])
        raise OSError(errno.ENOSPC, "full")

    return fail


def test_ledger_is_locked_against_second_collector(out: Path) -> None:
    first = opened(out)
    with pytest.raises(Taken):
        open_ledger(str(out))
    first.close()
    opened(out).close()


def test_ledger_detects_truncated_file_and_continues_with_whole_lines(out: Path) -> None:
    ledger = opened(out)
    ledger.commit(some(1), {"at": 1})
    ledger.commit(some(2), {"at": 2})
    ledger.close()
    os.truncate(out, 20)
    successor, whole = open_ledger(str(out))
    assert not whole
    successor.commit(some(3), {"at": 3})
    assert numbers(out) == [(2, 2), (3, 3)]
    successor.close()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"before": 0, "rindex": 1, "state": [1], "batch": ""}'])
def test_ledger_rejects_invalid_position_file(out: Path, text: str) -> None:
    out.parent.mkdir()
    Path(f"{out}.position").write_text(text)
    with pytest.raises(ValueError, match="is not a position file"):
        open_ledger(str(out))


def test_ledger_does_not_follow_symlink(out: Path) -> None:
    out.parent.mkdir()
    out.symlink_to(out.parent / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        open_ledger(str(out))
    assert not (out.parent / "elsewhere").exists()


def test_ledger_position_file_holds_only_last_batch(out: Path) -> None:
    ledger = opened(out)
    for number in range(20):
        ledger.commit(some(number), {"at": number})
    body = json.loads(Path(f"{out}.position").read_text())
    assert body["batch"].count("\n") == 1 and body["rindex"] == 20
    ledger.close()
