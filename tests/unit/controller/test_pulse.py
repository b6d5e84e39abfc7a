"""When a silent learner is called hung: idle ones after a while, busy ones where they had a rhythm."""

from __future__ import annotations

from pathlib import Path

from ffdl_batch.controller.metrics.pulse import Pulse, Silence, shown_by

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


def test_who_writes_and_computes_nothing_hangs_and_is_told_once() -> None:
    assert lived(Pulse(HANG_S), 1000) == [(100, Silence(100.0, idle=True))]


def test_who_writes_now_and_then_does_not_hang() -> None:
    assert lived(Pulse(HANG_S), 1000, sign_each=90) == []


def test_who_computes_without_a_word_from_the_beginning_may_be_well() -> None:
    assert lived(Pulse(HANG_S), 10_000, cpu=1.0) == []


def test_who_computes_but_lost_its_rhythm_hangs() -> None:
    pulse = Pulse(HANG_S)
    for at in range(0, 200, 10):
        assert pulse.feel(float(at), ((at, 0),), float(at)) is None
    told = [at for at in range(200, 1000, 10) if pulse.feel(float(at), ((190, 0),), float(at)) is not None]
    assert told == [290]  # the longest pause was 10 s: a hundred is ten times that


def test_a_long_pause_of_before_is_no_hang_when_it_comes_again() -> None:
    pulse = Pulse(HANG_S)
    for at in range(0, 2000, 100):  # an evaluation of 100 s each
        assert pulse.feel(float(at), ((at, 0),), float(at)) is None
    assert pulse.feel(2400.0, ((1900, 0),), 2400.0) is None
    assert pulse.feel(2900.0, ((1900, 0),), 2900.0) == Silence(1000.0, idle=False)


def test_work_before_the_silence_does_not_hide_that_it_idles_now() -> None:
    pulse = Pulse(HANG_S)
    assert pulse.feel(0.0, ((0, 0),), 0.0) is None
    for at in range(10, 80, 10):
        assert pulse.feel(float(at), ((0, 0),), float(at)) is None
    told = [at for at in range(80, 400, 10) if pulse.feel(float(at), ((0, 0),), 70.0) is not None]
    assert told == [170]  # at work until 70


def test_a_sign_after_a_hang_begins_a_new_watch() -> None:
    pulse = Pulse(HANG_S)
    assert [at for at in range(0, 500, 10) if pulse.feel(float(at), ((at // 250, 0),), 0.0)] == [100, 350]


def test_nothing_is_concluded_where_processor_time_is_not_known() -> None:
    pulse = Pulse(HANG_S)
    assert [at for at in range(0, 500, 10) if pulse.feel(float(at), ((0, 0),), None)] == []


def test_few_samples_are_kept_however_long_it_is_quiet() -> None:
    pulse = Pulse(HANG_S)
    for at in range(10_000):
        pulse.feel(at / 10, ((at, 0),), 0.0)
    assert len(pulse._work) < 80


def test_signs_are_size_and_time_of_files_that_may_not_be_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    before = shown_by([str(path)])
    path.write_text("line\n")
    after = shown_by([str(path)])
    assert before == (None,)
    assert after == ((5, path.stat().st_mtime_ns),)
