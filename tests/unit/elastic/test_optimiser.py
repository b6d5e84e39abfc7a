"""The optimiser finds the best allocation of one type of GPU, and the greedy baseline does what it says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.elastic.job_values import (
    Floats,
    objective_values,
    permitted_values,
    pinned_size,
    sizes_between,
    whole_node_sizes,
)
from ffdl_batch.elastic.optimiser import Allocation, InfeasibleAllocation, allocate, allocate_greedily
from tests.unit.elastic.optimal import best_allocation

NO = float("-inf")
# Whole numbers: their sums are exact, and many allocations are equally good.
WHOLE = st.integers(-3, 12).map(float)
REAL = st.floats(-1e6, 1e6)


def rows(value: st.SearchStrategy[float], most: int = 6) -> st.SearchStrategy[Floats]:
    """Values of one job, some of them not permitted."""
    return st.lists(value | value | st.just(NO), min_size=1, max_size=most + 1).map(np.array)


def limited_rows() -> st.SearchStrategy[Floats]:
    """Values of a job with the limits that owners and schedulers set."""
    masks = st.one_of(
        st.tuples(st.integers(1, 4), st.integers(1, 8)).map(lambda ends: sizes_between(*ends, most=8)),
        st.integers(1, 4).map(lambda node: whole_node_sizes(node, most=8)),
        st.integers(1, 8).map(lambda size: pinned_size(size, most=8)),
    )
    values = st.lists(WHOLE, min_size=9, max_size=9).map(np.array)
    return st.builds(permitted_values, values, masks, st.just(NO) | st.just(0.0))


def attempt(values: Sequence[Floats], gpus: int) -> Allocation | None:
    try:
        return allocate(values, gpus)
    except InfeasibleAllocation:
        return None


@given(st.lists(rows(WHOLE) | limited_rows(), max_size=6), st.integers(0, 20))
def test_allocation_equals_brute_force_also_among_equally_good_ones(values: list[Floats], gpus: int) -> None:
    best, found = best_allocation(values, gpus), attempt(values, gpus)
    if best is None:
        assert found is None
    else:
        assert found == Allocation(tuple(-size for size in reversed(best[2])), best[0])


@given(st.lists(rows(REAL), max_size=6), st.integers(0, 20))
def test_allocation_of_real_values_has_the_value_of_brute_force(values: list[Floats], gpus: int) -> None:
    best, found = best_allocation(values, gpus), attempt(values, gpus)
    assert (best is None) == (found is None)
    if best is not None and found is not None:
        assert found.value == pytest.approx(best[0], rel=1e-12, abs=1e-6)


@pytest.mark.parametrize("jobs, gpus", [(15, 60), (16, 61), (17, 7), (40, 90), (70, 100), (33, 1000)])
@pytest.mark.parametrize("shape", ["rough", "step", "saturating", "unequal", "linear"])
def test_allocation_of_many_jobs_equals_the_sums_cell_by_cell(jobs: int, gpus: int, shape: str) -> None:
    chance = np.random.default_rng(jobs)
    sizes = np.arange(18)
    values: list[Floats] = [
        {
            "rough": chance.integers(0, 1000, 18).astype(float),
            "step": np.where(sizes >= 17, 1000.0, sizes),  # the prices exclude hardly any size
            "saturating": np.floor(1000 * chance.random() * (1 - np.exp(-sizes / 5))),
            "linear": 3.0 * sizes,
            "unequal": chance.integers(0, 1000, 18) * (2.0**40 if job == 0 else 1.0),  # prices are not precise
        }[shape]
        for job in range(jobs)
    ]
    best = best_allocation(values, gpus)
    assert best is not None
    assert allocate(values, gpus) == Allocation(tuple(-size for size in reversed(best[2])), best[0])


@given(st.lists(limited_rows() | rows(WHOLE), min_size=1, max_size=8), st.integers(0, 30))
def test_allocation_is_never_worse_than_the_greedy_one(values: list[Floats], gpus: int) -> None:
    found = attempt(values, gpus)
    if found is None:
        with pytest.raises(InfeasibleAllocation):
            allocate_greedily(values, gpus)
        return
    for one in (greedy := allocate_greedily(values, gpus)), found:
        assert sum(one.gpus) <= gpus
        assert one.value == sum(row[size] for row, size in zip(values, one.gpus, strict=True)) > NO
    assert greedy.value <= found.value


@given(st.lists(limited_rows() | rows(WHOLE), min_size=1, max_size=6), st.integers(0, 30))
def test_value_does_not_decrease_with_more_gpus(values: list[Floats], gpus: int) -> None:
    fewer, more = attempt(values, gpus), attempt(values, gpus + 1)
    if fewer is not None:
        assert more is not None
        assert more.value >= fewer.value


@given(st.lists(rows(WHOLE), min_size=1, max_size=6), st.integers(0, 20))
def test_same_values_give_the_same_allocation(values: list[Floats], gpus: int) -> None:
    assert attempt(values, gpus) == attempt([row.copy() for row in values], gpus)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=6), st.integers(0, 25))
def test_greedy_is_optimal_for_concave_values(gains: list[list[int]], gpus: int) -> None:
    values = [np.array([0.0, *np.cumsum(sorted(gain, reverse=True))]) for gain in gains]
    assert allocate_greedily(values, gpus).value == allocate(values, gpus).value


def test_greedy_goes_by_the_gain_per_gpu() -> None:
    assert allocate_greedily([np.array([0.0, NO, 4.0]), np.array([0.0, 3.0])], 2).gpus == (0, 1)


def test_fall_at_the_node_boundary_stops_greedy_and_not_the_optimum() -> None:
    # Nodes of four GPUs: the fifth one costs more than it brings, eight are nearly twice as fast as four.
    scaling = np.array([0, 1, 2, 3, 4, 3.5, 4.5, 5.5, 7.5])
    values = [scaling, 0.3 * scaling]
    assert allocate_greedily(values, 8).gpus == (4, 4)
    assert allocate(values, 8) == Allocation((8, 0), 7.5)


def test_sum_gives_most_to_the_job_that_scales_and_logarithm_shares() -> None:
    sizes = np.arange(17.0)
    linear, slow = sizes, sizes ** (5 / 11)
    for alpha, expected in ((0.0, (15, 1)), (1.0, (11, 5))):
        values = [
            permitted_values(objective_values(speed, alpha=alpha), sizes_between(1, 16, most=16))
            for speed in (linear, slow)
        ]
        assert allocate(values, 16).gpus == expected


def test_too_few_gpus_are_reported_with_the_number_that_is_needed() -> None:
    values = [permitted_values(np.ones(9), sizes_between(minimum, 8, most=8)) for minimum in (2, 3)]
    assert allocate(values, 5).gpus == (2, 3)
    with pytest.raises(InfeasibleAllocation, match=r"^the jobs need at least 5 GPUs, but only 4 are available$"):
        allocate(values, 4)
    with pytest.raises(InfeasibleAllocation, match=r"^values\[1\] permits no number of GPUs up to 2$"):
        allocate(values, 2)


def test_no_jobs_get_no_gpus() -> None:
    assert allocate([], 8) == allocate_greedily([], 8) == Allocation((), 0.0)
