"""When the loops turn."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ffdl_batch.daemon.loop_intervals import LONGEST_S, QUIET_AFTER, QUIET_LONGEST_S, Backoff, DeployPace, WatchPace


def test_backoff_doubles_to_limit_and_resets_after_success() -> None:
    backoff = Backoff(lambda: 0.5)
    assert [backoff.failed() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    backoff.succeeded()
    assert backoff.failed() == 1


@pytest.mark.parametrize(("random", "pause"), [(0.0, 0.75), (0.999, 1.2495)])
def test_backoff_adds_random_jitter(random: float, pause: float) -> None:
    assert Backoff(lambda: random).failed() == pytest.approx(pause)


def test_deploy_pace_continues_after_progress_and_slows_down_when_idle() -> None:
    pace = DeployPace()
    assert pace.after(3) == 0
    assert [pace.after(0) for _ in range(6)] == [1, 1.5, 2.25, 3.375, 5, 5]
    pace.poke()
    assert pace.after(0) == 1


def run(pace: WatchPace, *, until: float, changed: int = 0, took_s: float = 0.0) -> list[float]:
    """Times of the full looks when nothing pokes."""
    now, looks = 0.0, []
    while now < until:
        full = pace.is_full_due(now)
        if full:
            looks.append(now)
        now += pace.after(full=full, changed=changed, took_s=took_s, now=now)
    return looks


def test_watch_pace_lengthens_interval_up_to_limit_only_when_quiet() -> None:
    assert run(WatchPace(2.0, 0.5), until=11, changed=1) == [0, 2, 4, 6, 8, 10]
    gaps = [b - a for a, b in pairwise(run(WatchPace(2.0, 0.5), until=400))]
    assert gaps[: QUIET_AFTER - 1] == [2.0] * (QUIET_AFTER - 1)
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(QUIET_LONGEST_S)


def test_watch_pace_delays_next_query_after_slow_query() -> None:
    pace = WatchPace(2.0, 0.5)
    pace.after(full=True, changed=1, took_s=0.5, now=100.0)
    assert not pace.is_full_due(109.9)
    pace.poke(101.0)
    assert not pace.is_full_due(109.9)  # not even a submission makes us impolite
    assert pace.is_full_due(110.0)
    pace.after(full=True, changed=1, took_s=60.0, now=200.0)
    assert pace.is_full_due(200.0 + LONGEST_S)


def test_watch_pace_limits_query_cost_to_one_percent_when_quiet() -> None:
    pace = WatchPace(base_s=2.0, doorbell_s=1000.0)
    pauses = [pace.after(full=True, changed=0, took_s=0.25, now=0.0) for _ in range(60)]
    assert (pauses[0], pauses[-1]) == (5.0, 25.0)
    assert pace.after(full=True, changed=1, took_s=0.25, now=0.0) == 5.0
    assert [pace.after(full=True, changed=0, took_s=9.0, now=0.0) for _ in range(60)][-1] == 30.0


def test_watch_pace_resumes_base_interval_after_doorbell_or_submission() -> None:
    pace = WatchPace(2.0, 0.5)
    run(pace, until=400)
    now = pace.next_full - 5
    pace.after(full=False, changed=1, took_s=0.0, now=now)
    assert pace.next_full == now + 2.0
    pace.poke(now + 1)
    assert pace.is_full_due(now + 1)


def test_watch_pace_checks_doorbell_between_queries() -> None:
    pace = WatchPace(2.0, 0.5)
    assert pace.after(full=True, changed=0, took_s=0.0, now=0.0) == 0.5
    assert pace.after(full=False, changed=0, took_s=0.0, now=1.8) == pytest.approx(0.2)
