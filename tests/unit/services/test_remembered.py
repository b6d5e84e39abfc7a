"""What is remembered of a job, and when a listing says nothing new about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.observation import EndCause, Observation, Phase
from ffdl_batch.services.remembered import Memory

WAITING = Observation(Phase.PENDING, "PENDING", reason="Resources")
RUNNING = Observation(Phase.RUNNING, "RUNNING", nodes="n1")
ENDED = Observation(Phase.ENDED, "FAILED", EndCause.FAILURE)

seen = st.sampled_from([None, WAITING, RUNNING, ENDED]).map(lambda one: one and replace(one))  # equal, not the same
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
        lambda memory: memory.note(ENDED, 1.0),
        lambda memory: memory.note(RUNNING, 1.0),
    ],
    ids=["it was left out", "its files could not be read", "it ended", "it ran"],
)
def test_memory_is_not_unmoved_after_intervening_change(stir: Callable[[Memory], object]) -> None:
    memory = remember([(WAITING, True)])
    assert memory.is_unmoved(replace(WAITING))
    stir(memory)
    assert not memory.is_unmoved(WAITING)


def test_memory_requests_check_at_each_listing_of_ended_job() -> None:
    memory = remember([(ENDED, True)] * 3)
    assert not memory.is_unmoved(ENDED)
    assert memory.note(ENDED, 9.0)
