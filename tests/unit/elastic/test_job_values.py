"""Values of jobs: the objectives, and the sizes that are permitted."""

from __future__ import annotations

import numpy as np
import pytest

from ffdl_batch.elastic.job_values import (
    objective_values,
    permitted_values,
    pinned_size,
    sizes_between,
    whole_node_sizes,
)

NO = float("-inf")


@pytest.mark.parametrize(
    "alpha, expected",
    [(0.0, [NO, 3.0, 12.0]), (0.5, [NO, 6.0, 12.0]), (1.0, [NO, 0.0, 3 * np.log(4)]), (2.0, [NO, -3, -0.75])],
)
def test_objective_is_alpha_fair_and_excludes_what_is_impossible(alpha: float, expected: list[float]) -> None:
    assert objective_values(np.array([0.0, 1.0, 4.0]), weight=3.0, alpha=alpha).tolist() == pytest.approx(expected)


def test_only_permitted_sizes_and_waiting_keep_a_value() -> None:
    values = np.arange(6.0) + 1
    assert permitted_values(values, sizes_between(2, 4, most=5)).tolist() == [NO, NO, 3, 4, 5, NO]
    assert permitted_values(values, pinned_size(3, most=5), waiting=-9.0).tolist() == [-9, NO, NO, 4, NO, NO]
    assert values.tolist() == [1, 2, 3, 4, 5, 6]


def test_whole_node_steps_permit_parts_of_one_node_only() -> None:
    assert np.flatnonzero(whole_node_sizes(4, most=13)).tolist() == [0, 1, 2, 3, 4, 8, 12]
    assert np.flatnonzero(whole_node_sizes(4, most=13) & sizes_between(4, 9, most=13)).tolist() == [4, 8]
