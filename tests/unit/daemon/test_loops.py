"""Threads that turn: nothing starts by itself, nothing dies silently."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ffdl_batch.daemon.loops import (
    AWAITED_S,
    DEPLOYERS,
    STORE_LONGEST_S,
    UPLOADS_EVERY_S,
    UPLOADS_WHILE_UPLOADING_S,
    Loops,
    StepThread,
)
from ffdl_batch.domain.job.job import JobId, Token
from ffdl_batch.services.data.pending_uploads import PendingUploads
from ffdl_batch.services.deployment.deployer import Deployer
from ffdl_batch.services.monitoring.heartbeat_loss import SilenceKeeper
from ffdl_batch.services.monitoring.watcher import Watcher
from ffdl_batch.store import Attempt, Store, StoreUnavailable
from tests.unit.daemon.conftest import Desk
from tests.unit.store.jobs import add_job


@pytest.fixture
def told() -> list[str]:
    """A word for each change that the loops report."""
    return []


@pytest.fixture
def loops(desk: Desk, told: list[str]) -> Iterator[Loops]:
    made = Loops(desk.platform, lambda: told.append("change"))
    yield made
    made.stop()
    made.join()


def test_step_thread_logs_traceback_and_backs_off_after_exception(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> float:
        raise ValueError("no such row")

    loop = StepThread("deployer", broken)
    with caplog.at_level(logging.ERROR):
        first, second = loop._one_turn(), loop._one_turn()
    assert 0 < first < second
    assert "loop deployer failed" in caplog.text
    assert "ValueError: no such row" in caplog.text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreUnavailable("the database is away: the server cannot be reached"), "loop deployer waits for"),
        (OSError(errno.ESTALE, "Stale file handle", "/jobs/doorbell"), "look after the file server"),
    ],
)
def test_step_thread_backs_off_without_traceback_if_database_or_files_are_unavailable(
    caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    def away() -> float:
        raise error

    loop = StepThread("deployer", away, place="/jobs")
    with caplog.at_level(logging.WARNING):
        pauses = [loop._one_turn() for _ in range(12)]
    assert 0 < pauses[0] < pauses[2] <= max(pauses)
    assert max(pauses) == STORE_LONGEST_S or not isinstance(error, StoreUnavailable)
    assert said in caplog.text
    assert "Traceback" not in caplog.text


def test_deploy_loop_reclaims_leased_jobs_after_failed_step(
    desk: Desk, loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that the scheduler took as the database went away would wait until its long lease is over."""
    store = desk.platform.storage.store
    add_job(store)

    def fail(deployer: Deployer, _begin_next: object) -> int:
        assert store.claim_deployable(desk.platform.leases.owner, limit=1, lease_s=3600.0)
        raise StoreUnavailable("the server is shutting down")

    with monkeypatch.context() as patch:
        patch.setattr(Deployer, "step", fail)
        with pytest.raises(StoreUnavailable):
            loops._deploy_turn()
    assert store.claim_deployable("another", limit=1, lease_s=1.0) == []

    def claim(deployer: Deployer, _begin_next: object) -> int:
        return len(store.claim_deployable(desk.platform.leases.owner, limit=1, lease_s=3600.0))

    monkeypatch.setattr(Deployer, "step", claim)
    assert loops._deploy_turn() == 0.0, "which is the pause after progress"


class SilentSteps:
    """Steps of the deployer that wait for a scheduler until :meth:`end`. `done` is what each step returns."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.begin_next: list[Callable[[], bool]] = []
        self.answers: list[threading.Event] = []
        self.done = 0

    def step(self, begin_next: Callable[[], bool]) -> int:
        answer = threading.Event()
        self.answers.append(answer)
        self.begin_next.append(begin_next)
        self.begun.release()
        assert answer.wait(60.0)
        return self.done

    def await_begin(self) -> None:
        assert self.begun.acquire(timeout=60.0)

    def end(self, loops: Loops) -> None:
        """Stop the loops and answer all steps."""
        loops.stop()
        for answer in self.answers:
            answer.set()
        assert all(loop.join(60.0) for loop in loops._deploys)


@pytest.fixture
def silent(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> SilentSteps:
    """The steps of `loops`, the first of which has begun."""
    steps = SilentSteps()
    monkeypatch.setattr(Deployer, "step", lambda _deployer, begin_next: steps.step(begin_next))
    loops._deploys[-1].start()
    steps.await_begin()
    return steps


def begin_all(silent: SilentSteps) -> None:
    """Begin as many steps as run side by side."""
    for _ in range(DEPLOYERS - 1):
        assert silent.begin_next[-1]()
        silent.await_begin()


def test_deploy_loop_runs_at_most_four_steps_side_by_side(loops: Loops, silent: SilentSteps) -> None:
    begin_all(silent)
    first = loops._deploys[0]
    assert len(loops._deploys) == DEPLOYERS
    assert not silent.begin_next[-1]()
    silent.answers[0].set()
    assert first.join(60.0)
    assert silent.begin_next[-1]()
    silent.await_begin()
    assert [loop.is_running for loop in loops._deploys] == [True] * DEPLOYERS
    silent.end(loops)
    assert len(silent.answers) == DEPLOYERS + 1, "no loop but the last begins another step"


def test_deploy_loop_begins_no_step_after_stop(loops: Loops, silent: SilentSteps) -> None:
    loops.stop()
    assert not silent.begin_next[-1]()
    silent.end(loops)
    assert len(silent.answers) == 1


def test_join_waits_once_for_all_running_steps(
    loops: Loops, silent: SilentSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def join(_loop: StepThread, timeout_s: float) -> bool:
        limits.append(timeout_s)
        time.sleep(timeout_s)
        return True

    begin_all(silent)
    loops.stop()
    with monkeypatch.context() as patch:
        patch.setattr("ffdl_batch.daemon.loops.STOP_S", 0.2)
        patch.setattr(StepThread, "join", join)
        loops.join()
    assert len(limits) == len(loops._all()) > DEPLOYERS
    assert sum(limits) == pytest.approx(0.2, abs=0.01)
    silent.end(loops)


def test_deploy_loop_reports_changes_and_continues_when_earlier_step_ends(
    loops: Loops, told: list[str], silent: SilentSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes of a step are reported before it waits, and its end may have made room for other jobs."""
    assert told == []
    assert silent.begin_next[-1]()
    assert told == ["change"]
    silent.await_begin()
    woken = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(loops._deploys[-1], "wake", woken.set)
        silent.done = 1
        silent.answers[0].set()
        assert woken.wait(60.0)
    assert told == ["change"] * 2
    silent.done = 0
    silent.end(loops)


