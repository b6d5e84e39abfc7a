"""Speeds of a job at sizes that it did not have."""

from __future__ import annotations

import pytest

from ffdl_batch.elastic.advice import predict_speeds
from ffdl_batch.elastic.throughput_model import Measurement, Size


def test_speeds_of_measured_sizes_are_near_and_others_extrapolate() -> None:
    """Two GPUs exchange for a quarter of a step, and four are beyond what was measured."""
    measured = [Measurement(1, 1, 32, 0.3), Measurement(1, 2, 32, 0.4), Measurement(1, 2, 32, 0.4)]
    one, two, four = predict_speeds(measured, [Size(1, 1, 32), Size(1, 2, 32), Size(1, 4, 32)])
    assert [one.samples_per_s, two.samples_per_s] == pytest.approx([32 / 0.3, 64 / 0.4], rel=0.05)
    assert [one.exchange, two.exchange] == pytest.approx([0.0, 0.25], abs=0.05)
    assert [size.extrapolates for size in (one, two, four)] == [False, False, True]
    assert four.relative_std > two.relative_std and two.samples_per_s < four.samples_per_s < 2 * two.samples_per_s
