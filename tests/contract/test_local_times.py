"""When an attempt on this machine ended whose supervisor, head and node controller were killed together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, decode_events
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.host.processes import lives_here
from ffdl_local.records import STARTED, STATE, local_directory, read_record
from tests.contract.scheduler_harness import LocalHarness

ALIVE_S = 1.5
"""How long the learner lives on alone at least."""


@pytest.fixture(name="world")
def opened(tmp_path: Path) -> Iterator[LocalHarness]:
    with LocalHarness(tmp_path, {}) as harness:
        yield harness


def said(attempt: AttemptDir, kind: EventKind) -> Event:
    """The node controller's event of this kind."""
    return next(e for e in decode_events(Path(attempt.event_file("node-0")).read_text()) if e.kind is kind)


def is_told(attempt: AttemptDir) -> bool:
    """Whether the supervisor has noted its head, and the node controller its learner: each does so after the start."""
    state = read_record(local_directory(attempt.path) / STATE) or {}
    events = Path(attempt.event_file("node-0"))
    kinds = [event.kind for event in decode_events(events.read_text())] if events.exists() else []
    return bool(state.get("head")) and EventKind.LEARNER_STARTED in kinds


def kill_controllers(attempt: AttemptDir) -> None:
    """None of them does anything about the end of another one."""
    directory = local_directory(attempt.path)
    started, state = read_record(directory / STARTED), read_record(directory / STATE)
    assert started is not None and state is not None
    pids = [started["pid"], state["head"], said(attempt, EventKind.STARTED).fields["pid"]]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            assert isinstance(pid, int) and pid > 1
            os.kill(pid, number)


def test_local_end_time_follows_learner_that_outlives_its_controllers(world: LocalHarness) -> None:
    native, plan = world.submit(f"echo up; while [ ! -e '{world.base}/go' ]; do sleep 0.02; done")
    world.await_log(plan, "up")
    attempt = plan.attempt_dir
    world.wait(lambda: is_told(attempt), world.diagnosis)
    kill_controllers(attempt)
    killed_at = time.time()
    time.sleep(ALIVE_S)
    looked_at = time.time()
    seen = world.await_end(native)
    assert seen.end is EndCause.NODE_FAIL
    assert seen.ended_at is not None and looked_at <= seen.ended_at <= time.time(), "its learner lives"
    (world.base / "go").touch()
    word, learner = Path(attempt.state, ".ended-1"), said(attempt, EventKind.LEARNER_STARTED)
    world.wait(lambda: word.exists() and not lives_here(learner.fields), world.diagnosis)
    seen = world.await_end(native)
    assert seen.ended_at == word.stat().st_mtime > killed_at + ALIVE_S / 2  # the kernel stamps files by its last tick
