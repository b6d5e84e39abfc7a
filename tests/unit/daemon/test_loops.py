"""Threads that turn: nothing starts by itself, nothing dies silently."""

from __future__ import annotations

import errno
import logging
import threading
from dataclasses import replace

import pytest

from ffdl_batch.daemon.loops import DEBTS_EVERY_S, DEBTS_WHILE_PAYING_S, STORE_LONGEST_S, Loops, StepThread
from ffdl_batch.domain.job import JobId, Token
from ffdl_batch.services.debts import DebtPayer
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.silence import SilenceKeeper
from ffdl_batch.services.watch import Watcher
from ffdl_batch.store import Attempt, Store, StoreUnavailable
from tests.unit.daemon.conftest import Desk
from tests.unit.store.jobs import add_job


def test_a_turn_that_raises_is_logged_with_its_traceback_and_paused(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> float:
        raise ValueError("no such row")

    loop = StepThread("deployer", broken)
    with caplog.at_level(logging.ERROR):
        first, second = loop._one_turn(), loop._one_turn()
    assert 0 < first < second
    assert "loop deployer failed" in caplog.text
    assert "ValueError: no such row" in caplog.text


def test_a_database_that_is_away_is_asked_again_soon_and_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def away() -> float:
        raise StoreUnavailable("the database is away: the server cannot be reached")

    loop = StepThread("deployer", away)
    with caplog.at_level(logging.WARNING):
        pauses = [loop._one_turn() for _ in range(12)]
    assert pauses[0] < pauses[2] <= max(pauses) == STORE_LONGEST_S
    assert "loop deployer waits for" in caplog.text
    assert "Traceback" not in caplog.text


def test_what_a_failed_step_had_leased_is_taken_again_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job that the scheduler took as the database went away would wait until its long lease is over."""
    store = desk.platform.store
    add_job(store)
    loops = Loops(desk.platform, lambda: None)

    def fail(deployer: Deployer) -> int:
        assert store.claim_deployable(desk.platform.owner, limit=1, lease_s=3600.0)
        raise StoreUnavailable("the server is shutting down")

    with monkeypatch.context() as patch:
        patch.setattr(Deployer, "step", fail)
        with pytest.raises(StoreUnavailable):
            loops._deploy_turn()
    assert store.claim_deployable("another", limit=1, lease_s=1.0) == []

    def claim(deployer: Deployer) -> int:
        return len(store.claim_deployable(desk.platform.owner, limit=1, lease_s=3600.0))

    monkeypatch.setattr(Deployer, "step", claim)
    assert loops._deploy_turn() == 0.0, "which is the pause after progress"


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
    before = set(threading.enumerate())
    loops = Loops(desk.platform, lambda: None)
    assert set(threading.enumerate()) <= before, "one of an earlier test may end meanwhile"
    assert loops._watch_turn() > 0
    assert desk.platform.store.acquire_lease("watcher", "another", 30.0) is None
    loops.stop()
    loops.join()
    assert desk.platform.store.acquire_lease("watcher", "another", 30.0) is not None


@pytest.mark.parametrize(("silent_s", "pause_s"), [(900.0, 300.0), (30.0, 10.0), (0.0, 300.0)])
def test_silent_jobs_are_looked_for_seldom(desk: Desk, silent_s: float, pause_s: float) -> None:
    told: list[str] = []
    platform = replace(desk.platform, settings=replace(desk.platform.settings, silent_s=silent_s))
    loops = Loops(platform, lambda: told.append("change"))
    assert (loops._silence_turn(), told) == (pause_s, [])
    loops.stop()
    loops.join()


def test_what_the_look_for_silent_jobs_changed_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    loops = Loops(desk.platform, lambda: told.append("change"))
    monkeypatch.setattr(SilenceKeeper, "look", lambda _self: 1)
    loops._silence_turn()
    assert told == ["change"]
    loops.stop()
    loops.join()


def test_stores_owed_keep_the_daemon_busy_and_nothing_else_does(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = Loops(desk.platform, lambda: None)
    assert loops._debts_turn() == DEBTS_EVERY_S
    assert not loops.is_busy()
    owed = Attempt(JobId("training-000000000"), 1, Token("training-000000000-1"), "fake", "7", 0.0, owed=True)
    monkeypatch.setattr(Store, "owed_attempts", lambda *_args: [owed])
    assert loops.is_busy()
    loops.stop()
    loops.join()


@pytest.mark.parametrize(("due_in_s", "pause_s"), [(0.2, DEBTS_WHILE_PAYING_S), (7.0, 7.0), (150.0, DEBTS_EVERY_S)])
def test_a_debt_that_is_due_soon_is_looked_after_soon(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, due_in_s: float, pause_s: float
) -> None:
    loops = Loops(desk.platform, lambda: None)
    monkeypatch.setattr(DebtPayer, "due_in_s", due_in_s)
    assert loops._debts_turn() == pause_s
    loops.stop()
    loops.join()


def test_a_change_of_a_job_wakes_the_loop_that_pays(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what an end owes, or was paid for it, would be known half a minute later."""
    loops = Loops(desk.platform, lambda: None)
    changes = iter((0, 1))
    monkeypatch.setattr(Watcher, "listen", lambda _self: next(changes))
    woken: list[str] = []
    monkeypatch.setattr(loops._debts, "wake", lambda: woken.append("debts"))
    loops._listen_turn()
    assert woken == []
    loops._listen_turn()
    assert woken == ["debts"]
    loops.stop()
    loops.join()


def test_a_file_system_that_is_away_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def away() -> float:
        raise OSError(errno.ESTALE, "Stale file handle", "/jobs/doorbell")

    loop = StepThread("listener", away, place="/jobs")
    with caplog.at_level(logging.WARNING):
        assert loop._one_turn() > 0
    assert "look after the file server" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_loop_lives_on_without_memory_even_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = threading.Semaphore(0)
    turns: list[int] = []

    def turn() -> float:
        turns.append(1)
        turned.release()
        if len(turns) == 1:
            raise MemoryError
        return 3600.0

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(logging.getLogger("ffdl_batch.daemon.loops"), "exception", no_memory)
    loop = StepThread("watcher", turn)
    loop.start()
    assert turned.acquire(timeout=60.0)
    loop.wake()
    assert turned.acquire(timeout=60.0)
    loop.stop()
    assert loop.join(60.0)
