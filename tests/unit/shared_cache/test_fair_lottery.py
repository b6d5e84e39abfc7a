"""The rule of the shared cache, on small cases, against all contents, all coalitions and linear programs."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from ffdl_batch.staging.shared_cache.fair_lottery import Lottery, best_content, fair_lottery, shares

SLACK = 1e-9
ITEMS = "abcde"
SIZES = st.fixed_dictionaries({item: st.integers(1, 9) for item in ITEMS})
DEMANDS = st.dictionaries(
    st.sampled_from("1234"),
    st.dictionaries(st.sampled_from(ITEMS), st.integers(0, 50).map(float), max_size=5),
    min_size=1,
)
LIMITS = st.integers(1, 30)


def contents_of(sizes: dict[str, int], limit: int) -> list[frozenset[str]]:
    every = chain.from_iterable(combinations(sizes, count) for count in range(len(sizes) + 1))
    return [frozenset(one) for one in every if sum(sizes[item] for item in one) <= limit]


def value(content: frozenset[str], demand: dict[str, float]) -> float:
    return sum(demand.get(item, 0.0) for item in content)


def useful(demands: dict[str, dict[str, float]], sizes: dict[str, int], limit: int) -> list[dict[str, float]]:
    """The demands of tenants who could get something."""
    return [one for one in demands.values() if any(v > 0 and sizes[i] <= limit for i, v in one.items())]


@settings(deadline=None)
@given(DEMANDS, SIZES, LIMITS)
def test_lottery_gap_is_no_smaller_than_the_gap_over_all_contents(
    demands: dict[str, dict[str, float]], sizes: dict[str, int], limit: int
) -> None:
    lottery, tenants = fair_lottery(demands, sizes, limit), useful(demands, sizes, limit)
    assert lottery.gap < 0.05
    assert all(sum(sizes[item] for item in content) <= limit for content in lottery.contents)
    assert sum(lottery.chances) == pytest.approx(1.0 if tenants else 0.0)
    for content in contents_of(sizes, limit):
        gain = sum(value(content, one) / lottery.value(one) for one in tenants)
        assert gain <= len(tenants) * (1 + lottery.gap) + SLACK


@settings(deadline=None, max_examples=60)
@given(DEMANDS, SIZES, LIMITS)
def test_no_coalition_gains_with_its_part_of_the_windows(
    demands: dict[str, dict[str, float]], sizes: dict[str, int], limit: int
) -> None:
    """The core in expectation. The coalition of all shows Pareto efficiency, that of one the sharing incentive."""
    lottery, tenants = fair_lottery(demands, sizes, limit), useful(demands, sizes, limit)
    contents = contents_of(sizes, limit)
    for count in range(1, len(tenants) + 1):
        for coalition in combinations(tenants, count):
            gains = np.array([[value(c, one) / lottery.value(one) for c in contents] for one in coalition])
            most = linprog(
                c=[*np.zeros(len(contents)), -1.0],
                A_ub=np.hstack([-gains, np.ones((count, 1))]),
                b_ub=np.zeros(count),
                A_eq=[[*np.ones(len(contents)), 0.0]],
                b_eq=[count / len(tenants)],
            )
            assert -most.fun <= 1 + lottery.gap + 1e-6


@settings(deadline=None)
@given(DEMANDS, SIZES, LIMITS)
def test_tenants_get_on_harmonic_average_no_less_than_from_equal_parts_of_the_bytes(
    demands: dict[str, dict[str, float]], sizes: dict[str, int], limit: int
) -> None:
    lottery, tenants = fair_lottery(demands, sizes, limit), useful(demands, sizes, limit)
    if tenants:
        parts = contents_of(sizes, limit // len(tenants))
        alone = [max(value(content, one) for content in parts) for one in tenants]
        ratios = [mine / lottery.value(one) for mine, one in zip(alone, tenants, strict=True)]
        assert sum(ratios) / len(tenants) <= 1 + lottery.gap + SLACK


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(ITEMS), st.integers(0, 50).map(float)), SIZES, LIMITS)
def test_best_content_is_within_its_bound_of_brute_force(
    weights: dict[str, float], sizes: dict[str, int], limit: int
) -> None:
    content, bound = best_content(weights, sizes, limit)
    best = max(value(one, weights) for one in contents_of(sizes, limit))
    assert sum(sizes[item] for item in content) <= limit
    assert best <= bound + SLACK
    assert value(content, weights) >= best / 1.001 - SLACK


@settings(deadline=None)
@given(DEMANDS, SIZES, LIMITS, st.integers(2, 1000))
def test_tenant_takes_nothing_from_others_by_repeating_its_reads(
    demands: dict[str, dict[str, float]], sizes: dict[str, int], limit: int, times: int
) -> None:
    tenant = min(demands)
    louder = {**demands, tenant: {item: v * times for item, v in demands[tenant].items()}}
    plain, loud = fair_lottery(demands, sizes, limit), fair_lottery(louder, sizes, limit)
    for one in useful(demands, sizes, limit):
        assert loud.value(one) >= plain.value(one) / (1 + 5 * (plain.gap + loud.gap + 0.02))


@settings(deadline=None)
@given(DEMANDS, SIZES, LIMITS)
def test_parts_of_each_item_sum_to_one_and_tenants_pay_alike(
    demands: dict[str, dict[str, float]], sizes: dict[str, int], limit: int
) -> None:
    lottery = fair_lottery(demands, sizes, limit)
    parts = shares(lottery, demands)
    for of_item in parts.values():
        assert sum(of_item.values()) == pytest.approx(1.0)
        assert all(part > 0 for part in of_item.values())


def test_item_that_two_tenants_need_is_charged_to_both_and_stays() -> None:
    demands = {"ada": {"shared": 10.0}, "bob": {"shared": 10.0}, "eve": {"own": 10.0}}
    lottery = fair_lottery(demands, {"shared": 5, "own": 5}, 5)
    chance = dict(zip(lottery.contents, lottery.chances, strict=True))
    assert chance[frozenset({"shared"})] == pytest.approx(2 / 3, rel=0.02)
    assert shares(lottery, demands) == {
        "shared": {"ada": pytest.approx(0.5), "bob": pytest.approx(0.5)},
        "own": {"eve": 1.0},
    }


def test_large_case_ends_with_a_small_gap() -> None:
    chance = np.random.default_rng(3)
    sizes = {str(n): int(size) for n, size in enumerate(chance.integers(1, 1000, 300))}
    demands = {
        f"t{n}": {str(item): float(chance.integers(1, 100)) for item in chance.choice(300, 60, replace=False)}
        for n in range(12)
    }
    assert fair_lottery(demands, sizes, 20_000).gap < 0.03


def test_no_demand_gives_an_empty_lottery() -> None:
    assert fair_lottery({"ada": {}, "bob": {"big": 3.0}}, {"big": 10}, 5) == Lottery()