def test_deploy_loop_waits_for_step_while_no_thread_can_start(
    loops: Loops, silent: SilentSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_loop: StepThread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(StepThread, "start", refuse)
        assert not silent.begin_next[-1]()
    assert silent.begin_next[-1]()
    silent.await_begin()
    silent.end(loops)


def test_step_thread_sleeps_until_woken_and_stops_between_turns() -> None:
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


def test_loops_start_no_thread_when_created_and_release_leases(desk: Desk) -> None:
    before = set(threading.enumerate())
    loops = Loops(desk.platform, lambda: None)
    assert set(threading.enumerate()) <= before, "one of an earlier test may end meanwhile"
    assert loops._watch_turn() > 0
    assert desk.platform.storage.store.acquire_lease("watcher", "another", 30.0) is None
    loops.stop()
    loops.join()
    assert desk.platform.storage.store.acquire_lease("watcher", "another", 30.0) is not None


def test_doorbells_are_read_more_often_while_a_user_waits(desk: Desk) -> None:
    awaited = [False]
    loops = Loops(desk.platform, lambda: None, lambda: awaited[0])
    assert loops._listen_turn() == desk.platform.settings.doorbell_interval_s
    awaited[0] = True
    assert loops._listen_turn() == AWAITED_S
    loops.stop()
    loops.join()


@pytest.mark.parametrize(("silent_s", "pause_s"), [(900.0, 300.0), (30.0, 10.0), (0.0, 300.0)])
def test_silence_loop_derives_pause_from_silence_limit(
    desk: Desk, told: list[str], silent_s: float, pause_s: float
) -> None:
    platform = replace(desk.platform, settings=replace(desk.platform.settings, silent_s=silent_s))
    loops = Loops(platform, lambda: told.append("change"))
    assert (loops._silence_turn(), told) == (pause_s, [])
    loops.stop()
    loops.join()


def test_silence_loop_notifies_of_changed_jobs(loops: Loops, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SilenceKeeper, "look", lambda _self: 1)
    loops._silence_turn()
    assert told == ["change"]


def test_loops_are_busy_only_with_pending_uploads(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loops._uploads_turn() == UPLOADS_EVERY_S
    assert not loops.is_busy()
    pending = Attempt(
        JobId("training-000000000"), 1, Token("training-000000000-1"), "fake", "7", 0.0, upload_pending=True
    )
    monkeypatch.setattr(Store, "pending_uploads", lambda *_args: [pending])
    assert loops.is_busy()


@pytest.mark.parametrize(
    ("due_in_s", "pause_s"), [(0.2, UPLOADS_WHILE_UPLOADING_S), (7.0, 7.0), (150.0, UPLOADS_EVERY_S)]
)
def test_upload_loop_pause_follows_next_due_upload(
    loops: Loops, monkeypatch: pytest.MonkeyPatch, due_in_s: float, pause_s: float
) -> None:
    monkeypatch.setattr(PendingUploads, "due_in_s", due_in_s)
    assert loops._uploads_turn() == pause_s


def test_listen_loop_wakes_upload_loop_after_job_change(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a pending upload, or its completion, would be noticed half a minute later."""
    changes = iter((0, 1))
    monkeypatch.setattr(Watcher, "listen", lambda _self: next(changes))
    woken: list[str] = []
    monkeypatch.setattr(loops._uploads, "wake", lambda: woken.append("uploads"))
    loops._listen_turn()
    assert woken == []
    loops._listen_turn()
    assert woken == ["uploads"]


def test_step_thread_survives_memory_error_while_logging(monkeypatch: pytest.MonkeyPatch) -> None:
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
