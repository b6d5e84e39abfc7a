"""First come, first served, and nobody's slot outlives him."""

from __future__ import annotations

from pathlib import Path

from ffdl_local.machine_queue import Queue, Slots


def enter(directory: Path, name: str) -> Queue:
    queue = Queue(directory, name)
    queue.enter()
    return queue


def taken(slots: Slots | None) -> Slots:
    assert slots is not None
    return slots


def test_slots_serve_oldest_ticket_first(tmp_path: Path) -> None:
    first, second = enter(tmp_path, "a"), enter(tmp_path, "b")
    assert second.try_take(2, 0, 0) is None
    held = taken(first.try_take(2, 0, 0))
    also = taken(second.try_take(2, 0, 0))
    third = enter(tmp_path, "c")
    assert third.try_take(2, 0, 0) is None
    held.release()
    taken(third.try_take(2, 0, 0)).release()
    also.release()


def test_slots_do_not_let_small_job_overtake_large_job(tmp_path: Path) -> None:
    small = taken(enter(tmp_path, "a").try_take(9, 1, 2))
    big, late = enter(tmp_path, "b"), enter(tmp_path, "c")
    assert big.try_take(9, 2, 2) is None
    assert late.try_take(9, 1, 2) is None
    small.release()
    held = taken(big.try_take(9, 2, 2))
    assert held.gpus == [0, 1]
    assert late.try_take(9, 1, 2) is None
    held.release()
    taken(late.try_take(9, 1, 2)).release()


def test_slots_assign_distinct_gpus(tmp_path: Path) -> None:
    first = taken(enter(tmp_path, "a").try_take(9, 1, 2))
    second = taken(enter(tmp_path, "b").try_take(9, 1, 2))
    assert (first.gpus, second.gpus) == ([0], [1])
    first.release()
    second.release()


def test_slots_remove_ticket_of_dead_process(tmp_path: Path) -> None:
    enter(tmp_path, "a").leave()
    dead = tmp_path / "queue" / f"{0:020d}-dead"
    dead.touch()
    queue = enter(tmp_path, "b")
    taken(queue.try_take(1, 0, 0)).release()
    assert not dead.exists()


def test_queue_leave_succeeds_when_called_twice(tmp_path: Path) -> None:
    queue = enter(tmp_path, "a")
    queue.leave()
    queue.leave()
    assert not list((tmp_path / "queue").iterdir())
