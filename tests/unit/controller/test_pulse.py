"""When a silent learner is called hung: idle ones after a while, busy ones where they had a rhythm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.metrics.hang_detection import (
    HANGS_MOST,
    REMEMBERED,
    HangDetection,
    Pace,
    Silence,
    SilenceDetector,
    shown_by,
)
from ffdl_batch.controller.metrics.monitor import Monitor
from ffdl_batch.domain.launch.launch_file import LaunchFile, Seat
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.metrics.records import Collecting
from ffdl_batch.domain.metrics.usage import UsageSample, Use
from ffdl_batch.domain.outcome.controller_events import EventKind
from tests.unit.controller.rig import launch_file, until

HANG_S = 100.0


def lived(pulse: SilenceDetector, until: int, sign_each: int, cpu: float) -> list[tuple[int, Silence]]:
    """Samples from 0 each 10 s; a sign each `sign_each` s (0 = the first alone); `cpu` cores are used."""
    found = []
    for at in range(0, until + 1, 10):
        shown = ((at // sign_each if sign_each else 0, 0),)
        silence = pulse.feel(float(at), shown, cpu * at)
        if silence is not None:
            found.append((at, silence))
    return found


@pytest.mark.parametrize(
    ("until", "sign_each", "cpu", "found"),
    [
        (1000, 0, 0.0, [(100, Silence(100.0, idle=True))]),
        (1000, 90, 0.0, []),
        (10_000, 0, 1.0, []),  # it computes without a word from the start, and may be well
    ],
)
def test_pulse_reports_idle_silent_learner_once_and_no_other(
    until: int, sign_each: int, cpu: float, found: list[tuple[int, Silence]]
) -> None:
    assert lived(SilenceDetector(HANG_S), until, sign_each, cpu) == found


def test_pulse_reports_hang_if_busy_learner_stops_its_regular_output() -> None:
    pulse = SilenceDetector(HANG_S)
    for at in range(0, 200, 10):
        assert pulse.feel(float(at), ((at, 0),), float(at)) is None
    told = [at for at in range(200, 1000, 10) if pulse.feel(float(at), ((190, 0),), float(at)) is not None]
    assert told == [290]  # the longest pause was 10 s: a hundred is ten times that


def test_pulse_tolerates_pauses_as_long_as_earlier_ones() -> None:
    pulse = SilenceDetector(HANG_S)
    for at in range(0, 2000, 100):  # an evaluation of 100 s each
        assert pulse.feel(float(at), ((at, 0),), float(at)) is None
    assert pulse.feel(2400.0, ((1900, 0),), 2400.0) is None
    assert pulse.feel(2900.0, ((1900, 0),), 2900.0) == Silence(1000.0, idle=False)


@pytest.mark.parametrize("step", [1, 10])
def test_pulse_counts_idle_time_from_end_of_work(step: int) -> None:
    pulse = SilenceDetector(HANG_S)
    for at in range(0, 80, step):
        assert pulse.feel(float(at), ((0, 0),), 2.0 * at) is None
    worked = 2.0 * (80 - step)
    told = [at for at in range(80, 400, step) if pulse.feel(float(at), ((0, 0),), worked) is not None]
    assert len(told) == 1 and abs(told[0] - (80 - step) - HANG_S) <= HANG_S / REMEMBERED


@pytest.mark.parametrize(("cpu_s", "told"), [(0.0, [100, 350]), (None, [])])
def test_pulse_restarts_detection_after_output_and_needs_processor_time(cpu_s: float | None, told: list[int]) -> None:
    pulse = SilenceDetector(HANG_S)
    assert [at for at in range(0, 500, 10) if pulse.feel(float(at), ((at // 250, 0),), cpu_s)] == told


def test_pulse_keeps_few_samples_at_high_sampling_rate() -> None:
    pulse = SilenceDetector(HANG_S)
    for at in range(10_000):
        pulse.feel(at / 10, ((at, 0),), 0.0)
    assert len(pulse._work) < 80


def test_shown_by_returns_size_and_time_or_none_for_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    before = shown_by([str(path)])
    path.write_text("line\n")
    after = shown_by([str(path)])
    assert before == (None,)
    assert after == ((5, path.stat().st_mtime_ns),)


# ------------------------------------------------------------------------------------- what a node controller reports


SAMPLE = UsageSample(0.0, "n1", None, {"1": Use(cpu_s=0.0)})


@pytest.fixture
def launch(tmp_path: Path) -> LaunchFile:
    log = Path(AttemptDir(str(tmp_path / "attempt-1")).training_log(1))
    log.parent.mkdir(parents=True)
    log.touch()
    return launch_file(str(tmp_path / "attempt-1"), limits=Limits(hang_s=100.0))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "events.jsonl"), "node-0")


def test_health_limits_number_of_reported_hangs(launch: LaunchFile, journal: Journal) -> None:
    health = HangDetection(launch, [1], journal)
    log = AttemptDir(launch.attempt_dir).training_log(1)
    for number in range(3 * HANGS_MOST):
        os.utime(log, (number, number))
        for at in (0.0, 60.0, 120.0):
            health.look(200.0 * number + at, {1: os.getpid()}, SAMPLE)
    assert [event.kind for event in journal.events] == [EventKind.HANG] * HANGS_MOST


def test_records_are_read_in_pauses_that_double_up_to_a_minute(
    launch: LaunchFile, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = launch_file(launch.attempt_dir, learners=2, seats=(Seat(0), Seat(0)), metrics=Collecting("tensorboard"))
    health = HangDetection(two, [1], journal)
    looks: list[float] = []
    for now in range(0, 200, 5):
        monkeypatch.setattr(Pace, "changed_pace", lambda _self, now=now: looks.append(now))
        health.look(now, {1: os.getpid()}, SAMPLE)
    assert looks == [0, 10, 30, 70, 130, 190]


def test_meter_uses_run_clock_for_hang_detection(
    launch: LaunchFile, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the run stands still then; the node's does not."""
    seen: list[float] = []
    monkeypatch.setattr(HangDetection, "look", lambda _self, now, *_: seen.append(now))
    meter = Monitor(launch, 0, [1], journal, clock=lambda: 42.0)
    meter.begin(dict, {})
    until(lambda: seen)
    meter.finish()
    assert set(seen) == {42.0}
