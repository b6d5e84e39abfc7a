"""Whether what is listed under an id is the job, as it is now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.observation import EndCause, Observation, Phase
from ffdl_batch.services.listed import is_another, is_older

TOKEN, OTHER = "training-0a1b2c3d4-1", "training-0a1b2c3d4-2"
WAITING = Observation(Phase.PENDING, "PENDING", submitted_at=1000.0, name=TOKEN)
RUNNING = Observation(Phase.RUNNING, "RUNNING", submitted_at=1000.0, started_at=1010.0, name=TOKEN)
ENDED = Observation(Phase.ENDED, "NODE_FAIL", EndCause.NODE_FAIL, started_at=1010.0, ended_at=1020.0, name=TOKEN)


@pytest.mark.parametrize("last", [None, RUNNING])
def test_the_name_of_another_attempt_is_another_job(last: Observation | None) -> None:
    assert is_another(replace(WAITING, name=OTHER), TOKEN, last)
    assert not is_another(WAITING, TOKEN, last)
    assert not is_another(replace(WAITING, name=""), TOKEN, last)


def test_a_job_that_its_owner_renamed_is_still_the_job() -> None:
    renamed = replace(RUNNING, name="my favourite")
    assert not is_another(renamed, TOKEN, None)
    assert not is_another(renamed, TOKEN, RUNNING)
    requeued = replace(renamed, phase=Phase.PENDING, submitted_at=2000.0, restarts=1)
    assert not is_another(requeued, TOKEN, RUNNING)


def test_a_job_of_the_same_owner_under_an_id_that_was_given_again_is_another() -> None:
    """slurmctld's state was wiped; the owner's own sbatch got the number."""
    assert is_another(replace(WAITING, name="wrap", submitted_at=2000.0), TOKEN, RUNNING)
    assert is_another(replace(RUNNING, name="wrap", submitted_at=2000.0), TOKEN, replace(RUNNING, restarts=2))


@pytest.mark.parametrize("shown", [WAITING, RUNNING, replace(RUNNING, submitted_at=2000.0), ENDED])
@pytest.mark.parametrize("name", ["", TOKEN, "my favourite"])
def test_what_was_the_job_once_is_the_job_as_long_as_it_is_listed_so(shown: Observation, name: str) -> None:
    """The watcher relies on it: it passes over what is listed as it was the last time."""
    shown = replace(shown, name=name)
    assert not is_another(shown, TOKEN, None)
    assert not is_another(shown, TOKEN, shown)
    assert not is_older(shown, shown)


def test_an_end_from_before_the_run_that_was_seen_is_older() -> None:
    second_run = replace(RUNNING, started_at=1100.0, restarts=1)
    assert is_older(ENDED, second_run)
    assert not is_older(replace(ENDED, ended_at=1100.0), second_run)
    assert not is_older(ENDED, RUNNING)
    assert not is_older(ENDED, WAITING)
    assert not is_older(second_run, second_run)
