"""How the stream of submissions is shared between tenants."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ffdl_batch.site.hub.fair_window import DEMAND_S, FORGOTTEN_S, FairWindow, max_min_shares
from tests.fakes.clock import FakeClock


def ask(window: FairWindow, group: str, count: int, weight: float = 1.0) -> list[str]:
    """Ask for jobs of the user whose uid is the group's number; the ones that may go."""
    uid = int(group[1:])
    jobs = [f"{group}-{number}" for number in range(count)]
    going = jobs[: window.room(group, weight, uid, count)]
    window.grant(group, uid, going)
    return going


@pytest.mark.parametrize(
    ("needs", "weights", "shares"),
    [
        ({"a": 100}, {"a": 1}, {"a": 10}),
        ({"a": 100, "b": 100}, {"a": 1, "b": 3}, {"a": 2.5, "b": 7.5}),
        ({"a": 100, "b": 2, "c": 100}, {"a": 1, "b": 1, "c": 1}, {"a": 4, "b": 2, "c": 4}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 2}),
        ({}, {}, {}),
    ],
)
def test_shares_follow_weights_and_needs(
    needs: dict[str, float], weights: dict[str, float], shares: dict[str, float]
) -> None:
    assert max_min_shares(needs, weights, 10) == pytest.approx(shares)


def test_one_group_alone_may_hand_over_as_many_jobs_as_there_is_room() -> None:
    window = FairWindow(8, FakeClock().monotonic)
    going = ask(window, "g1", 100)
    assert len(going) == 8
    window.note_handed(1, going[:3])
    assert len(ask(window, "g1", 100)) == 3


def test_group_that_comes_later_gets_its_share_when_the_others_ask_again() -> None:
    window = FairWindow(8, FakeClock().monotonic)
    going = ask(window, "g1", 100)
    assert len(ask(window, "g2", 10)) == 4  # at once, although the room is taken
    window.note_handed(1, going)
    assert len(ask(window, "g1", 92)) == 4
    window.note_handed(2, [f"g2-{number}" for number in range(4)])
    assert len(ask(window, "g2", 1)) == 1
    window.note_handed(1, [f"g1-{number}" for number in range(4)])
    assert len(ask(window, "g1", 88)) == 7


def test_every_group_may_hand_over_one_job_however_many_groups_there_are() -> None:
    window = FairWindow(2, FakeClock().monotonic)
    assert [len(ask(window, f"g{number}", 5)) for number in range(10)] == [2, *[1] * 9]


@pytest.mark.parametrize(("after_s", "expected"), [(FORGOTTEN_S - 1, 0), (FORGOTTEN_S + 1, 2)])
def test_jobs_of_a_daemon_that_reports_nothing_count_for_a_limited_time(after_s: float, expected: int) -> None:
    clock = FakeClock()
    window = FairWindow(2, clock.monotonic)
    ask(window, "g1", 2)
    clock.tick(after_s)
    assert len(ask(window, "g1", 2)) == expected


@pytest.mark.parametrize(("after_s", "expected"), [(DEMAND_S - 1, 4), (DEMAND_S + 1, 8)])
def test_demand_of_a_daemon_that_asks_no_more_counts_for_a_limited_time(after_s: float, expected: int) -> None:
    clock = FakeClock()
    window = FairWindow(8, clock.monotonic)
    window.note_handed(1, ask(window, "g1", 100))
    clock.tick(after_s)
    assert len(ask(window, "g2", 100)) == expected


def rates(weights: Sequence[float]) -> list[int]:
    """How many jobs groups with endless demand have handed over after a while."""
    clock = FakeClock()
    window = FairWindow(16, clock.monotonic)
    done = [0] * len(weights)
    running: list[list[str]] = [[] for _ in weights]
    for _ in range(200):
        clock.tick(0.1)
        for number, weight in enumerate(weights, 1):
            window.note_handed(number, running[number - 1])
            done[number - 1] += len(running[number - 1])
            running[number - 1] = ask(window, f"g{number}", 1000, weight)
    return done


def test_rates_of_groups_with_endless_demand_follow_their_weights() -> None:
    one, two, four = rates([1, 2, 4])
    assert two / one == pytest.approx(2, rel=0.15)
    assert four / one == pytest.approx(4, rel=0.2)
