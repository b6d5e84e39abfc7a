"""Predictions from measured steps: near what was measured, they follow the measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.metrics.learner_reports import FASTEST, SLOWEST
from ffdl_batch.elastic.step_times import StepTimes
from ffdl_batch.elastic.throughput_model import Measurement


def measured(*steps: tuple[int, int, float]) -> StepTimes:
    """Return step times of GPUs of one node, local batch and seconds, each measured 64 times."""
    times = StepTimes()
    for gpus, local, step_s in steps:
        for _ in range(64):
            times.add(Measurement(1, gpus, local, step_s))
    return times


def test_measured_size_is_predicted_as_measured_also_if_no_formula_fits() -> None:
    steps = ((1, 16, 1.0), (1, 24, 1.6), (1, 32, 1.5), (2, 16, 1.1), (4, 16, 1.2))
    times = measured(*steps)
    for gpus, local, step_s in steps:
        assert times.predict(1, gpus, local).step_s == pytest.approx(step_s, rel=0.02)


def test_size_beside_slow_one_is_predicted_slower_than_by_formula() -> None:
    base = ((1, 8, 0.5), (1, 64, 4.0), (4, 8, 0.6), (4, 64, 4.1))
    even, odd = measured(*base, (1, 24, 1.5)), measured(*base, (1, 24, 1.9))
    assert odd.predict(1, 1, 26).step_s > 1.1 * even.predict(1, 1, 26).step_s
    assert odd.predict(1, 4, 8).step_s == pytest.approx(even.predict(1, 4, 8).step_s, rel=0.02)


def test_accumulated_passes_are_measured_and_predicted() -> None:
    times = StepTimes()
    times.add(Measurement(1, 1, 32, 1.0))
    times.add(Measurement(1, 1, 32, 4.0, passes=4))
    assert times.predict(1, 1, 32, [1, 2, 4]).step_s == pytest.approx([1.0, 2.0, 4.0], rel=0.05)


def test_prediction_changes_when_measurements_of_a_size_have_doubled() -> None:
    times = StepTimes()
    seen = []
    for _ in range(8):
        times.add(Measurement(1, 1, 8, 1.0))
        seen.append(times.changed)
        times.predict(1, 1, 8)
    assert seen == [True, True, False, True, False, False, False, True]


def test_unmeasured_kind_has_finite_times_which_fall_with_gpus() -> None:
    times = StepTimes()
    assert times.most_gpus == 0
    step_s = times.predict(np.array([1, 1, 2]), np.array([1, 4, 8]), np.array([64, 16, 8])).step_s
    assert (np.diff(step_s) < 0).all()


def test_most_gpus_is_that_of_all_measurements() -> None:
    assert measured((2, 8, 1.0), (1, 8, 1.0)).most_gpus == 2


@given(
    sizes=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 8, 1000]),
            st.sampled_from([1, 2, 8]),
            st.sampled_from([1, 64, 2**31 - 1]),
            st.floats(math.log10(SLOWEST), math.log10(FASTEST)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_speeds_that_contradict_each_other_give_finite_step_times(
    sizes: list[tuple[int, int, int, float]],
) -> None:
    times = StepTimes()
    for nodes, per_node, batch, speed in sizes:
        gpus = nodes * per_node
        times.add(Measurement(nodes, gpus, batch, batch * gpus / 10**speed))
    found = times.predict(np.array([1, 2, 4, 16]), np.array([1, 2, 16, 16]), np.array([1, 64, 4096, 16])).step_s
    assert np.isfinite(found).all() and (found > 0).all()
