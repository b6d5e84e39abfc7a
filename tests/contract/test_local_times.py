"""When an attempt on this machine ended whose supervisor, head and node controller were killed together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.controller.machine.processes import lives_here
from ffdl_batch.domain.events import Event, EventKind, decode_events
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.observation import EndCause
from ffdl_local.records import STARTED, STATE, local_directory, read_record
from tests.contract.scheduler_harness import LocalHarness

ALIVE_S = 1.5
"""How long the learner lives on alone at least."""


@pytest.fixture(name="world")
def opened(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path, {})
    try:
        yield harness
    finally:
        harness.close()


def said(attempt: AttemptDir, kind: EventKind) -> Event:
    """The node controller's event of this kind."""
    return next(e for e in decode_events(Path(attempt.event_file("node-0")).read_text()) if e.kind is kind)


def kill_controllers(attempt: AttemptDir) -> None:
    directory = local_directory(attempt.path)
    started, state = read_record(directory / STARTED), read_record(directory / STATE)
    assert started is not None and state is not None
    for pid in (started["pid"], state["head"], said(attempt, EventKind.STARTED).fields["pid"]):
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)


def test_it_ends_with_the_learner_that_outlived_them(world: LocalHarness) -> None:
    native, plan = world.submit(f"echo up; while [ ! -e '{world.base}/go' ]; do sleep 0.02; done")
    world.await_log(plan, "up")
    attempt = plan.attempt_dir
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
