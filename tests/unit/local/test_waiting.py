"""Why a job waits on this machine, by locks and tickets that are really held."""

from __future__ import annotations

from pathlib import Path

from ffdl_batch.domain.pending.explanation import WaitKind
from ffdl_local.job_state import explain
from ffdl_local.machine_queue import Queue

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
        assert known.figures == {"jobs at once on this machine": "1 of 2 run"}
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


def test_local_explain_reports_full_capacity_without_queue_directory(tmp_path: Path) -> None:
    known = explain(tmp_path / "nowhere", "", JOB, False)
    assert known.capacity[0].gpus_free == 4 and known.ahead[0].jobs == 0
