"""What a node controller tells of learners that are silent: by the clock of its run, and not for ever."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.metrics.health import HANGS_MOST, Health
from ffdl_batch.controller.metrics.meter import Meter
from ffdl_batch.controller.record.journal import Journal
from ffdl_batch.domain.events import EventKind
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand
from ffdl_batch.domain.limits import Limits
from ffdl_batch.domain.usage import UsageSample, Use

SAMPLE = UsageSample(0.0, "n1", None, {"1": Use(cpu_s=0.0)})


@pytest.fixture
def launch(tmp_path: Path) -> LaunchFile:
    attempt = tmp_path / "attempt-1"
    command = LearnerCommand(("true",), {})
    made = LaunchFile("j", 1, "j-1", str(tmp_path), str(attempt), str(tmp_path / "bell"), command)
    log = Path(AttemptDir(str(attempt)).training_log(1))
    log.parent.mkdir(parents=True)
    log.touch()
    return replace(made, limits=Limits(hang_s=100.0))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "events.jsonl"), "node-0")


def test_health_limits_number_of_reported_hangs(launch: LaunchFile, journal: Journal) -> None:
    health = Health(launch, [1], journal)
    log = AttemptDir(launch.attempt_dir).training_log(1)
    for number in range(3 * HANGS_MOST):
        os.utime(log, (number, number))
        for at in (0.0, 60.0, 120.0):
            health.look(200.0 * number + at, {1: os.getpid()}, SAMPLE)
    assert [event.kind for event in journal.events] == [EventKind.HANG] * HANGS_MOST


def test_meter_uses_run_clock_for_hang_detection(
    launch: LaunchFile, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the run stands still then; the node's does not."""
    seen: list[float] = []
    monkeypatch.setattr(Health, "look", lambda _self, now, *_: seen.append(now))
    meter = Meter(launch, 0, [1], journal, clock=lambda: 42.0)
    meter.begin(dict, {})
    give_up = time.monotonic() + 60
    while not seen and time.monotonic() < give_up:
        time.sleep(0.01)
    meter.finish()
    assert set(seen) == {42.0}
