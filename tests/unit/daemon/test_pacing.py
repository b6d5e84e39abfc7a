"""When the loops turn."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ffdl_batch.daemon.pacing import LONGEST_S, QUIET_AFTER, QUIET_LONGEST_S, Backoff, DeployPace, WatchPace


def test_backoff_doubles_to_its_limit_and_starts_anew() -> None:
    backoff = Backoff(lambda: 0.5)
    assert [backoff.failed() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    backoff.succeeded()
    assert backoff.failed() == 1


@pytest.mark.parametrize(("random", "pause"), [(0.0, 0.75), (0.999, 1.2495)])
def test_backoff_is_spread(random: float, pause: float) -> None:
    assert Backoff(lambda: random).failed() == pytest.approx(pause)


def test_the_deployer_goes_on_at_once_while_it_progresses_and_slows_down_after() -> None:
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


def test_the_schedulers_are_asked_at_the_configured_interval_while_things_change() -> None:
    looks = run(WatchPace(2.0, 0.5), until=11, changed=1)
    assert looks == [0, 2, 4, 6, 8, 10]


def test_a_long_quiet_makes_looks_rarer_but_not_too_rare() -> None:
    looks = run(WatchPace(2.0, 0.5), until=400)
    gaps = [b - a for a, b in pairwise(looks)]
    assert gaps[: QUIET_AFTER - 1] == [2.0] * (QUIET_AFTER - 1)
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(QUIET_LONGEST_S)


def test_a_look_that_costs_much_is_followed_by_peace() -> None:
    pace = WatchPace(2.0, 0.5)
    pace.after(full=True, changed=1, took_s=0.5, now=100.0)
    assert not pace.is_full_due(109.9)
    pace.poke(101.0)
    assert not pace.is_full_due(109.9)  # not even a submission makes us impolite
    assert pace.is_full_due(110.0)
    pace.after(full=True, changed=1, took_s=60.0, now=200.0)
    assert pace.is_full_due(200.0 + LONGEST_S)


def test_after_a_long_quiet_looks_cost_no_more_than_a_hundredth() -> None:
    pace = WatchPace(base_s=2.0, doorbell_s=1000.0)
    pauses = [pace.after(full=True, changed=0, took_s=0.25, now=0.0) for _ in range(60)]
    assert (pauses[0], pauses[-1]) == (5.0, 25.0)
    assert pace.after(full=True, changed=1, took_s=0.25, now=0.0) == 5.0
    assert [pace.after(full=True, changed=0, took_s=9.0, now=0.0) for _ in range(60)][-1] == 30.0


def test_a_submission_or_a_doorbell_ends_the_quiet() -> None:
    pace = WatchPace(2.0, 0.5)
    run(pace, until=400)
    now = pace.next_full - 5
    pace.after(full=False, changed=1, took_s=0.0, now=now)
    assert pace.next_full == now + 2.0
    pace.poke(now + 1)
    assert pace.is_full_due(now + 1)


def test_doorbells_are_heard_between_looks() -> None:
    pace = WatchPace(2.0, 0.5)
    assert pace.after(full=True, changed=0, took_s=0.0, now=0.0) == 0.5
    assert pace.after(full=False, changed=0, took_s=0.0, now=1.8) == pytest.approx(0.2)
