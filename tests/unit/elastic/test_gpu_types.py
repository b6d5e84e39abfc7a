"""Allocations of several types of GPU are feasible, and the best one is between their value and their bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ffdl_batch.elastic.gpu_types import allocate_types
from ffdl_batch.elastic.job_values import Floats
from ffdl_batch.elastic.optimiser import InfeasibleAllocation, allocate
from tests.unit.elastic.optimal import best_typed_value

NO = float("-inf")
ROWS = st.lists(st.integers(0, 12).map(float) | st.just(NO), min_size=1, max_size=5)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[dict[str, list[Floats]], dict[str, int]]:
    """Values of up to five jobs with up to three types; most of the jobs can wait."""
    jobs = draw(st.integers(1, 5))
    gpus = {name: draw(st.integers(0, 6)) for name in "abc"[: draw(st.integers(1, 3))]}
    waiting = [draw(st.sampled_from([0.0, 0.0, -5.0, NO])) for _ in range(jobs)]
    values = {name: [np.array([waits, *draw(ROWS)]) for waits in waiting] for name in gpus}
    return values, gpus


@given(typed_values())
def test_typed_allocation_is_feasible_and_the_optimum_lies_within_its_gap(
    given_values: tuple[dict[str, list[Floats]], dict[str, int]],
) -> None:
    values, gpus = given_values
    best = best_typed_value(values, gpus)
    try:
        found = allocate_types(values, gpus)
    except InfeasibleAllocation:
        assume(best is None)  # the heuristic may miss the only feasible ones
        return
    assert best is not None
    for name, available in gpus.items():
        assert sum(size for kind, size in zip(found.types, found.gpus, strict=True) if kind == name) <= available
    chosen = [
        values[kind][job][size] if kind else max(rows[job][0] for rows in values.values())
        for job, (kind, size) in enumerate(zip(found.types, found.gpus, strict=True))
    ]
    assert found.value == sum(chosen)
    assert found.value <= best <= found.upper_bound + 1e-9
    assert best - found.value <= found.gap + 1e-9
    assert allocate_types(values, gpus) == found


@given(st.lists(ROWS.map(lambda row: np.array([0.0, *row])), min_size=1, max_size=6), st.integers(0, 12))
def test_one_type_is_allocated_exactly(values: list[Floats], gpus: int) -> None:
    assert allocate_types({"a": values}, {"a": gpus}).value == allocate(values, gpus).value


def test_each_job_gets_the_type_that_it_uses_best_and_no_gap_is_left() -> None:
    sizes = np.arange(5.0)
    found = allocate_types(
        {"fast": [3 * sizes, 2 * sizes, sizes], "slow": [sizes, 1.9 * sizes, np.array([0.0])]}, {"fast": 4, "slow": 4}
    )
    assert (found.types, found.gpus) == (("fast", "slow", None), (4, 4, 0))
    assert found.value == pytest.approx(19.6)
    assert found.gap == pytest.approx(0, abs=0.01)


def test_jobs_that_are_all_alike_fill_both_types() -> None:
    row = np.array([0.0, 3.0, 5.0, 6.0])
    found = allocate_types({"a": [row] * 6, "b": [0.5 * row] * 6}, {"a": 6, "b": 6})
    assert sorted(zip(map(str, found.types), found.gpus, strict=True)) == [("a", 2)] * 3 + [("b", 2)] * 3


def test_job_that_needs_gpus_gets_them_before_more_valuable_jobs() -> None:
    needy, rich = np.array([NO, NO, 1.0]), np.array([0.0, 50.0, 100.0])
    found = allocate_types({"a": [rich, needy], "b": [rich, np.array([NO])]}, {"a": 2, "b": 1})
    assert (found.types, found.gpus, found.value) == (("b", "a"), (1, 2), 51.0)


def test_typed_allocation_reports_needs_that_cannot_be_met() -> None:
    needy = np.array([NO, NO, 1.0])
    with pytest.raises(
        InfeasibleAllocation, match=r"^no allocation was found that gives each job the GPUs that it needs$"
    ):
        allocate_types({"a": [needy] * 3, "b": [needy] * 3}, {"a": 3, "b": 3})
    with pytest.raises(InfeasibleAllocation, match=r"^no type permits a number of GPUs for job 1, counted from 0$"):
        allocate_types({"a": [needy] * 2, "b": [needy, np.array([NO])]}, {"a": 1, "b": 3})


def scaling_jobs(chance: np.random.Generator, jobs: int, names: str, most: int) -> dict[str, list[Floats]]:
    """Throughput of jobs that scale differently with each type, and worse on more than four GPUs."""
    sizes = np.arange(most + 1.0)
    return {
        name: [
            chance.uniform(1, 5) * sizes ** chance.uniform(0.4, 1) * np.where(sizes > 4, chance.uniform(0.6, 1), 1)
            for _ in range(jobs)
        ]
        for name in names
    }


@pytest.mark.parametrize("seed", range(3))
def test_gap_of_many_jobs_is_at_most_one_percent(seed: int) -> None:
    values = scaling_jobs(np.random.default_rng(seed), 30, "abc", 16)
    found = allocate_types(values, {"a": 16, "b": 24, "c": 32})
    assert found.gap <= 0.01 * found.value


def test_few_jobs_lose_little_on_average_against_the_optimum() -> None:
    chance, gpus, losses = np.random.default_rng(3), {"a": 6, "b": 9}, []
    for _ in range(100):
        values = scaling_jobs(chance, 6, "ab", 6)
        best = best_typed_value(values, gpus)
        assert best is not None
        losses.append(1 - allocate_types(values, gpus).value / best)
    assert np.mean(losses) <= 0.0003


def test_job_with_a_single_permitted_size_gets_it() -> None:
    only = np.array([NO, 2.0])
    assert allocate_types({"a": [only]}, {"a": 1}).gpus == (1,)
