"""The throughput model: what it recovers, how well it predicts measured steps, and how it rates its own errors."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.elastic.throughput_model import MISFIT, Measurement, Size, choose_profile, fit
from tests.benchmarks.elastic_model import AIM_PERCENT, divide, mean_error_percent, read_measurements

ROWS = read_measurements()
BATCHES = (8, 16, 32, 64)
SIZES = [
    Size(nodes, nodes * per_node, batch) for nodes in (1, 2, 3, 4, 8, 16) for per_node in (1, 2, 4) for batch in BATCHES
]


def true_step(size: Size) -> tuple[float, float]:
    """Return the step and its exchange by the formula of the module, with figures of our own."""
    compute = 0.05 + 0.004 * size.local_batch
    if size.gpus == 1:
        return compute, 0.0
    if size.nodes == 1:
        exchange = 0.03 * (size.gpus - 1) ** 0.6
    else:
        exchange = 0.03 * 4.0 * (size.nodes / 2) ** 0.3 * (size.gpus / size.nodes) ** 0.2
        exchange *= 1.3 if size.nodes == 2 else 1.0
    step = (compute**2.5 + exchange**2.5) ** (1 / 2.5)
    return step, step - compute


def measured(sizes: Iterable[Size], with_sync: bool = True, noise: random.Random | None = None) -> list[Measurement]:
    found = []
    for size in sizes:
        step, sync = (noise.uniform(0.9, 1.1) * true if noise else true for true in true_step(size))
        found.append(Measurement(*size, step, min(sync, 0.95 * step) if with_sync else None))
    return found


def mean_error(known: list[Measurement]) -> float:
    return mean_error_percent(known, measured(SIZES))


def test_fit_recovers_the_formula_from_exact_measurements() -> None:
    model = fit(measured(SIZES))
    for size in SIZES:
        assert model.predict(*size).step_s == pytest.approx(true_step(size)[0], rel=0.03), size


def test_fit_without_exchange_times_recovers_the_formula() -> None:
    assert mean_error(measured(SIZES, with_sync=False)) < 2


def test_profile_of_eight_sizes_predicts_all_others() -> None:
    assert mean_error(measured(choose_profile(SIZES))) < 5


def test_profile_without_exchange_times_predicts_all_others() -> None:
    assert mean_error(measured(choose_profile(SIZES), with_sync=False)) < 8


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_a_tenth_is_averaged_out_by_more_measurements(seed: int) -> None:
    noise = random.Random(seed)
    assert mean_error(measured(choose_profile(SIZES), noise=noise)) < 15
    assert mean_error(measured(SIZES * 3, noise=noise)) < 3


@pytest.mark.parametrize("name", sorted(ROWS))
def test_eight_rows_of_the_table_predict_the_rest_within_the_aim(name: str) -> None:
    profile, rest = divide(ROWS[name])
    assert len(profile) <= 8
    assert len(profile) + len(rest) == len(ROWS[name])
    assert mean_error_percent(profile, rest) <= AIM_PERCENT
    assert mean_error_percent(ROWS[name], rest) <= 9


@pytest.mark.parametrize("name", sorted(ROWS))
def test_nine_of_ten_rows_of_the_table_are_within_two_standard_deviations(name: str) -> None:
    profile, rest = divide(ROWS[name])
    sizes = np.array([(row.nodes, row.gpus, row.local_batch) for row in rest]).T
    predicted = fit(profile).predict(*sizes)
    errors = np.log(predicted.step_s) - np.log([row.step_s for row in rest])
    assert np.mean(np.abs(errors) < 2 * predicted.relative_std) >= 0.9
    assert not predicted.extrapolates.any()


def test_one_measurement_is_enough_for_a_guess() -> None:
    model = fit([Measurement(1, 1, 32, 0.2)])
    here, elsewhere = model.predict(1, 1, 32), model.predict(4, 16, 8)
    assert here.step_s == pytest.approx(0.2, rel=0.01)
    assert here.relative_std < 0.15
    assert 0.05 < elsewhere.step_s < 1
    assert elsewhere.relative_std > 0.5


def test_deviation_follows_from_that_of_the_parameters() -> None:
    model, (nodes, gpus, batch) = fit(measured(choose_profile(SIZES))), np.array(SIZES).T
    others = [replace(model, parameters=model.parameters + shift) for shift in 1e-5 * np.eye(9)]
    predicted, *moved = (one.predict(nodes, gpus, batch, passes=3) for one in (model, *others))
    slopes = np.array([np.log(one.step_s / predicted.step_s) / 1e-5 for one in moved])
    expected = np.sqrt(np.einsum("is,ij,js->s", slopes, model.covariance, slopes) + MISFIT**2)
    assert predicted.relative_std == pytest.approx(expected, rel=1e-3)


def test_new_measurement_corrects_the_model() -> None:
    profile = measured(choose_profile(SIZES))
    step_s = 2 * fit(profile).predict(4, 8, 16).step_s
    corrected = fit([*profile, *[Measurement(4, 8, 16, float(step_s))] * 5]).predict([4, 1], [8, 1], 16).step_s
    assert corrected[0] > 0.75 * step_s
    assert corrected[1] == pytest.approx(true_step(Size(1, 1, 16))[0], rel=0.1)


def test_repeated_measurements_count_by_their_mean() -> None:
    others = measured(size for size in choose_profile(SIZES) if size != (1, 1, 8))
    step, _ = true_step(Size(1, 1, 8))
    apart = [Measurement(1, 1, 8, step * factor) for factor in (0.8, 1.25)]
    alike = [Measurement(1, 1, 8, step)] * 2
    expected, got = (fit([*others, *same]).predict(*np.array(SIZES).T).step_s for same in (alike, apart))
    assert got == pytest.approx(expected, rel=1e-4)


def test_many_repetitions_of_one_size_leave_the_others_their_weight() -> None:
    profile = measured(choose_profile(SIZES))
    assert mean_error([*profile, *measured([Size(16, 64, 8)] * 300)]) < 5


def test_sizes_outside_what_was_measured_are_marked() -> None:
    model = fit([Measurement(1, 2, 8, 0.1), Measurement(4, 8, 32, 0.2)])
    nodes = [1, 4, 2, 1, 4, 8, 2, 2]
    gpus = [2, 8, 5, 1, 9, 8, 4, 4]
    batch = [8, 32, 16, 8, 32, 32, 7, 33]
    assert model.predict(nodes, gpus, batch).extrapolates.tolist() == [False] * 3 + [True] * 5


def test_accumulated_passes_exchange_gradients_once() -> None:
    model = fit(measured(choose_profile(SIZES)))
    single, compute = model.predict(4, 16, 32).step_s, model.predict(1, 1, 32).step_s
    assert model.predict(4, 16, 32, passes=5).step_s == pytest.approx(4 * compute + single)


def test_prediction_has_the_shape_of_its_arguments() -> None:
    model = fit(measured(choose_profile(SIZES)))
    gpus = np.array([1, 4, 8, 16])
    predicted = model.predict(-(-gpus // 4), gpus, np.array([[8], [32]]), passes=np.array([[1], [2]]))
    assert predicted.step_s.shape == predicted.relative_std.shape == predicted.extrapolates.shape == (2, 4)
    assert predicted.step_s[1, 2] == pytest.approx(model.predict(2, 8, 32, passes=2).step_s)


def test_profile_takes_what_is_offered_once() -> None:
    one_node = [Size(1, gpus, batch) for gpus in (1, 2, 3, 4) for batch in (8, 16, 32)]
    profile = choose_profile(one_node)
    assert {Size(1, 1, 8), Size(1, 1, 32), Size(1, 4, 8)} < set(profile) <= set(one_node)
    assert len(profile) == len(set(profile)) <= 8
    assert choose_profile([Size(2, 8, 16)]) == [Size(2, 8, 16)]


def test_profile_of_the_table_has_the_corners_and_the_node_boundary() -> None:
    sizes = [Size(row.nodes, row.gpus, row.local_batch) for row in ROWS["bert"]]
    assert choose_profile(sizes) == [
        *((1, 1, 4), (1, 1, 12), (1, 4, 4)),
        *((2, 2, 6), (2, 8, 4), (16, 16, 4), (16, 64, 6)),
        (6, 12, 6),
    ]


@pytest.mark.parametrize(
    "times", [(0.0, None), (-1.0, None), (math.nan, None), (math.inf, 0.1), (0.2, 0.2), (0.2, 0.3)]
)
def test_measurement_rejects_times_that_contradict_each_other(times: tuple[float, float | None]) -> None:
    with pytest.raises(ValueError, match="a step cannot take"):
        Measurement(1, 2, 8, *times)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    """Return any measurement, however strange."""
    nodes = draw(st.integers(1, 64))
    step_s = draw(st.floats(1e-4, 1e4))
    sync_s = draw(st.none() | st.floats(0, 0.999).map(lambda part: part * step_s))
    return Measurement(nodes, nodes * draw(st.integers(1, 8)), draw(st.integers(1, 100_000)), step_s, sync_s)


@given(st.lists(measurements(), min_size=1, max_size=12))
def test_prediction_is_finite_and_never_falls_with_the_batch_or_the_passes(known: list[Measurement]) -> None:
    model = fit(known)
    nodes, gpus = np.array([(1, 1), (1, 2), (1, 8), (2, 2), (2, 16), (3, 7), (64, 512)]).T
    batch = np.array([1, 7, 32, 1000, 1_000_000])
    predicted = model.predict(nodes[:, None, None], gpus[:, None, None], batch[:, None], np.array([1, 2, 100]))
    assert np.isfinite(predicted.step_s).all()
    assert np.isfinite(predicted.relative_std).all()
    assert (predicted.step_s > 0).all()
    assert (np.diff(predicted.step_s, axis=1) >= -1e-9 * predicted.step_s[:, 1:]).all()
    assert (np.diff(predicted.step_s, axis=2) >= 0).all()
