"""Whether what is listed under an id is the job, as it is now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.observation import EndCause, Observation, Phase
from ffdl_batch.services.listed import Standing, is_older, standing_of

TOKEN, OTHER = "training-0a1b2c3d4-1", "training-0a1b2c3d4-2"
WAITING = Observation(Phase.PENDING, "PENDING", submitted_at=1000.0, name=TOKEN)
RUNNING = Observation(Phase.RUNNING, "RUNNING", submitted_at=1000.0, started_at=1010.0, name=TOKEN)
ENDED = Observation(Phase.ENDED, "NODE_FAIL", EndCause.NODE_FAIL, started_at=1010.0, ended_at=1020.0, name=TOKEN)


def standing(shown: Observation, own: Observation | None = None, claimed_at: float | None = None) -> Standing:
    return standing_of(shown, TOKEN, own, lambda: claimed_at)


@pytest.mark.parametrize("own", [None, RUNNING])
@pytest.mark.parametrize("claimed_at", [None, 9000.0])
def test_standing_of_treats_token_of_another_attempt_as_another_job(
    own: Observation | None, claimed_at: float | None
) -> None:
    assert standing(replace(WAITING, name=OTHER), own, claimed_at) is Standing.ANOTHER
    assert standing(WAITING, own, claimed_at) is Standing.OWN
    assert standing(replace(WAITING, name=""), own, claimed_at) is Standing.OWN


def test_standing_of_recognizes_job_renamed_by_its_owner() -> None:
    renamed = replace(RUNNING, name="my favourite")
    assert standing(renamed, RUNNING) is Standing.OWN
    assert standing(renamed, claimed_at=1010.0) is Standing.OWN
    requeued = replace(renamed, phase=Phase.PENDING, submitted_at=2000.0, restarts=1)
    assert standing(requeued, renamed) is Standing.OWN
    assert standing(requeued, RUNNING, claimed_at=2010.0) is Standing.OWN


def test_standing_of_rejects_renamed_and_resubmitted_job_without_later_claim() -> None:
    """slurmctld's state was wiped; the owner's own sbatch got the number, and its job was requeued."""
    requeued = replace(WAITING, name="wrap", submitted_at=2000.0, restarts=1)
    assert standing(requeued, RUNNING) is Standing.ANOTHER
    assert standing(requeued, RUNNING, claimed_at=1010.0) is Standing.ANOTHER
    assert standing(replace(requeued, restarts=0), RUNNING) is Standing.ANOTHER
    assert (
        standing(replace(RUNNING, name="wrap", submitted_at=2000.0), replace(RUNNING, restarts=2)) is Standing.ANOTHER
    )


@pytest.mark.parametrize("claimed_at", [None, 999.0])
def test_standing_of_doubts_foreign_name_without_earlier_observation_or_submit_time(claimed_at: float | None) -> None:
    assert standing(replace(RUNNING, name="wrap"), None, claimed_at) is Standing.DOUBTFUL
    assert standing(replace(RUNNING, name="wrap", submitted_at=None), RUNNING, 9000.0) is Standing.DOUBTFUL


@pytest.mark.parametrize("shown", [WAITING, RUNNING, replace(RUNNING, submitted_at=2000.0), ENDED])
@pytest.mark.parametrize("name", ["", TOKEN])
def test_standing_of_accepts_unchanged_observation_of_same_job(shown: Observation, name: str) -> None:
    """The watcher relies on it: it passes over what is listed as it was the last time."""
    shown = replace(shown, name=name)
    assert standing(shown, shown) is Standing.OWN
    assert not is_older(shown, shown)


def test_is_older_detects_end_before_start_of_newer_run() -> None:
    second_run = replace(RUNNING, started_at=1100.0, restarts=1)
    assert is_older(ENDED, second_run)
    assert not is_older(replace(ENDED, ended_at=1100.0), second_run)
    assert not is_older(ENDED, RUNNING)
    assert not is_older(ENDED, WAITING)
    assert not is_older(second_run, second_run)
