"""When idle GPUs lead to a warning, and when to the end of the job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.controller.metrics.idle_gpus import IdleGpus
from ffdl_batch.domain.launch.limits import IdleLimit
from ffdl_batch.domain.metrics.usage import GpuUse, UsageSample
from ffdl_batch.domain.outcome.controller_events import EventKind

LIMIT = IdleLimit(0.05, 100)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "events.jsonl"), "node-0")


def sample(*uses: float | None) -> UsageSample:
    return UsageSample(0.0, "n1", gpus=tuple(GpuUse(str(number), 1, use) for number, use in enumerate(uses)))


def test_idle_gpus_warn_once_at_half_of_time_and_exceed_limit_at_its_end(journal: Journal) -> None:
    gpus = IdleGpus(LIMIT, journal)
    for now in (10.0, 50.0, 60.0, 70.0, 109.0):
        gpus.look(now, sample(0.0, 0.04))
    assert gpus.exceeded == ""
    [warning] = journal.events
    assert warning.kind is EventKind.IDLE
    assert warning.fields["message"] == (
        "each GPU on n1 was busy for less than 5 % of 50 s (batch.idle); the job ends in 50 s unless one is used"
    )
    assert float(warning.fields["ends_at"] or 0) - time.time() == pytest.approx(50, abs=30)
    gpus.look(110.0, sample(0.0, 0.0))
    assert gpus.exceeded == "each GPU on n1 was busy for less than 5 % of 100 s (batch.idle)"


@pytest.mark.parametrize("uses", [(0.0, 0.05), (0.0, None), ()], ids=["one-busy", "one-unknown", "no-sample"])
def test_idle_time_begins_again_if_a_gpu_is_busy_or_not_measured(
    journal: Journal, uses: tuple[float | None, ...]
) -> None:
    gpus = IdleGpus(LIMIT, journal)
    gpus.look(0.0, sample(0.0, 0.0))
    gpus.look(60.0, sample(0.0, 0.0))
    gpus.look(90.0, sample(*uses))
    for now in (100.0, 120.0, 199.0):
        gpus.look(now, sample(0.0, 0.0))
    assert gpus.exceeded == ""
    messages = [str(event.fields["message"]) for event in journal.events]
    assert [bool(message) for message in messages] == [True, False, True]  # each warning, and the use between them
    gpus.look(200.0, sample(0.0, 0.0))
    assert gpus.exceeded


def test_job_without_limit_is_never_idle(journal: Journal) -> None:
    gpus = IdleGpus(None, journal)
    for now in (0.0, 1e6):
        gpus.look(now, sample(0.0))
    assert (gpus.exceeded, journal.events) == ("", [])
