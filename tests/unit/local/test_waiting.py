"""Why a job waits on this machine, by locks and tickets that are really held."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ffdl_batch.domain.pending.evidence import evidence_of
from ffdl_batch.domain.pending.explanation import WaitKind
from ffdl_batch.domain.pending.reason_text import actions_of, sentence_of
from ffdl_local.job_state import explain
from ffdl_local.machine_queue import Queue, Slots

JOB = {"max_jobs": 2, "machine_gpus": 4, "gpus": 2}


def test_local_explain_reports_held_slots_position_and_free_gpus(tmp_path: Path) -> None:
    running = Queue(tmp_path, "training-aaaaaaaaa-1")
    running.enter()
    held = running.try_take(2, 3, 4)
    assert held is not None
    first, second = Queue(tmp_path, "training-bbbbbbbbb-1"), Queue(tmp_path, "training-ccccccccc-1")
    first.enter()
    second.enter()
    try:
        known = explain(tmp_path, "training-bbbbbbbbb-1", JOB, True)
        assert known.reason is not None and known.reason.kind is WaitKind.RESOURCES and known.position == 1
        (room,) = known.capacity
        assert (room.gpus, room.gpus_free, room.fitting) == (4, 1, 0)
        assert known.figures == {"job slots of this machine": "1 of 2 in use, by training-aaaaaaaaa"}
        behind = explain(tmp_path, "training-ccccccccc-1", JOB, True)
        assert behind.reason is not None and behind.reason.kind is WaitKind.TURN  # nothing lets it overtake
        assert (behind.position, behind.ahead[0].jobs) == (2, 1)
        asked = explain(tmp_path, "", JOB, False)
        assert asked.reason is None and asked.ahead[0].jobs == 2
    finally:
        held.release()
        first.leave()
        second.leave()
    free = explain(tmp_path, "", JOB, False)
    assert free.capacity[0].fitting == 1 and free.capacity[0].gpus_free == 4


def take(queue: Path, token: str, slots: int, gpus: int = 0) -> Slots:
    waiting = Queue(queue, token)
    waiting.enter()
    held = waiting.try_take(slots, gpus, 4)
    assert held is not None
    return held


@pytest.mark.parametrize("before", [0, 1, 2])
def test_local_explain_names_full_slots_their_users_and_the_setting(tmp_path: Path, before: int) -> None:
    held = [take(tmp_path, f"training-{letter * 9}-12", 2) for letter in "ab"]
    waiting = [Queue(tmp_path, f"training-{letter * 9}-1") for letter in "cde"[: before + 1]]
    for queue in waiting:
        queue.enter()
    try:
        known = explain(tmp_path, f"training-{'cde'[before] * 9}-1", JOB, True)
        assert known.reason is not None and known.reason.kind is WaitKind.LIMIT
        said = "its machine has used up its job slots: the limit is 2, 2 in use (max_jobs)"
        assert (sentence_of(known.reason), known.position) == (said, before + 1)
        (action,) = actions_of(known.reason)
        assert "raise max_jobs in [backend.local], run: ffdl daemon restart" in action
        assert "job slots of this machine: 2 of 2 in use, by training-aaaaaaaaa, training-bbbbbbbbb" in evidence_of(
            known, None, None, known.known_at
        )
    finally:
        for slots in held:
            slots.release()
        for queue in waiting:
            queue.leave()


def test_local_explain_names_gpus_if_they_are_missing_too(tmp_path: Path) -> None:
    """More slots would not help."""
    held = [take(tmp_path, f"training-{letter * 9}-1", 2, 2) for letter in "ab"]
    first = Queue(tmp_path, "training-ccccccccc-1")
    first.enter()
    known = explain(tmp_path, "training-ccccccccc-1", JOB, True)
    assert known.reason is not None and known.reason.kind is WaitKind.RESOURCES
    for slots in held:
        slots.release()
    first.leave()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "1 of 2 in use"),
        (b"x" * 500_000, "1 of 2 in use"),
        (b"\x1b[31m-1", "1 of 2 in use"),
        (b"\xff-1", "1 of 2 in use"),
        (b"training-aaaaaaaaa-3", "1 of 2 in use, by training-aaaaaaaaa"),
    ],
)
def test_local_explain_ignores_damaged_slot(tmp_path: Path, content: bytes, words: str) -> None:
    held = take(tmp_path, "training-aaaaaaaaa-1", 2)
    (tmp_path / "job-0").write_bytes(content)
    assert explain(tmp_path, "", JOB, False).figures == {"job slots of this machine": words}
    held.release()


def test_local_explain_names_eight_users_and_counts_the_others(tmp_path: Path) -> None:
    held = [take(tmp_path, f"training-{number:09}-1", 11) for number in range(11)]
    figures = explain(tmp_path, "", {**JOB, "max_jobs": 11}, False).figures
    assert figures["job slots of this machine"].startswith("11 of 11 in use, by training-000000000, ")
    assert figures["job slots of this machine"].endswith(", training-000000007 and 3 more")
    for slots in held:
        slots.release()


def test_slot_is_taken_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    held = take(tmp_path, "training-aaaaaaaaa-1", 2)
    assert explain(tmp_path, "", JOB, False).figures == {"job slots of this machine": "1 of 2 in use"}
    held.release()


def test_local_explain_reports_full_capacity_without_queue_directory(tmp_path: Path) -> None:
    known = explain(tmp_path / "nowhere", "", JOB, False)
    assert known.capacity[0].gpus_free == 4 and known.ahead[0].jobs == 0
