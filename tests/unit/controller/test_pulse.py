"""When a silent learner is called hung: idle ones after a while, busy ones where they had a rhythm."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.controller.metrics.pulse import REMEMBERED, Pulse, Silence, shown_by

HANG_S = 100.0


def lived(
    pulse: Pulse, until: int, *, step: int = 10, sign_each: int = 0, cpu: float = 0.0
) -> list[tuple[int, Silence]]:
    """Samples from 0 each `step` s; a sign each `sign_each` s (0 = the first alone); `cpu` cores are used."""
    found = []
    for at in range(0, until + 1, step):
        shown = ((at // sign_each if sign_each else 0, 0),)
        silence = pulse.feel(float(at), shown, cpu * at)
        if silence is not None:
            found.append((at, silence))
    return found


def test_pulse_reports_idle_silent_learner_once() -> None:
    assert lived(Pulse(HANG_S), 1000) == [(100, Silence(100.0, idle=True))]


def test_pulse_reports_no_hang_with_regular_output() -> None:
    assert lived(Pulse(HANG_S), 1000, sign_each=90) == []


def test_pulse_reports_no_hang_if_learner_computes_silently_from_start() -> None:
    assert lived(Pulse(HANG_S), 10_000, cpu=1.0) == []


def test_pulse_reports_hang_if_busy_learner_stops_its_regular_output() -> None:
    pulse = Pulse(HANG_S)
    for at in range(0, 200, 10):
        assert pulse.feel(float(at), ((at, 0),), float(at)) is None
    told = [at for at in range(200, 1000, 10) if pulse.feel(float(at), ((190, 0),), float(at)) is not None]
    assert told == [290]  # the longest pause was 10 s: a hundred is ten times that


def test_pulse_tolerates_pauses_as_long_as_earlier_ones() -> None:
    pulse = Pulse(HANG_S)
    for at in range(0, 2000, 100):  # an evaluation of 100 s each
        assert pulse.feel(float(at), ((at, 0),), float(at)) is None
    assert pulse.feel(2400.0, ((1900, 0),), 2400.0) is None
    assert pulse.feel(2900.0, ((1900, 0),), 2900.0) == Silence(1000.0, idle=False)


@pytest.mark.parametrize("step", [1, 10])
def test_pulse_counts_idle_time_from_end_of_work(step: int) -> None:
    pulse = Pulse(HANG_S)
    for at in range(0, 80, step):
        assert pulse.feel(float(at), ((0, 0),), 2.0 * at) is None
    worked = 2.0 * (80 - step)
    told = [at for at in range(80, 400, step) if pulse.feel(float(at), ((0, 0),), worked) is not None]
    assert len(told) == 1 and abs(told[0] - (80 - step) - HANG_S) <= HANG_S / REMEMBERED


def test_pulse_restarts_detection_after_output_resumes() -> None:
    pulse = Pulse(HANG_S)
    assert [at for at in range(0, 500, 10) if pulse.feel(float(at), ((at // 250, 0),), 0.0)] == [100, 350]


def test_pulse_reports_no_hang_without_processor_time() -> None:
    pulse = Pulse(HANG_S)
    assert [at for at in range(0, 500, 10) if pulse.feel(float(at), ((0, 0),), None)] == []


def test_pulse_keeps_few_samples_at_high_sampling_rate() -> None:
    pulse = Pulse(HANG_S)
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
