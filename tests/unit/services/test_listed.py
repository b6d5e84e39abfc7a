"""Whether what is listed under an id is the job, as it is now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.services.monitoring.watch_state import Memory
from ffdl_batch.services.outcome.native_job_identity import Standing, is_older, standing_of

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


WAITS = Observation(Phase.PENDING, "PENDING", reason="Resources")
RUNS = Observation(Phase.RUNNING, "RUNNING", nodes="n1")
OVER = Observation(Phase.ENDED, "FAILED", EndCause.FAILURE)

seen = st.sampled_from([None, WAITS, RUNS, OVER]).map(lambda one: one and replace(one))  # equal, not the same
listings = st.lists(st.tuples(seen, st.booleans()), max_size=6)


def remember(steps: list[tuple[Observation | None, bool]], rung: bool = False) -> Memory:
    """After these listings, after each of which the files were read, or not. `rung`: they were read before, too."""
    memory = Memory(1, read_once=rung)
    for at, (listed, read) in enumerate(steps):
        memory.note(listed, float(at))
        memory.read_once = read
    return memory


@given(listings, st.booleans(), seen)
def test_memory_is_unmoved_only_if_noting_listing_changes_and_requests_nothing(
    steps: list[tuple[Observation | None, bool]], rung: bool, listed: Observation | None
) -> None:
    memory = remember(steps, rung)
    unmoved, before = memory.is_unmoved(listed), replace(memory)
    asks = memory.note(listed, 100.0)
    assert unmoved == (not asks and memory == before)


@pytest.mark.parametrize(
    "stir",
    [
        lambda memory: memory.note(None, 1.0),
        lambda memory: setattr(memory, "read_once", False),
        lambda memory: memory.note(OVER, 1.0),
        lambda memory: memory.note(RUNS, 1.0),
    ],
    ids=["it was left out", "its files could not be read", "it ended", "it ran"],
)
def test_memory_is_not_unmoved_after_intervening_change(stir: Callable[[Memory], object]) -> None:
    memory = remember([(WAITS, True)])
    assert memory.is_unmoved(replace(WAITS))
    stir(memory)
    assert not memory.is_unmoved(WAITS)


def test_memory_requests_check_at_each_listing_of_ended_job() -> None:
    memory = remember([(OVER, True)] * 3)
    assert not memory.is_unmoved(OVER)
    assert memory.note(OVER, 9.0)
