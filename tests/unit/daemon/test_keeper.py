"""When a daemon that nobody needs ends by itself, and when it must not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ffdl_batch.daemon.server import Keeper
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store import Store, open_store
from tests.unit.store.jobs import FakeClock, add_job

IDLE_S = 60.0


@dataclass
class Idle:
    """A daemon without requests."""

    clock: FakeClock
    store: Store
    keeper: Keeper

    def is_over_after(self, seconds: float) -> bool:
        """Whether it would end when the keeper looks so much later."""
        self.clock.time += seconds
        self.keeper._check_database()
        return self.keeper._is_quiet()


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Idle]:
    clock = FakeClock()
    (tmp_path / "state").mkdir()
    store = open_store(f"sqlite:///{tmp_path}/state/jobs.db", clock=clock)
    settings = SimpleNamespace(idle_exit_s=IDLE_S)
    storage = SimpleNamespace(store=store, clock=clock, uid=1000)
    platform = SimpleNamespace(storage=storage, settings=settings)
    daemon = SimpleNamespace(platform=platform, hold=None, listener=None, watch=None)
    server = SimpleNamespace(should_exit=False, count_connections=lambda: 0)
    context = SimpleNamespace(requests=0)
    made = Keeper(cast("Any", daemon), cast("Any", context), cast("Any", server), lambda: False)
    yield Idle(clock, store, made)
    store.close()


def test_keeper_retries_when_no_thread_can_start(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a daemon that was short of threads once would never end, and never notice that its socket is gone."""
    server, looks = idle.keeper._server, []

    def starved(_: threading.Thread) -> None:
        looks.append("a thread")
        server.should_exit = len(looks) == 3
        raise RuntimeError("can't start new thread")

    async def keep() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", starved)
            await idle.keeper.keep()

    monkeypatch.setattr("ffdl_batch.daemon.server.LOOK_S", 0.01)
    asyncio.run(keep())
    assert len(looks) == 3


def test_keeper_ends_daemon_after_idle_time(idle: Idle) -> None:
    assert not idle.is_over_after(IDLE_S / 2)
    assert idle.is_over_after(IDLE_S)


def test_keeper_keeps_daemon_while_database_directory_is_missing(idle: Idle, tmp_path: Path) -> None:
    add_job(idle.store)
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    assert not idle.is_over_after(IDLE_S * 2)
    assert not idle.is_over_after(IDLE_S * 2)
    (tmp_path / "elsewhere").rename(tmp_path / "state")
    assert not idle.is_over_after(IDLE_S / 2)
    assert idle.is_over_after(IDLE_S)
