"""Sizes of elastic jobs over time, from their attempts."""

from __future__ import annotations

from dataclasses import replace

from ffdl_batch.domain.job.views import AttemptView, ResizeView
from ffdl_batch.web.cluster import sizes_of
from tests.unit.client.fake_daemon import make_job

FIRST = AttemptView(1, "1", "slurm", 10.0, submitted_at=10.0, ended_at=20.0, learners=4)


def test_sizes_are_zero_between_attempts_and_last_until_now() -> None:
    second = AttemptView(2, "2", "slurm", 30.0, submitted_at=30.0, learners=2)
    job = replace(make_job(), attempts=(FIRST, second))
    assert sizes_of(job, 50.0) == [(10.0, 4.0), (20.0, 0.0), (30.0, 2.0), (50.0, 2.0)]


def test_attempt_that_follows_at_once_has_no_gap() -> None:
    second = AttemptView(2, "2", "slurm", 20.0, submitted_at=20.0, ended_at=40.0, learners=2)
    job = replace(make_job(), attempts=(FIRST, second))
    assert sizes_of(job, 50.0) == [(10.0, 4.0), (20.0, 2.0), (40.0, 0.0)]


def test_changes_in_place_and_attempts_of_unknown_size() -> None:
    changed = replace(FIRST, ended_at=None, resizes=(ResizeView(12.0, 2, 16), ResizeView(15.0, 3, 16)))
    unknown = AttemptView(2, "2", "slurm", 30.0, submitted_at=30.0)
    job = replace(make_job(), gpus=2.0, attempts=(changed, unknown))
    assert sizes_of(job, 50.0) == [(10.0, 8.0), (12.0, 4.0), (15.0, 6.0), (50.0, 6.0)]
    assert sizes_of(replace(job, attempts=()), 50.0) == []
