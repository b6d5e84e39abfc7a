"""Sizes of elastic jobs, and the variables of their learners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.job.elastic import Elastic, LearningRate, elastic_environment, workers_of

BOUNDS = Elastic(1, 8, 32, 512, 64, 32)


@pytest.mark.parametrize(
    ("learners", "gpus", "workers"), [(1, 0, 1), (3, 0, 3), (2, 4, 8), (2, 0.5, 2), (1, 1, 1), (4096, 8, 32768)]
)
def test_workers_are_gpus_or_learners_without_whole_ones(learners: int, gpus: float, workers: int) -> None:
    assert workers_of(learners, gpus) == workers


@pytest.mark.parametrize("gpus", range(1, 40))
@pytest.mark.parametrize("batch", [None, 32, 33, 200, 512])
def test_batch_is_equal_on_all_gpus_within_bounds_and_nearest_below_requested(gpus: int, batch: int | None) -> None:
    elastic = replace(BOUNDS, global_batch=batch)
    permitted = [each for each in range(1, 65) if 32 <= each * gpus <= 512]
    assert list(elastic.batches_per_gpu(gpus)) == permitted
    below = [each for each in permitted if each * gpus <= (batch or 32)]
    assert elastic.batch_on(gpus) == (below[-1] if below else permitted[0]) * gpus


@pytest.mark.parametrize(("least", "most", "per_gpu", "gpus"), [(100, 100, 64, 3), (512, 600, 64, 4), (1, 8, 64, 9)])
def test_batch_is_refused_on_gpus_that_can_have_none(least: int, most: int, per_gpu: int, gpus: int) -> None:
    elastic = Elastic(1, 8, least, most, per_gpu, least)
    assert not elastic.batches_per_gpu(gpus) and elastic.batch_on(gpus) is None
    with pytest.raises(ValueError, match=f"no batch from {least} to {most} can be divided among {gpus} GPUs"):
        elastic_environment(elastic, gpus, 0)


@pytest.mark.parametrize(
    ("rule", "scale"),
    [(LearningRate.LINEAR, "4.0"), (LearningRate.SQRT, "2.0"), (LearningRate.NONE, "1.0")],
)
def test_learners_read_batch_of_attempt_and_scale_against_submitted_batch(rule: LearningRate, scale: str) -> None:
    elastic = replace(BOUNDS, start=64, learning_rate=rule, global_batch=256)
    assert elastic_environment(elastic, learners=2, gpus=4) == {
        "BATCH_SIZE": "32", "GLOBAL_BATCH_SIZE": "256", "LEARNING_RATE_SCALE": scale,
    }  # fmt: skip


def test_learners_read_scale_of_their_real_batch_if_requested_one_cannot_be_divided() -> None:
    found = elastic_environment(replace(BOUNDS, start=100), learners=3, gpus=0)
    assert found == {"BATCH_SIZE": "33", "GLOBAL_BATCH_SIZE": "99", "LEARNING_RATE_SCALE": "0.99"}
