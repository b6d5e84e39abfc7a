"""Threads that turn: nothing starts by itself, nothing dies silently."""

from __future__ import annotations

import logging
import threading

import pytest

from ffdl_batch.daemon.loops import DEBTS_EVERY_S, Loops, StepThread
from ffdl_batch.domain.job import JobId, Token
from ffdl_batch.services.watch import Watcher
from ffdl_batch.store import Attempt, Store
from tests.unit.daemon.conftest import Desk


def test_a_turn_that_raises_is_logged_with_its_traceback_and_paused(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> float:
        raise ValueError("no such row")

    loop = StepThread("deployer", broken)
    with caplog.at_level(logging.ERROR):
        first, second = loop._one_turn(), loop._one_turn()
    assert 0 < first < second
    assert "loop deployer failed" in caplog.text
    assert "ValueError: no such row" in caplog.text


def test_a_loop_sleeps_until_it_is_woken_and_ends_between_turns() -> None:
    turned = threading.Semaphore(0)
    turns: list[int] = []

    def turn() -> float:
        turns.append(len(turns))
        turned.release()
        return 3600.0

    loop = StepThread("loop", turn)
    assert loop.join(0)  # nothing was started by making it
    loop.start()
    assert turned.acquire(timeout=30)
    loop.wake()
    assert turned.acquire(timeout=30)
    loop.stop()
    assert loop.join(30)
    assert turns == [0, 1]


def test_the_loops_of_a_platform_start_no_thread_when_made_and_give_leases_back(desk: Desk) -> None:
    before = threading.active_count()
    loops = Loops(desk.platform, lambda: None)
    assert threading.active_count() == before
    assert loops._watch_turn() > 0
    assert desk.platform.store.acquire_lease("watcher", "another", 30.0) is None
    loops.stop()
    loops.join()
    assert desk.platform.store.acquire_lease("watcher", "another", 30.0) is not None


def test_stores_owed_keep_the_daemon_busy_and_nothing_else_does(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = Loops(desk.platform, lambda: None)
    assert loops._debts_turn() == DEBTS_EVERY_S
    assert not loops.is_busy()
    owed = Attempt(JobId("training-000000000"), 1, Token("training-000000000-1"), "fake", "7", 0.0, owed=True)
    monkeypatch.setattr(Store, "owed_attempts", lambda *_args: [owed])
    assert loops.is_busy()
    loops.stop()
    loops.join()


def test_a_change_of_a_job_wakes_the_loop_that_pays(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what an end owes, or was paid for it, would be known half a minute later."""
    loops = Loops(desk.platform, lambda: None)
    changes = iter((0, 1))
    monkeypatch.setattr(Watcher, "step", lambda *_args, **_words: next(changes))
    woken: list[str] = []
    monkeypatch.setattr(loops._debts, "wake", lambda: woken.append("debts"))
    loops._watch_turn()
    assert woken == []
    loops._watch_turn()
    assert woken == ["debts"]
    loops.stop()
    loops.join()
